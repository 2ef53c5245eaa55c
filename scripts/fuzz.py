"""Throws damaged configs and GGUF headers at the commands that read them.

    python scripts/fuzz.py --count 100000 --seed 1     run cases 0 .. 99999
    python scripts/fuzz.py --seed 1 --case 417         run one case, show it and keep nothing

A case is a function of seed and number: a config of the catalogue or a GGUF header made from it, damaged in one to
four places. It must end in an answer of every reading command or in one error of one line. Anything else is a finding:
another exception, a message of several lines, output that is no JSON or holds control characters, a step of more than
two seconds of this process's time, or more than 200 MiB of memory. Exit status 1 where there is a finding.
"""

from __future__ import annotations

import argparse
import io
import json
import resource
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from random import Random
from types import FrameType
from typing import Final

from click import ClickException
from fuzz_cases import case

from plait.blueprint.source import Sketch, Source, describe
from plait.cli.main import main as plait
from plait.errors import PlaitError, UserError

SECONDS: Final = 2.0
GROWTH: Final = 200 * 2**20
LINE: Final = 20_000


class Hang(BaseException):
    """The time of a case is over; no handler of errors catches it."""


class Broken(Exception):
    """What came out is not what a user may see."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """At most so many seconds of this process's own time."""

    def stop(_: int, __: FrameType | None) -> None:
        raise Hang(f"more than {seconds:g} seconds")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def one_line(error: PlaitError) -> None:
    """The error's message is one line that can be shown."""
    text = str(error)
    if not isinstance(error, UserError) or not text.strip() or len(text.splitlines()) != 1:
        raise Broken(f"a message of {len(text.splitlines())} lines: {type(error).__name__}: {text!r:.300}")
    if len(text) > LINE:
        raise Broken(f"a message of {len(text)} characters: {text[:300]!r}")


@cache
def screen() -> io.StringIO:
    """What commands print on. There is one: the command-line library keeps every stream it ever printed on."""
    return io.StringIO()


def run_command(arguments: Sequence[str]) -> str:
    """What `plait ...` prints; PlaitError as it is raised."""
    out = screen()
    out.seek(0)
    out.truncate()
    with redirect_stdout(out), redirect_stderr(out):
        plait(list(arguments), standalone_mode=False)
    return out.getvalue()


def _constant(word: str) -> None:
    raise Broken(f"JSON with {word}")


def commands(path: Path, found: Source | Sketch, rng: Random) -> Iterator[tuple[str, ...]]:
    """The commands a survivor is shown to, each in one of its forms."""
    name = str(path)
    context = str(rng.choice((1, 100, 32_768, 2**20)))
    kv = rng.choice(("bf16", "q8", "f32"))
    budget = rng.choice(((), ("--budget", rng.choice(("1B", "8GiB", "1000TiB"))))) if isinstance(found, Source) else ()
    yield ("inspect", name, *rng.choice(((), ("--coverage", "--evidence"), ("--json",))))
    yield ("params", name, *rng.choice(((), ("--json",))))
    yield ("memory", name, "--context", context, "--kv-dtype", kv, *budget, *rng.choice(((), ("--json",))))


def attempt(path: Path, rng: Random, seconds: float) -> str:
    """`read`, `sketch` or `refused`; raises what is a finding. Each step has its own time."""
    try:
        with limited(seconds):
            found = describe(path)
    except PlaitError as error:
        one_line(error)
        return "refused"
    for arguments in commands(path, found, rng):
        try:
            with limited(seconds):
                text = run_command(arguments)
        except PlaitError as error:
            one_line(error)
            # Understood and then refused is right only for a family that is not known, and for contradictory files.
            continue
        except ClickException as error:
            raise Broken(f"{arguments[0]}: {error.format_message()}") from error
        if "--json" in arguments:
            json.loads(text, parse_constant=_constant)
        elif not text.replace("\n", "").isprintable():
            raise Broken(f"{arguments[0]}: output that can steer a terminal: {text!r:.300}")
    return "read" if isinstance(found, Source) else "sketch"


def peak() -> int:
    """The most memory this process held, in bytes."""
    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found if sys.platform == "darwin" else found * 1024


@contextmanager
def bounded(growth: int) -> Iterator[None]:
    """Memory this process may grow by; where the system does not tell its size, nothing is bounded."""
    size = Path("/proc/self/statm")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if size.exists():
        now = int(size.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + growth, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@dataclass(frozen=True, slots=True)
class Finding:
    """A case that ended wrongly."""

    number: int
    what: str
    where: str
    trace: str


@dataclass
class Report:
    """How the cases ended."""

    endings: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)


def _finding(number: int, error: BaseException) -> Finding:
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if "plait" in Path(frame.filename).parts] or list(frames)
    where = f"{Path(inside[-1].filename).name}:{inside[-1].lineno}"
    trace = "".join(traceback.format_exception(error, limit=-12))
    return Finding(number, f"{type(error).__name__}: {str(error)[:200]!r}", where, trace)


def run(
    numbers: Sequence[int],
    seed: int,
    *,
    trial: Callable[[Path, Random, float], str] = attempt,
    seconds: float = SECONDS,
    progress: Callable[[int, Report], None] | None = None,
) -> Report:
    """Run cases of a seed."""
    report = Report()
    with tempfile.TemporaryDirectory(prefix="plait-fuzz-") as directory:
        for number in numbers:
            name, raw = case(seed, number)
            path = Path(directory) / name
            path.write_bytes(raw)
            try:
                report.endings[trial(path, Random(f"{seed}:{number}:trial"), seconds)] += 1
            except (Exception, Hang) as error:
                report.endings["finding"] += 1
                report.findings.append(_finding(number, error))
            path.unlink()
            if progress is not None:
                progress(number, report)
    return report


def _show(report: Report, grown: int) -> None:
    kinds: dict[tuple[str, str], list[Finding]] = {}
    for finding in report.findings:
        kinds.setdefault((finding.what.split(":")[0], finding.where), []).append(finding)
    for (_, where), alike in sorted(kinds.items(), key=lambda item: -len(item[1])):
        cases = ", ".join(str(finding.number) for finding in alike[:3])
        print(f"{len(alike)} x {where}: {alike[0].what} (cases {cases})")
    endings = ", ".join(f"{n} {ending}" for ending, n in sorted(report.endings.items()))
    print(f"{sum(report.endings.values())} cases: {endings}; memory grew by {grown / 2**20:.0f} MiB")


def _progress(total: int, number: int, report: Report) -> None:
    if sys.stderr.isatty() and number % 100 == 0:
        print(f"\r{number} of {total}, {len(report.findings)} findings", end="", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Throw damaged configs and GGUF headers at the reading commands.")
    parser.add_argument("--count", type=int, default=1000, help="number of cases (default 1000)")
    parser.add_argument("--seed", type=int, default=0, help="cases are a function of it (default 0)")
    parser.add_argument("--case", type=int, help="run this case alone and show its file and its error")
    asked = parser.parse_args(arguments)
    run(range(40), asked.seed)  # whatever is loaded once is loaded before memory is measured
    before = peak()
    numbers = range(asked.count) if asked.case is None else range(asked.case, asked.case + 1)
    with bounded(GROWTH):
        report = run(numbers, asked.seed, progress=partial(_progress, len(numbers)))
    if asked.case is not None:
        name, raw = case(asked.seed, asked.case)
        print(f"{name}, {len(raw)} bytes:", raw[:100_000])
        for finding in report.findings:
            print(finding.trace)
    grown = peak() - before
    if grown > GROWTH:
        report.findings.append(Finding(-1, f"memory grew by {grown} bytes", "process", ""))
    _show(report, grown)
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
