"""Prefill and decode speed and memory of Plait and of transformers, on the same weights, in one run.

    .venv/bin/python benchmarks/generate.py [--model PATH.gguf] [--dtype float32|bfloat16] [--rounds N] [--json]

Each measurement is a process of its own that loads the model, warms up, and passes several times over the same prompt,
so that its peak memory is its own. The two engines take turns, and who begins changes from round to round.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

ENGINES = ("plait", "transformers")
WARM_UP = 8
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Job:
    """What one process does."""

    engine: str
    model: str
    dtype: str
    prompt: int
    decode: int
    passes: int
    threads: int | None


@dataclass(frozen=True, slots=True)
class Measured:
    """What one process found: seconds per pass, bytes, and the tokens of the last pass."""

    load: float
    prefill: list[float]
    decode: list[float]
    peak: int
    private: int
    tokens: list[int]


def peak_bytes() -> int:
    """The most this process ever had resident, mapped files included."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def private_bytes() -> int:
    """What would be free if this process ended: without pages of files that others could share."""
    import psutil

    return int(psutil.Process().memory_full_info().uss)


def prompt_tokens(vocabulary: int, count: int) -> list[int]:
    """The same arbitrary tokens for everybody, without the control tokens at the beginning of a vocabulary."""
    generator = random.Random(0)
    return [generator.randrange(min(1000, vocabulary // 2), vocabulary) for _ in range(count)]


def run_plait(job: Job) -> Measured:
    import plait
    from plait.engine.events import Result

    start = perf_counter()
    engine = plait.load(job.model, dtype=job.dtype, cache=0)
    loaded = perf_counter() - start

    def once(tokens: list[int], steps: int) -> Result:
        *_, result = engine.generate(tokens, max_tokens=steps + 1, ignore_eos=True)
        assert isinstance(result, Result)
        return result

    prompt = prompt_tokens(engine.blueprint.vocabulary, job.prompt)
    once(prompt, WARM_UP)
    results = [once(prompt, job.decode) for _ in range(job.passes)]
    return Measured(
        loaded,
        [r.timing.prompt_seconds for r in results],
        [r.timing.decode_seconds for r in results],
        peak_bytes(),
        private_bytes(),
        list(results[-1].tokens),
    )


def run_transformers(job: Job) -> Measured:
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    path = Path(job.model)
    start = perf_counter()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        quantization_config=transformers.GgufConfig(dequantize=True),
        dtype=getattr(torch, job.dtype),
    )
    loaded = perf_counter() - start

    @torch.inference_mode()
    def once(tokens: list[int], steps: int) -> tuple[float, float, list[int]]:
        began = perf_counter()
        out = model(torch.tensor([tokens]), use_cache=True, logits_to_keep=1)
        chosen = [int(out.logits[0, -1].argmax())]
        first = perf_counter()
        for _ in range(steps):
            out = model(torch.tensor([chosen[-1:]]), cache=out.cache, use_cache=True, logits_to_keep=1)
            chosen.append(int(out.logits[0, -1].argmax()))
        return first - began, perf_counter() - first, chosen

    prompt = prompt_tokens(model.config.get_text_config().vocab_size, job.prompt)
    once(prompt, WARM_UP)
    passes = [once(prompt, job.decode) for _ in range(job.passes)]
    prefill, decode, tokens = zip(*passes, strict=True)
    return Measured(loaded, list(prefill), list(decode), peak_bytes(), private_bytes(), tokens[-1])


def work(text: str) -> None:
    """One process: a job as JSON in, what was measured as JSON out."""
    import torch

    warnings.simplefilter("error", FutureWarning)
    job = Job(**json.loads(text))
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    measured = {"plait": run_plait, "transformers": run_transformers}[job.engine](job)
    print(json.dumps(asdict(measured) | {"threads": torch.get_num_threads()}))


def measure(job: Job) -> tuple[Measured, int]:
    """Run a job in a process of its own."""
    command = [sys.executable, __file__, "--work", json.dumps(asdict(job))]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"the {job.engine} process ended with exit status {done.returncode}")
    found = json.loads(done.stdout.splitlines()[-1])
    threads = found.pop("threads")
    return Measured(**found), threads


def summary(job: Job, runs: list[Measured]) -> dict[str, float]:
    """Medians over all passes of all processes of one engine."""
    return {
        "prefill_tokens_per_second": job.prompt / median(s for run in runs for s in run.prefill),
        "decode_tokens_per_second": job.decode / median(s for run in runs for s in run.decode),
        "load_seconds": median(run.load for run in runs),
        "peak_mib": median(run.peak for run in runs) / MIB,
        "private_mib": median(run.private for run in runs) / MIB,
    }


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both engines in one dtype; `alike`: how many of the last pass's `tokens` agree from the start."""

    dtype: str
    threads: int
    alike: int
    tokens: int
    engines: dict[str, dict[str, float]]
    ratio: dict[str, float]


def compare(options: argparse.Namespace, dtype: str) -> Comparison:
    """All rounds of one dtype."""
    runs: dict[str, list[Measured]] = {engine: [] for engine in ENGINES}
    jobs = {
        engine: Job(engine, options.model, dtype, options.prompt, options.decode, options.passes, options.threads)
        for engine in ENGINES
    }
    threads = 0
    for turn in range(options.rounds):
        for engine in ENGINES if turn % 2 == 0 else reversed(ENGINES):
            print(f"{dtype}: round {turn + 1} of {options.rounds}, {engine}", file=sys.stderr)
            found, threads = measure(jobs[engine])
            runs[engine].append(found)
    mine, theirs = (runs[engine][-1].tokens for engine in ENGINES)
    alike = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b), len(mine))
    made = {engine: summary(jobs[engine], found) for engine, found in runs.items()}
    ratio = {key: value / made["transformers"][key] for key, value in made["plait"].items()}
    return Comparison(dtype, threads, alike, len(mine), made, ratio)


def table(found: Comparison, options: argparse.Namespace) -> None:
    """What was found as a table."""
    from plait.cli.common import print_table

    title = (
        f"{Path(options.model).name} as {found.dtype}, {found.threads} threads, prompt {options.prompt}, "
        f"{options.decode} decode steps, {options.rounds} x {options.passes} passes"
    )
    columns = [*(found.engines[engine] for engine in ENGINES), found.ratio]
    rows = [(key.replace("_", " "), *(f"{column[key]:,.2f}" for column in columns)) for key in found.ratio]
    print_table(rows, title=title, header=("median", *ENGINES, "ratio"), right=(1, 2, 3))
    print(f"greedy tokens alike from the start: {found.alike} of {found.tokens}\n")


def demo() -> str:
    """The demo package's GGUF file."""
    from plait.blueprint.catalog import DEMO, entry
    from plait.engine.packages import packaged_weights

    found = entry(DEMO)
    assert found is not None
    return str(packaged_weights(found))


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare Plait with transformers on a GGUF file.")
    parser.add_argument("--model", metavar="PATH", help="a .gguf file; default: the demo package's")
    parser.add_argument("--dtype", action="append", choices=["float32", "bfloat16"], help="default: both, in turn")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt (%(default)s)")
    parser.add_argument("--decode", type=int, default=64, help="decode steps (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="processes per engine and dtype (%(default)s)")
    parser.add_argument("--passes", type=int, default=3, help="measured passes in each process (%(default)s)")
    parser.add_argument("--threads", type=int, help="threads of torch; default: torch's own choice")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        work(options.work)
        return
    for name in ("prompt", "decode", "rounds", "passes"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if options.model is None:
        options.model = demo()
    if not Path(options.model).is_file():
        parser.error(f"{options.model}: no such file")
    found = [compare(options, dtype) for dtype in options.dtype or ("float32", "bfloat16")]
    if options.json:
        print(json.dumps([asdict(one) for one in found], indent=2))
        return
    for one in found:
        table(one, options)


if __name__ == "__main__":
    main()
