"""The page over HTTP on this machine alone, for a browser that cannot reach its file."""

from __future__ import annotations

from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from plait.errors import PlaitError, fault

__all__ = ["server_of"]

_HOST: Final = "127.0.0.1"


def server_of(path: Path, port: int) -> ThreadingHTTPServer:
    """A server that answers with the page and nothing else; port 0: a free one.

    PlaitError: the port cannot be had.
    """
    content = path.read_bytes()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def _answer(self, *, body: bool) -> None:
            if self.path.split("?")[0] not in ("/", "/index.html"):
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_request(self, code: object = "-", size: object = "-") -> None:
            """Nothing: the terminal is the user's."""

    try:
        return ThreadingHTTPServer((_HOST, port), Handler)
    except OSError as error:
        what = f"port {port} cannot be had ({error.strerror})"
        raise PlaitError(fault(what, advice="name another with --port, or 0 for a free one")) from error
