"""Running the application: a socket, signals, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Final

import uvicorn
from starlette.applications import Starlette

from plait.errors import PlaitError, UsageError, fault
from plait.server.lifecycle import Lifecycle

__all__ = ["address_of", "bound", "run"]

_BACKLOG: Final = 512
_LAST_WORDS: Final = 10.0  # seconds for answers that were cut off to be sent
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def bound(host: str, port: int) -> socket.socket:
    """A socket at the address, not listening yet; port 0 takes a free one. PlaitError: the address cannot be had."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise UsageError(fault("host", expected="a name or address of this machine", found=repr(host))) from error
    family, kind, protocol, _, address = found[0]
    made = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        made.close()
        reason = (error.strerror or str(error)).lower()
        raise PlaitError(f"{host} port {port}: {reason}; another one is given with --port") from error
    return made


def address_of(listener: socket.socket) -> str:
    """`http://host:port` of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """Signals are not its own: it runs until it is told."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()


def run(app: Starlette, lifecycle: Lifecycle, listener: socket.socket, ready: Callable[[], None]) -> bool:
    """Serve until a signal, then end in order. True: a second signal asked to end at once.

    SIGTERM and SIGINT end it: no more work is taken, what runs has `lifecycle.grace` seconds, then it is cut off.
    ready  called when requests are answered
    """
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config, ready)
    # It warns of every reader that left before its answer ended; errors it still says.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    return asyncio.run(_served(server, lifecycle, listener))


async def _served(server: _Server, lifecycle: Lifecycle, listener: socket.socket) -> bool:
    told = asyncio.Event()
    told_again = asyncio.Event()

    def tell() -> None:
        (told_again if told.is_set() else told).set()

    with _handled(tell):
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        waiting = asyncio.create_task(told.wait())
        await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        ending = asyncio.create_task(_ended(lifecycle))
        again = asyncio.create_task(told_again.wait())
        await asyncio.wait({ending, again}, return_when=asyncio.FIRST_COMPLETED)
        if told_again.is_set():
            lifecycle.halt()
            server.force_exit = True
            # A moment for the last words of what is cut off.
            await lifecycle.finished(0.2)
        server.should_exit = True
        ending.cancel()
        again.cancel()
        await asyncio.gather(ending, again, return_exceptions=True)
        await serving
        return told_again.is_set()


async def _ended(lifecycle: Lifecycle) -> None:
    lifecycle.drain()
    if not await lifecycle.finished(lifecycle.grace):
        lifecycle.halt()
        await lifecycle.finished(_LAST_WORDS)


@contextlib.contextmanager
def _handled(tell: Callable[[], None]) -> Iterator[None]:
    """Both signals call `tell` in the event loop."""
    loop = asyncio.get_running_loop()
    before = {number: signal.signal(number, lambda *_: loop.call_soon_threadsafe(tell)) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        sys.stdout.flush()
