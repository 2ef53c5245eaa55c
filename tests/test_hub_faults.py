"""A hub that does everything wrong: each answer is one line, and nothing is downloaded that should not be."""

from __future__ import annotations

import http.client
import io
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import configs
import pytest
from hub_server import COMMIT, Hub, put_config
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.account.parameters import parameters_of
from plait.blueprint.read.transport import Absent, Transport
from plait.blueprint.source import open_model
from plait.errors import FileFormatError, ModelNotFound, PlaitError


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        ({"status": 404}, 2, "no such file or directory, and no such model on the hub"),
        ({"status": 404, "headers": {"X-Error-Code": "RevisionNotFound"}}, 2, "no revision 'main'"),
        ({"status": 401, "headers": {"X-Error-Code": "RepoNotFound"}}, 2, "a private one needs HF_TOKEN"),
        ({"status": 401, "headers": {"X-Error-Code": "GatedRepo"}}, 2, "gated or private, and HF_TOKEN is not set"),
        ({"status": 403}, 2, "access is refused (403)"),
        ({"status": 429}, 1, "found 429; try again later"),
        ({"status": 503}, 1, "found 503; try again later"),
        ({"status": 418}, 1, "found 418"),
        ({"start": b"[1]"}, 2, "wrong top level: expected a JSON object, found list"),
        ({"start": b"{"}, 2, "is not valid JSON"),
        ({"start": b"\xff\xfe"}, 2, "is not valid JSON"),
        ({"start": b'{"a": 1, "a": 2}'}, 2, "twice"),
        ({"start": b"[" * 100_000}, 2, "is not valid JSON"),
        ({"start": b"{}"}, 2, "'model_type' is missing"),
        ({"start": b"", "size": 10**6, "headers": {"Content-Length": str(10**12)}}, 1, "too large"),
        ({"start": b"{}", "headers": {"Content-Length": "5"}}, 1, "cut short: expected 5 bytes, found 2 bytes"),
        ({"start": b"{}", "headers": {"Content-Encoding": "gzip"}}, 1, "Content-Encoding"),
        ({"start": b" " * (2**24 + 1), "headers": {"Content-Length": ""}}, 1, "too large"),
        ({"status": 302, "headers": {"Location": "/org/name/resolve/main/config.json"}}, 1, "redirects without end"),
        ({"status": 302, "headers": {"Location": "http://localhost:9/x"}}, 1, "a redirect: expected https"),
        ({"status": 302, "headers": {"Location": "file:///etc/passwd"}}, 1, "a redirect: expected https"),
        ({"status": 302}, 1, "a redirect: expected https"),
        ({"status": 302, "headers": {"Location": "http://[::1"}}, 1, "a redirect: expected https"),
    ],
)
def test_wrong_answers_are_one_line(hub: Hub, status: Any, answer: dict[str, Any], code: int, words: str) -> None:
    hub.put("org/name/resolve/main/config.json", **{"start": b"", **answer})
    found, out, err = status("inspect", "org/name")
    assert (found, out) == (code, "")
    assert err.startswith("plait: error: ")
    assert err.count("\n") == 1
    assert words in err


def test_a_redirect_on_the_same_server(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.put("org/name/resolve/main/config.json", b"", status=307, headers={"Location": "/org/new/config.json"})
    hub.put("org/new/config.json", json.dumps(configs.qwen3()).encode())
    assert open_model("org/name").blueprint.family == "qwen3"
    assert [token for _, _, token in hub.asked] == ["Bearer hf_secret"] * 2


class Canned:
    """Answers from memory in place of a network; keeps the requests."""

    def __init__(self, *answers: bytes) -> None:
        self.answers, self.requests = list(answers), list[Any]()

    def open(self, request: Any, timeout: float) -> http.client.HTTPResponse:
        self.requests.append(request)
        raw = self.answers.pop(0)

        class Socket:
            def makefile(self, _: str) -> io.BytesIO:
                return io.BytesIO(raw)

        response = http.client.HTTPResponse(Socket())
        response.begin()
        return response


def test_the_token_stays_at_home() -> None:
    transport = Transport("https://hub.example/mirror", "hf_secret")
    there = b"HTTP/1.1 302 Found\r\nLocation: https://cdn.example/file\r\n\r\n"
    canned = Canned(there, b"HTTP/1.1 206 OK\r\nContent-Range: bytes 0-1/9\r\nContent-Length: 2\r\n\r\nab")
    transport._opener = canned
    found = transport.range("x", 0, 2)
    assert (found.body, found.size, found.commit) == (b"ab", 9, None)
    assert [r.full_url for r in canned.requests] == ["https://hub.example/mirror/x", "https://cdn.example/file"]
    assert [r.get_header("Authorization") for r in canned.requests] == ["Bearer hf_secret", None]
    assert all(r.get_header("Range") == "bytes=0-1" for r in canned.requests)
    for elsewhere in (b"https://hub.example:444/x", b"https://hub.example.evil/x"):
        canned = Canned(there.replace(b"https://cdn.example/file", elsewhere), b"HTTP/1.1 404 No\r\n\r\n")
        transport._opener = canned
        with pytest.raises(Absent):
            transport.whole("x", limit=9)
        assert canned.requests[1].get_header("Authorization") is None
    downgrade = Canned(there.replace(b"https://cdn.example/file", b"http://hub.example/x"))
    transport._opener = downgrade
    with pytest.raises(PlaitError, match="a redirect"):
        transport.whole("x", limit=9)


@pytest.mark.parametrize(
    ("headers", "body", "words"),
    [
        ("200 OK", "abcd", "does not honour byte ranges, and the whole file is not downloaded"),
        ("206 OK", "ab", "Content-Range"),
        ("206 OK\r\nContent-Range: bytes 1-2/9", "ab", "Content-Range"),
        ("206 OK\r\nContent-Range: bytes 0-5/9", "abcdef", "Content-Range"),
        ("206 OK\r\nContent-Range: bytes 0-0/9", "a", "Content-Range"),
        ("206 OK\r\nContent-Range: bytes 0-1/*", "ab", "Content-Range"),
        ("206 OK\r\nContent-Range: bytes 0-1/9", "a", "wrong length: expected 2 bytes, found 1 bytes"),
        ("206 OK\r\nContent-Range: bytes 0-1/9", "abc", "wrong length: expected 2 bytes, found more"),
        ("416 No", "", "ends before"),
    ],
)
def test_ranges_that_are_not_what_was_asked_for(headers: str, body: str, words: str) -> None:
    transport = Transport()
    transport._opener = Canned(f"HTTP/1.1 {headers}\r\n\r\n{body}".encode())
    with pytest.raises(PlaitError, match=words):
        transport.range("x", 0, 2)


def test_a_server_that_ignores_ranges_is_not_downloaded_from(hub: Hub, status: Any) -> None:
    put_config(hub, configs.qwen3())
    hub.put(f"org/name/resolve/{COMMIT}/model.safetensors", b"", 10**6, ranges=False)
    code, out, err = status("params", "org/name")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "the whole file is not downloaded" in err
    code, out, err = status("inspect", "org/name")
    assert (code, err) == (0, "")
    assert "weights        cannot be read, parameters are counted from the config: " in out


@pytest.fixture
def raw_server() -> Iterator[Callable[[Callable[[socket.socket], None]], str]]:
    """A server that reads a request and then does to the connection what it is told."""
    listening = socket.create_server(("127.0.0.1", 0))
    actions: list[Callable[[socket.socket], None]] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.recv(65_536)
                    actions[0](connection)
                except OSError:
                    pass

    thread = threading.Thread(target=serve)
    thread.start()

    def use(action: Callable[[socket.socket], None]) -> str:
        actions[:] = [action]
        return f"http://127.0.0.1:{listening.getsockname()[1]}"

    yield use
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join()


def test_silence_and_drips_end(raw_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    over = threading.Event()
    url = raw_server(lambda connection: over.wait(5))
    with pytest.raises(PlaitError, match=r"cannot be reached \(timed out\)"):
        Transport(url, timeout=0.05).whole("x", limit=100)
    over.set()

    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        for _ in range(500):
            connection.sendall(b" ")
            time.sleep(0.01)

    url = raw_server(drip)
    with pytest.raises(PlaitError, match=r"takes longer than 0\.1 seconds"):
        Transport(url, timeout=2, deadline=0.1).whole("x", limit=10**6)


@pytest.mark.parametrize("raw", [b"", b"HTTP/1.1", b"hello\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000])
def test_broken_protocols(raw_server: Any, monkeypatch: pytest.MonkeyPatch, raw: bytes) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    url = raw_server(lambda connection: connection.sendall(raw))
    with pytest.raises(PlaitError, match="cannot be reached") as caught:
        Transport(url).whole("x", limit=100)
    assert "\n" not in str(caught.value)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([b"200", b"206", b"302", b"404", b"999"]),
    st.lists(
        st.sampled_from(
            [
                b"Content-Length: 3",
                b"Content-Length: -1",
                b"Content-Length: 9" + b"9" * 30,
                b"Location: //[",
                b"Location: https://x:99999/",
                b"Content-Range: bytes 0-2/3",
                b"Transfer-Encoding: chunked",
                b"X-Repo-Commit: z",
            ]
        ),
        max_size=4,
    ),
    st.binary(max_size=40),
)
def test_any_answer_is_read_or_refused(code: bytes, headers: list[bytes], body: bytes) -> None:
    raw = b"\r\n".join([b"HTTP/1.1 " + code + b" OK", *headers, b"", b""]) + body
    for ask in (lambda t: t.whole("x", limit=20), lambda t: t.range("x", 0, 3)):
        transport = Transport()
        transport._opener = Canned(*[raw] * 9)
        try:
            assert len(ask(transport).body) <= 20
        except Absent:
            assert code == b"404"
        except PlaitError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("name", "header", "words"),
    [
        ("model.safetensors", b"\xff" * 16, "not a safetensors file"),
        ("model.safetensors", b"\x02" + bytes(7) + b"[]", "not a safetensors file"),
        ("model.safetensors", b"\x02" + bytes(7) + b"{}trailing", "belong to no tensor"),
        ("model.safetensors.index.json", b"[]", "expected an object"),
        ("model.safetensors.index.json", b"{}", "weight_map"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "../x.safetensors"}}', "beside it"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "x.safetensors"}}', r"no file 'x\.safetensors'"),
    ],
)
def test_damaged_headers(hub: Hub, name: str, header: bytes, words: str) -> None:
    put_config(hub, configs.qwen3())
    hub.put(f"org/name/resolve/{COMMIT}/{name}", header)
    with pytest.raises((FileFormatError, ModelNotFound), match=words) as caught:
        parameters_of(open_model("org/name"))
    assert "\n" not in str(caught.value)
