"""How far the logits of tiny random models are from those of transformers, as a table.

    python scripts/parity_table.py           print the table
    python scripts/parity_table.py gemma3    of these models of tests/tiny.py only

Logits are returned as float32, whatever the model computes in: in float64 the table shows that last rounding.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import transformers

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import tiny  # noqa: E402
from lifted import Lifted  # noqa: E402

import plait  # noqa: E402

LENGTH = 3 * tiny.WINDOW + 80
WAYS = {"one call": [LENGTH], "token by token": [1] * LENGTH, "chunks": [7, 60, LENGTH - 67]}


def difference(name: str, dtype: torch.dtype) -> dict[str, float]:
    """For each way the largest difference of a logit, as a share of the range of the reference's logits."""
    model = tiny.reference_model(name, dtype=dtype)
    ids = tiny.tokens(LENGTH)
    with torch.no_grad(), Lifted() if dtype == torch.float64 else nullcontext():
        expected = model(torch.tensor([ids]), use_cache=False).logits[0]
    with TemporaryDirectory() as place:
        model.save_pretrained(place)
        engine = plait.load(place, dtype=str(dtype).removeprefix("torch."))
        span = expected.max() - expected.min()
        found = {way: engine.logits(ids, split) - expected for way, split in WAYS.items()}
        return {way: float(error.abs().max() / span) for way, error in found.items()}


def lines(names: list[str]) -> Iterator[str]:
    """The table, in Markdown, a line at a time."""
    ways = " | ".join(WAYS)
    yield f"Largest difference of a logit from transformers {version('transformers')} over {LENGTH} tokens, as a share"
    yield f"of the range of the logits; torch {version('torch')}. A model of float64 returns its logits as float32."
    yield ""
    yield f"| model | family | float32: {ways} | float64: {ways} |"
    yield "|---|---|" + "---:|" * (2 * len(WAYS))
    for name in names:
        cells = []
        for dtype in (torch.float32, torch.float64):
            cells += [f"{value:.1e}" for value in difference(name, dtype).values()]
        kind = tiny.MODELS[name].model.removesuffix("ForCausalLM")
        yield f"| {name} | {kind} | {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="MODEL", help="a name of tests/tiny.py")
    names = parser.parse_args().names or list(tiny.MODELS)
    for name in names:
        if name not in tiny.MODELS:
            parser.error(f"no model {name!r}; there are " + ", ".join(tiny.MODELS))
    # Sums of the reference depend on the number of threads.
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    for line in lines(names):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
