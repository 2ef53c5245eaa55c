"""`plait generate`: continue a prompt."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from plait.blueprint.catalog import DEMO
from plait.cli.common import BYTES, requires, threads_option, use_threads
from plait.errors import PlaitError, UsageError
from plait.units import binary_bytes

if TYPE_CHECKING:
    from plait.engine.events import Event, Result
    from plait.engine.plan import MemoryPlan

__all__ = ["closing_line", "command", "plan_lines"]


class _Progress:
    """A line on the terminal that is rewritten while work goes on; nothing in a pipe."""

    def __init__(self, label: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        self._bar = Progress(
            TextColumn(label),
            BarColumn(),
            TaskProgressColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task(label, total=None)

    def __call__(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)

    def start(self) -> None:
        self._bar.start()

    def stop(self) -> None:
        self._bar.stop()


@contextmanager
def _progress(label: str) -> Iterator[_Progress | None]:
    if not sys.stderr.isatty():
        yield None
        return
    bar = _Progress(label)
    bar.start()
    try:
        yield bar
    finally:
        bar.stop()


def _speed(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds:,.1f} tokens/s" if seconds > 0 else "-"


def closing_line(result: Result) -> str:
    """What was done and how fast."""
    usage, timing = result.usage, result.timing
    known = f" ({usage.reused} reused)" if usage.reused else ""
    parts = [f"prompt {usage.prompt} tokens{known}, {_speed(usage.prompt - usage.reused, timing.prompt_seconds)}"]
    if usage.completion > 1:
        # The first token comes with the prompt; the others are what decoding took.
        parts.append(f"decode {usage.completion} tokens, {_speed(usage.completion - 1, timing.decode_seconds)}")
    else:
        parts.append(f"decode {usage.completion} tokens")
    if usage.drafted:
        parts.append(f"{usage.accepted} of {usage.drafted} guessed tokens stood")
    ended = f"stop string {result.stop!r}" if result.stop is not None else result.finish_reason
    return "; ".join((*parts, f"ended by {ended}", f"seed {result.seed}"))


def plan_lines(plan: MemoryPlan) -> tuple[str, str]:
    """What the cap holds, and what comes beside it."""
    size = binary_bytes
    return (
        f"memory: of {size(plan.cap_bytes)} the weights take {size(plan.weights_bytes)}; {plan.length:,} tokens "
        f"reserve {size(plan.state_bytes)} of state and need {size(plan.state_need_bytes)} of it; "
        f"{size(plan.store_bytes)} are left for known prompts",
        f"beside the cap: the program, about {size(plan.scratch_bytes)} of scratch; {size(plan.loading_bytes)} at most "
        "while weights are read",
    )


def _show_plan(plan: MemoryPlan, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"event": "plan", **dataclasses.asdict(plan)}), flush=True)
    elif sys.stderr.isatty():
        print(*plan_lines(plan), sep="\n", file=sys.stderr)


def _print_text(events: Iterator[Event]) -> None:
    from plait.engine.events import Prefill, Result, Tail, Token

    in_line = False
    try:
        with _progress("prompt") as bar:
            for event in events:
                if isinstance(event, Prefill):
                    if bar is not None:
                        bar(event.done, event.total)
                        if event.done == event.total:
                            bar.stop()
                elif isinstance(event, Token | Tail):
                    sys.stdout.write(event.text)
                    sys.stdout.flush()
                    in_line = not event.text.endswith("\n") if event.text else in_line
                elif isinstance(event, Result):
                    sys.stdout.write("\n")
                    sys.stdout.flush()
                    print(closing_line(event), file=sys.stderr)
    except (KeyboardInterrupt, PlaitError):
        # What is said about the ending stands on a line of its own; a pipe keeps exactly the text.
        if in_line and sys.stdout.isatty():
            print(flush=True)
        raise


def _print_json(events: Iterator[Event]) -> None:
    for event in events:
        line = {"event": type(event).__name__.lower(), **dataclasses.asdict(event)}
        print(json.dumps(line), flush=True)


def _positionals(arguments: tuple[str, ...]) -> tuple[str, str]:
    """(model, prompt); one word is the prompt, on the demo model; `-` reads the prompt from standard input."""
    if len(arguments) > 2:
        raise UsageError(
            f"expected [MODEL] PROMPT, found {len(arguments)} arguments; put a prompt of several words in quotes"
        )
    model, prompt = arguments if len(arguments) == 2 else (DEMO, arguments[0])
    if prompt == "-":
        if sys.stdin is None:
            raise UsageError("standard input is closed; write the prompt as an argument")
        try:
            prompt = sys.stdin.buffer.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(f"standard input is not UTF-8 (byte {error.start})") from error
    if not prompt:
        raise UsageError("the prompt is empty; write at least one character")
    return model, prompt


@click.command(short_help="Continue a prompt.")
@click.argument("arguments", nargs=-1, required=True, metavar="[MODEL] PROMPT")
@click.option("-n", "--max-tokens", type=int, default=128, show_default=True, help="Tokens to generate at most.")
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0: always the most probable token.")
@click.option("--top-k", type=int, default=None, help="Choose among the k most probable tokens.  [default: off]")
@click.option(
    "--top-p", type=float, default=1.0, show_default=True, help="Choose among the tokens that make up this share."
)
@click.option(
    "--min-p",
    type=float,
    default=0.0,
    show_default=True,
    help="Drop tokens below this share of the best one's probability.",
)
@click.option(
    "--repetition-penalty",
    type=float,
    default=1.0,
    show_default=True,
    help="Divides the scores of tokens generated before.",
)
@click.option(
    "--presence-penalty",
    type=float,
    default=0.0,
    show_default=True,
    help="Taken off the scores of tokens generated before.",
)
@click.option(
    "--frequency-penalty",
    type=float,
    default=0.0,
    show_default=True,
    help="Taken off once for each time a token was generated.",
)
@click.option("--seed", type=int, default=None, help="Same seed, same request: same text.  [default: a fresh one]")
@click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; may be given several times.")
@click.option("--ignore-eos", is_flag=True, help="Go on after end-of-text tokens.")
@click.option("--plain", is_flag=True, help="Control tokens written in the prompt stay text.")
@click.option(
    "--dtype",
    default="stored",
    show_default=True,
    help="Type of weights: stored (as in the file where kernels read that), stored8 (the same with inputs of 8 bits, "
    "bf16 beside bf16: long prompts faster, less exact), float32, bfloat16, float16, float64.",
)
@click.option(
    "--kv-dtype",
    help="Type keys and values are stored in: those of --dtype, or int8 (blocks of 32).  [default: as --dtype, "
    "float32 for stored]",
)
@click.option("--device", default="cpu", show_default=True, help="Any torch device; bits are only promised on the CPU.")
@threads_option
@click.option(
    "--memory",
    type=BYTES,
    default=None,
    metavar="SIZE",
    help="Refuse to need more than this for weights and state, e.g. 8GiB; what that makes is shown first.",
)
@click.option(
    "--cache",
    type=BYTES,
    default=None,
    metavar="SIZE",
    help="State of the prompt and answer to keep while the process lives; 0: none.  Default: 2GiB.",
)
@click.option(
    "--speculate",
    type=click.IntRange(0, 32),
    default=0,
    metavar="N",
    help="Guess up to N tokens ahead where the text repeats itself: changes the speed, never the text.  [default: 0]",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per event and line.")
def command(
    arguments: tuple[str, ...],
    max_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float,
    min_p: float,
    repetition_penalty: float,
    presence_penalty: float,
    frequency_penalty: float,
    seed: int | None,
    stop: tuple[str, ...],
    ignore_eos: bool,
    plain: bool,
    dtype: str,
    kv_dtype: str | None,
    device: str,
    threads: int | None,
    memory: int | None,
    cache: int | None,
    speculate: int,
    as_json: bool,
) -> None:
    """Continue PROMPT with MODEL and stream the text.

    MODEL is a catalogue name, a directory or a .gguf file (the weights of a hub id are not downloaded); without it the
    demo model runs (Gemma 3 270M, a base model: it continues texts and does not chat). PROMPT `-` reads standard input.
    """
    model, prompt = _positionals(arguments)
    with requires("run"):
        use_threads(threads)
        from plait.engine.load import CACHE, opened
        from plait.engine.sampling import Sampling
        from plait.runtime.kernels import built
    if device == "cpu" and not built():
        print(
            "plait: note: installed without its native kernels (they need a C++20 compiler); torch computes",
            file=sys.stderr,
        )
    sampling = Sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        seed=seed,
    )
    found = opened(
        model,
        dtype=dtype,
        kv_dtype=kv_dtype,
        device=device,
        memory=memory,
        cache=CACHE if cache is None else cache,
        speculate=speculate,
    )
    if memory is not None:
        plan = found.plan(len(found.tokens(prompt, markup=not plain)) + max(1, max_tokens))
        assert plan is not None
        _show_plan(plan, as_json)
    with _progress("loading") as bar:
        engine = found.engine(bar)
    events = engine.generate(
        prompt, sampling=sampling, max_tokens=max_tokens, stop=stop, markup=not plain, ignore_eos=ignore_eos
    )
    (_print_json if as_json else _print_text)(events)
