"""`plait chat`: talk with a model in the terminal, or check its chat template."""

from __future__ import annotations

import json
import sys
from types import MappingProxyType
from typing import Final

import click

from plait.cli.common import BYTES, requires, use_threads
from plait.cli.generate import command as generate
from plait.errors import UsageError, fault

__all__ = ["command"]

# Options that mean the same as in `plait generate` are the same.
_SHARED: Final = (
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
    "dtype",
    "kv_dtype",
    "device",
    "speculate",
    "threads",
)
_SAMPLING: Final = _SHARED[1:9]
_LOADING: Final = ("dtype", "kv_dtype", "device", "speculate")
_OWN: Final = (
    click.Argument(["model"]),
    click.Option(["-s", "--system"], metavar="TEXT", help="Instructions that go before the chat."),
    click.Option(["--template"], metavar="NAME", help="One of the model's chat templates.  [default: its usual one]"),
    click.Option(
        ["--set", "settings"],
        multiple=True,
        metavar="NAME=VALUE",
        help="A variable of the template, for example enable_thinking=false; may be given several times.",
    ),
    click.Option(
        ["--memory"], type=BYTES, metavar="SIZE", help="Refuse to need more than this for weights and state, e.g. 8GiB."
    ),
    click.Option(
        ["--cache"],
        type=BYTES,
        metavar="SIZE",
        help="State of earlier turns to keep for later ones; 0: none.  Default: 2GiB.",
    ),
    click.Option(["--lint"], is_flag=True, help="Check the chat template instead; needs no weights."),
    click.Option(["--json", "as_json"], is_flag=True, help="Print JSON (with --lint)."),
)


def _from_generate() -> list[click.Parameter]:
    known = {option.name: option for option in generate.params}
    return [known[name] for name in _SHARED]


def variable(text: str) -> tuple[str, object]:
    """NAME=VALUE of a template's variable; the value is JSON, or else text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(fault("setting", expected="NAME=VALUE", found=repr(text)))
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


@click.command(params=[*_OWN, *_from_generate()], short_help="Talk with a model, or check its chat template.")
def command(
    model: str,
    system: str | None,
    template: str | None,
    settings: tuple[str, ...],
    lint: bool,
    as_json: bool,
    max_tokens: int,
    stop: tuple[str, ...],
    memory: int | None,
    cache: int | None,
    threads: int | None,
    **options: object,
) -> None:
    """Chat with MODEL in the terminal.

    MODEL is a directory, a .gguf file, or a catalogue name whose weights come in a package. Lines from a pipe are
    messages too, one each; then the answers alone go to standard output. /help in the chat lists its commands.
    With --lint MODEL may also be a .jinja file or a tokenizer_config.json. Nothing is generated, the template is
    checked: whether a turn is the beginning of the next one, what it takes, and how a prompt ends.
    """
    variables = dict(map(variable, settings))
    if lint:
        if variables or system is not None or stop:
            raise UsageError("--lint checks the template itself; it takes no --set, --system or --stop")
        with requires("run"):
            from plait.cli.chat_lint import print_lint
        print_lint(model, template, as_json=as_json)
        return
    if as_json:
        raise UsageError("--json goes with --lint; `plait generate --json` prints events")
    if sys.stdin is None:
        raise UsageError("standard input is closed; messages are read from it")
    with requires("run"):
        use_threads(threads)
        from plait.cli.chat_repl import Chat, talk
        from plait.engine.load import CACHE, load
        from plait.engine.sampling import Sampling
    from plait.cli.generate import _progress

    loading = {name: options[name] for name in _LOADING}
    sampling = Sampling(**{name: options[name] for name in _SAMPLING})  # type: ignore[arg-type]
    kept = CACHE if cache is None else cache
    with _progress("loading") as bar:
        engine = load(model, **loading, memory=memory, cache=kept, progress=bar)  # type: ignore[arg-type]
    chat = Chat(
        engine,
        sampling=sampling,
        max_tokens=max_tokens,
        stop=stop,
        system=system,
        template=template,
        variables=MappingProxyType(variables),
    )
    talk(chat)
