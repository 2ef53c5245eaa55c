"""`plait serve`: a model behind the OpenAI API."""

from __future__ import annotations

import dataclasses
import os
import sys
from contextlib import closing
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Final

import click

from plait.cli.common import BYTES, TOKENS, requires, threads_option, use_threads
from plait.errors import TokenizerError, UsageError, fault
from plait.units import binary_bytes

if TYPE_CHECKING:
    from plait.engine.engine import Engine
    from plait.engine.load import Opened
    from plait.server.settings import Settings

__all__ = ["command"]

_KEY: Final = "PLAIT_API_KEY"
_LOCAL: Final = ("127.", "::1", "localhost")


def _with_template(found: Opened, file: Path) -> Opened:
    """The model with another chat template; special tokens are the model's."""
    from plait.engine.chat.read import Templates, read_templates

    if not file.is_file():
        raise UsageError(fault("no such file", file=file, expected="a .jinja file or a tokenizer_config.json"))
    read = read_templates(file)
    own = {} if isinstance(found.templates, TokenizerError) else dict(found.templates.special)
    return dataclasses.replace(found, own_templates=Templates(read.file, read.texts, {**own, **read.special}))


def _named(model: str) -> str:
    """What requests call MODEL: its name in the catalogue, or that of its file or directory."""
    path = Path(model)
    if not path.exists():
        return model
    return path.resolve().name if path.is_dir() else path.stem


def _ready_lines(engine: Engine, address: str, settings: Settings, found: Opened) -> list[str]:
    size = binary_bytes
    context = engine.blueprint.max_context
    cap = f"of {size(found.cap)} " if found.cap is not None else ""
    lines = [
        f"plait: {settings.name} is served at {address}/v1",
        f"plait: memory: {cap}the weights take {size(engine.model.weight_bytes)}, a sequence at the full context of "
        f"{context:,} tokens {size(engine.cap.most(context))}, known prompts at most "
        f"{size(engine.prefixes.store.budget)}; {found.sequences} requests run at once, {found.queue} may wait",
    ]
    if settings.share is not None and settings.share < context and settings.max_tokens is None:
        lines.append(f"plait: chats that do not say max_tokens end at {settings.share:,} tokens, so that all fit")
    return lines


@click.command(short_help="Serve a model over HTTP, as the OpenAI API.")
@click.argument("model")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at; 0.0.0.0: every one.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: a free one.")
@click.option(
    "--served-name",
    default=None,
    metavar="NAME",
    help="What requests call the model.  [default: that of the catalogue, the file or directory]",
)
@click.option(
    "--api-key", default=None, metavar="KEY", help=f"Requests must bring it; better given as {_KEY} in the environment."
)
@click.option("--cors-origin", multiple=True, metavar="ORIGIN", help="Web pages from there may call; `*`: all.")
@click.option("--chat-template", type=click.Path(path_type=Path), metavar="FILE", help="Instead of the model's own.")
@click.option(
    "--max-tokens",
    type=TOKENS,
    default=None,
    help="For requests that do not say.  [default: 16 for completions, the rest of the context for chats]",
)
@click.option(
    "--sequences", type=click.IntRange(min=1), default=None, help="Requests to work on at once.  [default: 8]"
)
@click.option("--queue", type=click.IntRange(min=0), default=None, help="Requests that may wait.  [default: 64]")
@click.option(
    "--grace", type=click.FloatRange(min=0), default=30.0, show_default=True, metavar="SECONDS",
    help="What runs may take to end after a first SIGTERM or SIGINT.",
)  # fmt: skip
@click.option(
    "--stall", type=click.FloatRange(min=0, min_open=True), default=120.0, show_default=True, metavar="SECONDS",
    help="/health fails when there is work and the engine makes no step for so long.",
)  # fmt: skip
@click.option(
    "--speculate", type=click.IntRange(0, 32), default=0, show_default=True, metavar="N",
    help="Guess up to N tokens ahead where a text repeats itself: changes the speed, never the text.",
)  # fmt: skip
@click.option("--dtype", default="stored", show_default=True, help="Type of weights, as in generate.")
@click.option("--kv-dtype", default=None, help="Type keys and values are stored in, as in generate.")
@click.option("--device", default="cpu", show_default=True, help="Any torch device; bits are only promised on the CPU.")
@threads_option
@click.option(
    "--memory", type=BYTES, default=None, metavar="SIZE", help="Cap on weights and state of all requests, e.g. 8GiB."
)
@click.option(
    "--cache", type=BYTES, default=None, metavar="SIZE", help="State of earlier prompts to keep.  Default: 2GiB."
)
def command(
    model: str,
    host: str,
    port: int,
    served_name: str | None,
    api_key: str | None,
    cors_origin: tuple[str, ...],
    chat_template: Path | None,
    max_tokens: int | None,
    sequences: int | None,
    queue: int | None,
    grace: float,
    stall: float,
    speculate: int,
    dtype: str,
    kv_dtype: str | None,
    device: str,
    threads: int | None,
    memory: int | None,
    cache: int | None,
) -> None:
    """Serve MODEL over HTTP: /v1/completions, /v1/chat/completions and /v1/models of the OpenAI API.

    MODEL is a catalogue name, a directory or a .gguf file. A line on standard output says when it is ready, and where.
    SIGTERM or Ctrl-C: new requests are refused, what runs may end; a second one ends at once.
    """
    with requires("run"):
        use_threads(threads)
    with requires("serve"):
        from plait.engine.engine import QUEUE, SEQUENCES
        from plait.engine.load import CACHE, opened
        from plait.server.app import application
        from plait.server.lifecycle import Lifecycle
        from plait.server.run import address_of, bound, run
        from plait.server.settings import Settings
        from plait.server.share import share
    from plait.cli.generate import _progress

    key = api_key if api_key is not None else os.environ.get(_KEY)
    if key is not None and not key.strip():
        raise UsageError(fault("API key", expected="at least one character", found="none"))
    if max_tokens is not None and max_tokens < 1:
        raise UsageError(fault("--max-tokens", expected="at least 1", found=max_tokens))
    if served_name is not None and not served_name.strip():
        raise UsageError(fault("--served-name", expected="at least one character", found="none"))
    with closing(bound(host, port)) as listener:
        found = opened(
            model,
            dtype=dtype,
            kv_dtype=kv_dtype,
            device=device,
            memory=memory,
            cache=CACHE if cache is None else cache,
            queue=QUEUE if queue is None else queue,
            sequences=SEQUENCES if sequences is None else sequences,
            speculate=speculate,
        )
        if chat_template is not None:
            found = _with_template(found, chat_template)
        with _progress("loading") as bar:
            engine = found.engine(bar)
        if chat_template is not None:
            engine.chats.format  # noqa: B018  (a template that cannot be used is said before anybody asks)
        name = served_name if served_name is not None else _named(model)
        settings = Settings(
            name=name,
            created=int(time()),
            choices=found.queue + found.sequences,
            api_key=key,
            cors_origins=cors_origin,
            max_tokens=max_tokens,
            share=share(engine, found.cap, found.sequences) if found.cap is not None else None,
            places=tuple(str(place) for place in (found.source.path, chat_template) if place is not None),
            stall_seconds=stall,
        )
        lifecycle = Lifecycle(grace)

        def ready() -> None:
            print(*_ready_lines(engine, address_of(listener), settings, found), sep="\n", flush=True)
            if key is None and not host.startswith(_LOCAL):
                print("plait: note: no --api-key: whoever reaches this address may use it", file=sys.stderr, flush=True)

        at_once = run(application(engine, settings, lifecycle), lifecycle, listener, ready)
        if at_once:
            # A step of the engine may take long, and nobody waits for it.
            os._exit(0)
        engine.close()
