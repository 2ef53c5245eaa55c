"""Small reads from a model hub: whole little files, and byte ranges of large ones. Standard library only.

The package `huggingface_hub` would bring httpx, tqdm, PyYAML and a cache of whole files to an installation that
reads a few kilobytes; here every read is bounded in bytes, in time and in redirects, and nothing is stored.

    HF_ENDPOINT                     the server, https://huggingface.co where it is not set
    HF_TOKEN                        an access token; sent to that server only, never along a redirect to another
    PLAIT_OFFLINE, HF_HUB_OFFLINE   set to 1: no request is made
    http_proxy, https_proxy, no_proxy   as Python's urllib reads them
"""

from __future__ import annotations

import http.client
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from typing import Any, Final
from urllib.parse import SplitResult, urljoin, urlsplit

from plait.errors import ModelNotFound, PlaitError, UsageError, fault

__all__ = ["Absent", "Answer", "Transport", "offline"]

_ENDPOINT: Final = "https://huggingface.co"
_TRUE: Final = ("1", "on", "true", "yes")
_MAX_REDIRECTS: Final = 5
_PIECE: Final = 2**16
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_RANGE: Final = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
_DIGITS: Final = re.compile(r"[0-9]{1,18}")
_TOKEN: Final = re.compile(r"[!-~]+")


class Absent(Exception):
    """The server has no such file. `code` is its own word for what is missing, empty where it gave none."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True)
class Answer:
    """Bytes of a file.

    size    bytes of the whole file
    commit  the revision the server answered from, None where it does not say
    """

    body: bytes
    size: int
    commit: str | None


class _AsIs(urllib.request.HTTPErrorProcessor):
    """Every answer comes back as it is: errors and redirects are for `Transport` to judge."""

    def http_response(self, request: urllib.request.Request, response: Any) -> Any:
        """The answer itself."""
        return response

    https_response = http_response


def offline(environment: Mapping[str, str]) -> str | None:
    """The variable that forbids requests, None where none does."""
    for name in ("PLAIT_OFFLINE", "HF_HUB_OFFLINE"):
        if environment.get(name, "").strip().lower() in _TRUE:
            return name
    return None


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    port = parts.port if parts.port is not None else {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname, port


def _header(headers: Message, name: str) -> str:
    value = headers.get(name)
    return value.strip() if isinstance(value, str) else ""


class Transport:
    """Requests to one server.

    endpoint  http or https, host, and a path where the server lies below one; UsageError for anything else
    token     sent as a bearer token to the endpoint's own scheme, host and port
    timeout   seconds the server may stay silent
    deadline  seconds one answer may take
    """

    def __init__(
        self, endpoint: str = _ENDPOINT, token: str | None = None, *, timeout: float = 10.0, deadline: float = 120.0
    ) -> None:
        self.endpoint = endpoint.rstrip("/")
        try:
            parts = urlsplit(self.endpoint)
            self._home = _origin(parts)
            sound = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query + parts.fragment
        except ValueError:
            sound = False
        if not sound or not self.endpoint.isascii() or not self.endpoint.isprintable() or " " in self.endpoint:
            raise UsageError(fault("HF_ENDPOINT", expected="a URL like https://huggingface.co", found=repr(endpoint)))
        if token is not None and not _TOKEN.fullmatch(token):
            raise UsageError(fault("HF_TOKEN", expected="printable ASCII without spaces", found="something else"))
        self._token = token
        self._timeout, self._deadline = timeout, deadline
        self._opener = urllib.request.build_opener(_AsIs())

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Transport:
        """The server that HF_ENDPOINT names, with the token of HF_TOKEN; ModelNotFound where requests are forbidden."""
        forbidden = offline(environment)
        if forbidden is not None:
            raise ModelNotFound(f"no request is made to the model hub, because {forbidden} is set")
        token = environment.get("HF_TOKEN", "").strip()
        return cls(environment.get("HF_ENDPOINT", "").strip() or _ENDPOINT, token or None)

    def whole(self, path: str, *, limit: int) -> Answer:
        """A file of at most `limit` bytes. Absent: there is none. PlaitError: a failure, in one line."""
        with self._open(path, {}) as (response, deadline):
            stated = _header(response.headers, "Content-Length")
            length = int(stated) if _DIGITS.fullmatch(stated) else None
            if length is not None and length > limit:
                raise self._fault(path, "the file is too large", f"at most {limit} bytes", f"{length} bytes")
            body = self._body(response, path, deadline, limit + 1 if length is None else length)
            if len(body) > limit:
                raise self._fault(path, "the file is too large", f"at most {limit} bytes", "more")
            if length is not None and len(body) != length:
                raise self._fault(path, "the answer is cut short", f"{length} bytes", f"{len(body)} bytes", "try again")
            return Answer(body, len(body), self._commit(response.headers))

    def range(self, path: str, start: int, stop: int) -> Answer:
        """Bytes [start, stop) of a file, fewer where it ends before; a server that would send it all is refused."""
        with self._open(path, {"Range": f"bytes={start}-{stop - 1}"}) as (response, deadline):
            if response.status != 206:
                what = "the server does not honour byte ranges, and the whole file is not downloaded"
                advice = "download the model and name its directory"
                raise self._fault(path, what, "status 206", response.status, advice)
            stated = _header(response.headers, "Content-Range")
            match = _RANGE.fullmatch(stated)
            first, last, size = (int(match[i]) for i in (1, 2, 3)) if match is not None else (-1, -1, -1)
            if match is None or first != start or last != min(stop, size) - 1 or last < first:
                raise self._fault(path, "header 'Content-Range'", f"bytes {start}-{stop - 1} of the file", repr(stated))
            length = last + 1 - first
            body = self._body(response, path, deadline, length + 1)
            if len(body) != length:
                found = f"{len(body)} bytes" if len(body) < length else "more"
                raise self._fault(path, "the answer has the wrong length", f"{length} bytes", found, "try again")
            return Answer(body, size, self._commit(response.headers))

    # -- one request -------------------------------------------------------------------------------------------

    def _fault(
        self, path: str, what: str, expected: object = None, found: object = None, advice: str | None = None
    ) -> PlaitError:
        return PlaitError(fault(what, file=f"{self.endpoint}/{path}", expected=expected, found=found, advice=advice))

    def _open(self, path: str, headers: Mapping[str, str]) -> _Opened:
        """The answer after its redirects; Absent for 404, ModelNotFound for 401 and 403, PlaitError for the rest."""
        url = f"{self.endpoint}/{path}"
        deadline = time.monotonic() + self._deadline
        for _ in range(_MAX_REDIRECTS + 1):
            response = self._ask(path, url, headers)
            if response.status not in _REDIRECTS:
                return _Opened(self._judged(path, response), deadline)
            with response:
                url = self._next(path, url, _header(response.headers, "Location"))
        raise self._fault(path, "the server redirects without end", f"at most {_MAX_REDIRECTS} redirects")

    def _ask(self, path: str, url: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        sent = {"Accept-Encoding": "identity", "User-Agent": "plait", **headers}
        try:
            if self._token is not None and _origin(urlsplit(url)) == self._home:
                sent["Authorization"] = f"Bearer {self._token}"
            request = urllib.request.Request(url, headers=sent)
            answer = self._opener.open(request, timeout=self._timeout)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._unreached(path, error) from None
        if not isinstance(answer, http.client.HTTPResponse):
            raise self._fault(path, "the address", "one that is read over HTTP", repr(url))
        return answer

    def _unreached(self, path: str, error: Exception) -> PlaitError:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        words = " ".join(str(reason).split()) or type(reason).__name__
        advice = "check the network, HF_ENDPOINT and the proxy settings, or name a local file"
        return self._fault(path, f"the model hub cannot be reached ({words[:200]})", advice=advice)

    def _next(self, path: str, url: str, location: str) -> str:
        """Where a redirect leads: anywhere over https, or to the very server that sent it."""
        try:
            target = urljoin(url, location)
            parts = urlsplit(target)
            here, there = _origin(urlsplit(url)), _origin(parts)
        except ValueError:
            location = ""
        if not location or not target.isascii() or (there[0] != "https" and there != here):
            raise self._fault(path, "a redirect", "https, or the same server", repr(location[:200]))
        return target

    def _judged(self, path: str, response: http.client.HTTPResponse) -> http.client.HTTPResponse:
        status = response.status
        code = _header(response.headers, "X-Error-Code")
        if status in (200, 206):
            coding = _header(response.headers, "Content-Encoding")
            if coding not in ("", "identity"):
                response.close()
                raise self._fault(path, "header 'Content-Encoding'", "identity", repr(coding))
            return response
        response.close()
        if status == 404 or (status == 401 and code == "RepoNotFound"):
            raise Absent(code)
        if status in (401, 403):
            given = "HF_TOKEN is not accepted for it" if self._token is not None else "HF_TOKEN is not set"
            advice = "accept the model's terms on its page, then set HF_TOKEN to a token that may read it"
            what = f"access is refused ({status}): the model is gated or private, and {given}"
            raise ModelNotFound(fault(what, file=f"{self.endpoint}/{path}", advice=advice))
        if status == 416:
            raise self._fault(path, "the file ends before the bytes asked for")
        advice = "try again later" if status == 429 or status >= 500 else "check HF_ENDPOINT"
        raise self._fault(path, "the server's answer", "status 200 or 206", status, advice)

    def _body(self, response: http.client.HTTPResponse, path: str, deadline: float, limit: int) -> bytes:
        """At most `limit` bytes of the answer, read while the deadline lasts."""
        pieces: list[bytes] = []
        left = limit
        try:
            while left > 0:
                piece = response.read1(min(left, _PIECE))
                if not piece:
                    break
                pieces.append(piece)
                left -= len(piece)
                if time.monotonic() > deadline:
                    what = f"the answer takes longer than {self._deadline:g} seconds"
                    raise self._fault(path, what, advice="try again")
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._unreached(path, error) from None
        return b"".join(pieces)

    def _commit(self, headers: Message) -> str | None:
        commit = _header(headers, "X-Repo-Commit")
        return commit if re.fullmatch(r"[0-9a-f]{40}", commit) else None


class _Opened:
    """An answer that is closed in the end, and the time until which it may be read."""

    def __init__(self, response: http.client.HTTPResponse, deadline: float) -> None:
        self._response, self._deadline = response, deadline

    def __enter__(self) -> tuple[http.client.HTTPResponse, float]:
        return self._response, self._deadline

    def __exit__(self, *_: object) -> None:
        self._response.close()
