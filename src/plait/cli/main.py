"""`plait`: the table of commands, and how errors become one line and an exit status.

Exit status: 0 success; 1 a failure; 2 bad usage or bad input; 130 interrupted; 141 the reader of the output left.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from io import TextIOWrapper
from types import MappingProxyType
from typing import Final, NoReturn

import click

from plait import __version__
from plait.errors import PlaitError

__all__ = ["COMMANDS", "main", "run"]

_COMPLETION: Final = "_PLAIT_COMPLETE"

# Name -> (module that holds `command`, help of one line): nothing is imported to list them.
COMMANDS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "models": ("plait.cli.models", "List the catalogue of known models."),
        "inspect": ("plait.cli.inspect", "Show what a model is: layers, rotation, norms, evidence."),
        "params": ("plait.cli.params", "Count parameters: in the file, used, active per token."),
        "memory": ("plait.cli.memory", "Count the memory of a model's state at a context."),
        "flops": ("plait.cli.flops", "Count the FLOPs of prefill and decode; bound tokens per second."),
        "compare": ("plait.cli.compare", "Compare models: what differs, what it costs, how it looks."),
        "explore": ("plait.cli.explore", "Explore the catalogue in the browser, offline."),
        "draw": ("plait.cli.draw", "Draw a model: the whole of it, or the inside of its layers."),
        "generate": ("plait.cli.generate", "Continue a prompt."),
        "bench": ("plait.cli.bench", "Measure how fast a model runs here."),
        "cache": ("plait.cli.cache", "Explain what the prefix store reuses of prompts."),
        "chat": ("plait.cli.chat", "Talk with a model, or check its chat template."),
        "serve": ("plait.cli.serve", "Serve a model over HTTP, as the OpenAI API."),
        "random": ("plait.cli.random", "Write a random checkpoint of a config."),
        "slice": ("plait.cli.slice", "Write a smaller model out of one with nested widths."),
        "verify": ("plait.cli.verify", "Try whether the invariants hold for a model."),
    }
)


class _Commands(click.Group):
    """A group that imports a command's module when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="MODEL is a catalogue name, a directory with a config.json, a config.json, a .gguf file, or an id of a "
    "model hub: org/name, org/name@revision, org/name:file.gguf. Of a hub configs and headers are read, never weights.",
)
@click.version_option(__version__, "--version", prog_name="plait", message="%(prog)s %(version)s")
def main() -> None:
    """Reads, explains and runs hybrid-attention language models."""


def _say(text: str) -> None:
    """One line on stderr, whatever the message holds; nothing where stderr is gone."""
    line = " ".join(text.split())
    try:
        print(f"plait: {line}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return


def _usage(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = f" (see `{context.command_path} --help`)" if context is not None else ""
    return f"error: {error.format_message()}{hint}"


def _silence_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush does not fail."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        return


def _invoke(arguments: Sequence[str]) -> int:
    instruction = os.environ.get(_COMPLETION)
    if instruction:
        from click.shell_completion import shell_complete

        return shell_complete(main, {}, "plait", _COMPLETION, instruction)
    try:
        with main.make_context("plait", list(arguments)) as context:
            main.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as leave:
        sys.stdout.flush()
        return leave.exit_code
    return 0


def _status(arguments: Sequence[str]) -> int:
    """Run a command line; every ending but success says one line on stderr."""
    try:
        return _invoke(arguments)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return error.exit_code
    except click.ClickException as error:
        _say(_usage(error))
        return error.exit_code
    except PlaitError as error:
        _say(f"error: {error}")
        return error.exit_status
    except (KeyboardInterrupt, click.Abort):
        _say("interrupted")
        return 128 + signal.SIGINT
    except BrokenPipeError:
        _silence_stdout()
        return 128 + 13
    except OSError as error:
        _silence_stdout()
        _say(f"error: {error.filename or 'output'}: {error.strerror or error}")
        return 1
    except Exception as error:
        if os.environ.get("PLAIT_TRACEBACK"):
            traceback.print_exc()
        _say(f"internal error: {type(error).__name__}: {error} (set PLAIT_TRACEBACK=1 for the traceback)")
        return 1


def run() -> NoReturn:
    """The program: the command line of this process, then its exit."""
    # A stream that was closed before the start is None; what is written there is lost.
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (open until the process ends)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):
        # A terminal of another encoding shows an escape for what it cannot write.
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(_status(sys.argv[1:]))
