"""Plait beside llama.cpp on the same files: the table of bars.

    .venv/bin/python benchmarks/llama_cpp.py DIR [--only NAME,...] [--pairs N] [--quick] [--json]

DIR keeps the files it makes (7 GB) and the peer's states of long contexts. Both engines read the same bytes and store
keys and values in as many bits. Each measurement is a process of its own; the engines take turns, and who begins
changes. The peer runs with the fastest of its settings, found first for each line and kept in DIR.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from versus.rows import MODELS, ROWS, Job, Row, Settings, quick

from plait.runtime.threads import physical_cores

WORK = Path(__file__).parent / "versus" / "work.py"
PREFILL, STEPS = 512, 32
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Line:
    """What was found for a row. Speeds are tokens per second of every process's median pass, in the order they ran.

    bound  tokens per second that memory allowed, of each of Plait's processes; None: memory does not bound the row
    bar    what had to be reached, in the unit of the row, and whether it was; None: not measured at the bar's size
    """

    name: str
    ours: list[float]
    theirs: list[float]
    bound: list[float] | None
    settings: str | None
    ratio: float
    of_bound: float | None
    bar: str
    reached: bool | None
    facts: dict[str, Any]


def run(job: Job) -> dict[str, Any]:
    """What a process of its own found; what fails ends the measurement."""
    found = tried(job)
    if found is None:
        sys.exit(f"the {job.engine} process failed: {job.kind} of {job.path}")
    return found


def tried(job: Job) -> dict[str, Any] | None:
    """The same, None where the process ended by itself or crashed."""
    environment = os.environ | {"OMP_NUM_THREADS": str(job.threads), "MKL_DYNAMIC": "FALSE"}
    if job.engine == "llama.cpp" and job.build is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (job.build, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, str(WORK), json.dumps(job.as_json())]
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return None
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def file_of(key: str, place: Path) -> Path:
    """The file of a model, written first where it is not there."""
    model = MODELS[key]
    if model.format is None:
        from plait.blueprint.catalog import entry
        from plait.engine.packages import packaged_weights

        known = entry(model.entry)
        assert known is not None
        return packaged_weights(known)
    path = place / f"{key}.gguf"
    if not path.exists():
        say(f"writing {path}: random weights of {model.entry} in {model.format}; some minutes")
        made = path.with_suffix(".part.gguf")
        command = [sys.executable, "-m", "plait", "random", model.entry, "--gguf", "--format", model.format]
        subprocess.run([*command, "-o", str(made), "--force"], check=True, stdout=subprocess.DEVNULL)
        made.replace(path)
    return path


def job_of(row: Row, options: argparse.Namespace) -> Job:
    """The job of Plait's; the peer's differs in `engine` and `settings`."""
    tokens = options.prompt if row.kind == "prefill" else options.steps
    return Job(
        engine="plait",
        path=str(file_of(row.model, options.place)),
        kind=row.kind,
        context=row.context,
        tokens=tokens,
        batch=row.batch,
        passes=options.passes,
        threads=options.threads,
        states=str(options.place / "states"),
        kv=options.kv,
        dtype=options.dtype,
        memory=2**26 if options.quick else 2**30,
        settings=Settings(),
        build=None if options.peer is None else str(options.peer.absolute()),
    )


def fastest(row: Row, job: Job, options: argparse.Namespace) -> Settings:
    """The peer's settings for a row: kept from an earlier run, or the fastest of those that are tried now."""
    kept = options.place / "settings.json"
    known: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    name = f"{row.name}-{job.context}-{job.tokens}-{job.threads}-{job.kv}-{job.build}"
    if name in known and not options.calibrate:
        return Settings(**known[name])
    best, least = Settings(), float("inf")

    def attempt(settings: Settings) -> None:
        nonlocal best, least
        if job.kv != 16 and not settings.flash:
            return
        found = tried(replace(job, engine="llama.cpp", settings=settings, passes=2))
        if found is None:
            # Some of its layouts crash on some models; it is judged by those that run.
            say(f"{row.name}: llama.cpp fails with {settings}")
            return
        seconds = min(found["seconds"])
        say(f"{row.name}: llama.cpp with {settings}: {job.tokens / seconds:.1f} tokens/s")
        if seconds < least:
            best, least = settings, seconds

    for flash in (True, False):
        for repack in (True, False):
            attempt(Settings(flash, repack))
    if row.kind == "prefill":
        for batch in (128, 256):
            attempt(replace(best, batch=batch))
    if least == float("inf"):
        sys.exit(f"{row.name}: llama.cpp fails with all settings")
    kept.write_text(json.dumps({**known, name: asdict(best)}, indent=2) + "\n")
    return best


def measured(row: Row, options: argparse.Namespace) -> Line:
    """All pairs of a row."""
    job = job_of(row, options)
    if row.kind == "memory":
        return resident(row, run(job))
    alone = replace(job, kind="decode", batch=1)
    if row.kind == "together":
        settings, other = None, alone
    else:
        settings = Settings() if row.kind == "load" else fastest(row, job, options)
        other = replace(job, engine="llama.cpp", settings=settings)
    found: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for turn in range(options.pairs):
        for mine in (True, False) if turn % 2 == 0 else (False, True):
            say(f"{row.name}: pair {turn + 1} of {options.pairs}, {'plait' if mine else other.engine}")
            found[mine].append(run(job if mine else other))
    # A load is one token; of decode and prefill a pass is all its tokens.
    tokens = {True: job.tokens * job.batch, False: other.tokens * other.batch}
    if row.kind == "load":
        tokens = {True: 1, False: 1}
    speeds = {mine: [tokens[mine] / median(one["seconds"]) for one in found[mine]] for mine in found}
    bound = None
    if row.kind in ("decode", "together"):
        bound = [job.batch * one["bandwidth"] / one["bytes"] for one in found[True]]
    facts = {key: found[True][-1][key] for key in ("forms", "bytes") if key in found[True][-1]}
    if bound is not None:
        facts["bandwidth"] = [one["bandwidth"] for one in found[True]]
    return judged(row, speeds[True], speeds[False], bound, settings, facts)


def judged(
    row: Row, ours: list[float], theirs: list[float], bound: list[float] | None, settings: Settings | None, facts: Any
) -> Line:
    """Pairs are compared one by one, since a shared machine changes from one to the next."""
    ratio = median(a / b for a, b in zip(ours, theirs, strict=True))
    share = None if bound is None else median(a / b for a, b in zip(ours, bound, strict=True))
    if row.kind == "load":
        assert row.most is not None
        seconds = 1 / median(ours)
        bar, reached = f"at most {row.most:g} s", seconds <= row.most
    else:
        assert row.ratio is not None
        bar, reached = f"{row.ratio:g} x", ratio >= row.ratio
        if row.of_bound is not None and share is not None:
            bar, reached = f"{bar} or {row.of_bound:.0%} of bound", reached or share >= row.of_bound
    named = None if settings is None else str(settings)
    return Line(row.name, ours, theirs, bound, named, ratio, share, bar, reached, facts)


def resident(row: Row, found: dict[str, Any]) -> Line:
    assert row.most is not None
    beyond = found["beyond"]
    bar = f"at most {row.most / 1e6:g} MB"
    return Line(row.name, [beyond], [], None, None, beyond / row.most, None, bar, beyond <= row.most, found)


def cells(line: Line) -> tuple[str, ...]:
    """A row of the table."""
    if line.name.endswith("-memory"):
        facts = line.facts
        beside = f"beside {facts['weights'] / MIB:,.0f} MiB repacked, {facts['state'] / MIB:,.0f} MiB state"
        return (line.name, f"{line.ours[0] / 1e6:,.0f} MB", beside, "", "", line.bar, _word(line.reached))
    if line.name.endswith("-load"):
        ours, theirs = ([1 / x for x in found] for found in (line.ours, line.theirs))
        speeds = _spread(ours, "s"), _spread(theirs, "s"), f"{line.ratio:.2f}"
        return (line.name, *speeds, "", line.bar, _word(line.reached))
    share = "" if line.of_bound is None else f"{line.of_bound:.0%}"
    names = (line.name, _spread(line.ours), _spread(line.theirs), f"{line.ratio:.2f}", share)
    return (*names, line.bar, _word(line.reached))


def _word(reached: bool | None) -> str:
    return "" if reached is None else "yes" if reached else "no"


def _spread(found: list[float], unit: str = "") -> str:
    digits = 2 if unit else 1
    low, high = min(found), max(found)
    return f"{median(found):,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f}){' ' if unit else ''}{unit}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare Plait with llama.cpp on the same GGUF files.")
    parser.add_argument("place", metavar="DIR", type=Path, help="where files and states are kept")
    parser.add_argument("--only", metavar="NAME,...", help="lines whose name begins with one of these; see --list")
    parser.add_argument("--list", action="store_true", help="list the lines and end")
    parser.add_argument("--pairs", type=int, default=7, help="processes of each engine (%(default)s)")
    parser.add_argument("--passes", type=int, default=2, help="measured passes in each process (%(default)s)")
    parser.add_argument("--prompt", type=int, default=PREFILL, help="tokens of a prefill (%(default)s)")
    parser.add_argument("--steps", type=int, default=STEPS, help="decode steps of a pass (%(default)s)")
    parser.add_argument("--threads", type=int, default=physical_cores(), help="of both (%(default)s)")
    parser.add_argument("--dtype", help="Plait's type of weights; default: Plait's own")
    parser.add_argument("--kv", type=int, choices=(16, 8), default=16, help="bits of keys and values (%(default)s)")
    parser.add_argument("--peer", metavar="DIR", type=Path, help="where its package lies; default: as installed")
    parser.add_argument("--calibrate", action="store_true", help="look for the peer's settings anew")
    parser.add_argument("--quick", action="store_true", help="one pair, 8 steps, prompts of 64, contexts to 1,024")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    for name in ("pairs", "passes", "prompt", "steps", "threads"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if options.quick:
        options.pairs, options.passes, options.prompt, options.steps = 1, 1, 64, 8
    return options


def main() -> None:
    options = arguments()
    wanted = tuple(options.only.split(",")) if options.only is not None else ("",)
    rows = [row for row in ROWS if row.name.startswith(wanted)]
    if options.list or not rows:
        print("\n".join(row.name for row in ROWS))
        sys.exit(0 if options.list else f"no line begins with {options.only}")
    options.place.mkdir(parents=True, exist_ok=True)
    lines = []
    for row in rows:
        line = measured(quick(row) if options.quick else row, options)
        lines.append(replace(line, name=row.name, reached=None if options.quick else line.reached))
        say("  ".join(cells(lines[-1])))
    if options.json:
        print(json.dumps([asdict(line) for line in lines], indent=2))
        return
    from plait.cli.common import print_table

    header = ("tokens/s, median (spread)", "plait", "llama.cpp", "ratio", "of bound", "bar", "reached")
    title = f"{options.threads} threads, {options.kv} bits of keys and values, {options.pairs} pairs"
    print_table([cells(line) for line in lines], title=title, header=header, right=(3, 4))
    for line in lines:
        if line.settings is not None:
            print(f"{line.name}: llama.cpp with {line.settings}")


if __name__ == "__main__":
    main()
