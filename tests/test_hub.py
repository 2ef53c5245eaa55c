"""Models of a hub: what is asked for, what is sent along, and a server that does everything wrong."""

from __future__ import annotations

import http.client
import io
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import configs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_gguf_header import ARR, F32, STR, U32, array, build, entry, key, text

from plait.account.parameters import parameters_of
from plait.blueprint.read.hub import HubId, hub_id, open_hub
from plait.blueprint.read.transport import Absent, Transport
from plait.blueprint.source import describe, open_model
from plait.blueprint.spec import Attention, FactorScaling
from plait.cli import main as cli
from plait.errors import ConfigError, FileFormatError, ModelNotFound, PlaitError, UsageError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class File:
    """`size` bytes that begin with `start`; the rest is zeros that nobody should ask for."""

    start: bytes
    size: int
    status: int = 200
    ranges: bool = True
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Hub:
    """A server on this machine. `asked`: (path, Range header, Authorization header) of each request."""

    files: dict[str, File] = field(default_factory=dict)
    asked: list[tuple[str, str | None, str | None]] = field(default_factory=list)
    sent: int = 0
    url: str = ""

    def put(self, path: str, start: bytes, size: int | None = None, **options: Any) -> None:
        self.files[path] = File(start, len(start) if size is None else size, **options)

    def paths(self) -> list[str]:
        return [path for path, _, _ in self.asked]


def handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            hub.asked.append((self.path, wanted, self.headers.get("Authorization")))
            found = hub.files.get(self.path.lstrip("/"), File(b"", 0, 404))
            first, last = 0, found.size - 1
            status = found.status
            if wanted is not None and status == 200 and found.ranges:
                a, b = wanted.removeprefix("bytes=").split("-")
                first, last, status = int(a), min(int(b), found.size - 1), 206
            body = found.start[first : last + 1]
            body += bytes(last + 1 - first - len(body)) if status in (200, 206) else b""
            own = {"Content-Length": str(len(body)), "X-Repo-Commit": COMMIT}
            if status == 206:
                own["Content-Range"] = f"bytes {first}-{last}/{found.size}"
            self.send_response(status)
            for name, value in {**own, **found.headers}.items():
                if value:
                    self.send_header(name, value)
            self.end_headers()
            hub.sent += len(body)
            with suppress(ConnectionError):  # the other side may have seen enough
                self.wfile.write(body)

    return Handler


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    made = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(made))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    made.url = f"http://127.0.0.1:{server.server_address[1]}"
    for name in ("PLAIT_OFFLINE", "HF_HUB_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("HF_ENDPOINT", made.url)
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def status(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli._status(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def put_config(hub: Hub, config: dict[str, Any], revision: str = "main") -> None:
    hub.put(f"org/name/resolve/{revision}/config.json", json.dumps(config).encode())


def shards(config: dict[str, Any], hub: Hub, count: int, grow: int = 0) -> int:
    """Put a checkpoint's headers on the hub; `grow` bytes more of embedding rows. Returns the bytes of the files."""
    names: dict[str, tuple[int, ...]] = {"model.norm.weight": (64,), "model.embed_tokens.weight": (300, 64)}
    for i in range(config["num_hidden_layers"]):
        heads = {"q_proj": (128, 64), "k_proj": (64, 64), "v_proj": (64, 64), "o_proj": (64, 128)}
        for name, shape in heads.items():
            names[f"model.layers.{i}.self_attn.{name}.weight"] = shape
        for name in ("q_norm", "k_norm"):
            names[f"model.layers.{i}.self_attn.{name}.weight"] = (32,)
        for name, shape in {"gate_proj": (96, 64), "up_proj": (96, 64), "down_proj": (64, 96)}.items():
            names[f"model.layers.{i}.mlp.{name}.weight"] = shape
        for name in ("input_layernorm", "post_attention_layernorm"):
            names[f"model.layers.{i}.{name}.weight"] = (64,)
    files = [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
    places = {name: files[i % count] for i, name in enumerate(names)}
    total = 0
    for file in files:
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        at = 0
        for name, shape in names.items():
            if places[name] == file:
                size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
                header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
                at += size
        raw = json.dumps(header).encode().ljust(grow)
        start = len(raw).to_bytes(8, "little") + raw
        name = "model.safetensors" if count == 1 else file
        hub.put(f"org/name/resolve/{COMMIT}/{name}", start, len(start) + at)
        total += len(start) + at
    if count > 1:
        index = json.dumps({"metadata": {}, "weight_map": places}).encode()
        hub.put(f"org/name/resolve/{COMMIT}/model.safetensors.index.json", index)
    return total


def test_a_description_costs_one_request(hub: Hub) -> None:
    put_config(hub, configs.qwen3())
    found = open_model("org/name")
    assert hub.paths() == ["/org/name/resolve/main/config.json"]
    assert found.blueprint == configs.read(configs.qwen3())
    assert (found.kind, found.path, found.blueprint.name) == ("hub", None, "name")
    assert found.hub is not None
    assert (str(found.hub.id), found.hub.commit) == ("org/name", COMMIT)


@pytest.mark.parametrize(("count", "grow"), [(1, 0), (3, 0), (1, 200_000)])
def test_counts_come_from_the_headers_alone(hub: Hub, count: int, grow: int) -> None:
    put_config(hub, configs.qwen3())
    shards(configs.qwen3(), hub, count, grow)
    found = parameters_of(open_model("org/name"))
    expected = 300 * 64 + 64 + 4 * (128 * 64 * 2 + 64 * 64 * 2 + 64 + 3 * 96 * 64 + 128)
    assert (found.in_file, found.used, found.differences) == (expected, expected, ())
    assert "safetensors" in found.counted_from
    assert found.used_bytes == 2 * expected
    ranged = [range_ for path, range_, _ in hub.asked if path.endswith(".safetensors")]
    assert None not in ranged
    assert len(ranged) == count + (grow > 0)
    assert all(COMMIT in path for path in hub.paths()[1:])


def test_large_files_stay_where_they_are(hub: Hub) -> None:
    config = {**configs.qwen3(), "vocab_size": 2**33}
    put_config(hub, config)
    header = {"model.embed_tokens.weight": {"dtype": "BF16", "shape": [2**33, 64], "data_offsets": [0, 2**40]}}
    raw = json.dumps(header).encode().ljust(70_000)
    hub.put(f"org/name/resolve/{COMMIT}/model.safetensors", len(raw).to_bytes(8, "little") + raw, 2**40 + 70_008)
    found = parameters_of(open_model("org/name"))
    assert found.in_file == 2**39
    assert hub.sent < 100_000
    assert any("is missing" in line for line in found.differences)


def test_a_repository_without_weights_is_counted_from_its_config(hub: Hub) -> None:
    put_config(hub, configs.qwen3())
    listing = {"sha": COMMIT, "siblings": [{"rfilename": "config.json"}, {"rfilename": "pytorch_model.bin"}]}
    hub.put(f"api/models/org/name/revision/{COMMIT}", json.dumps(listing).encode())
    assert parameters_of(open_model("org/name")).counted_from == "the config alone"


def test_revisions_and_tokens(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    put_config(hub, configs.qwen3(), "refs%2Fpr%2F3")
    assert open_model("org/name@refs/pr/3").kind == "hub"
    assert hub.asked == [("/org/name/resolve/refs%2Fpr%2F3/config.json", None, "Bearer hf_secret")]


def gguf_file(
    *, padding: int = 0, extra: tuple[bytes, ...] = (), data: bytes = b"", entries: tuple[bytes, ...] = ()
) -> bytes:
    """A small Llama; `padding` tokens make the header long."""
    numbers = {"block_count": 2, "context_length": 512, "embedding_length": 64, "feed_forward_length": 96}
    numbers |= {"attention.head_count": 4, "attention.head_count_kv": 2, "vocab_size": 300}
    keys = [key("general.architecture", STR, text("llama"))]
    keys += [key(f"llama.{name}", U32, struct.pack("<I", n)) for name, n in numbers.items()]
    keys.append(key("llama.attention.layer_norm_rms_epsilon", F32, struct.pack("<f", 1e-5)))
    if padding:
        keys.append(key("tokenizer.ggml.tokens", ARR, array(STR, padding, text("a token of some length") * padding)))
    return build([*keys, *extra], list(entries), 0) + data


def test_a_gguf_file_by_growing_ranges(hub: Hub) -> None:
    raw = gguf_file(padding=100_000)
    assert len(raw) > 2_000_000
    hub.put("org/name/resolve/main/a/b.gguf", raw, len(raw) + 10**9)
    hub.put(f"org/name/resolve/{COMMIT}/a/b.gguf", raw, len(raw) + 10**9)
    found = open_model("org/name:a/b.gguf")
    assert found.header is not None
    assert len(found.blueprint.layers) == 2
    assert found.blueprint.vocabulary == 300
    assert len(hub.asked) > 2
    assert all(range_ is not None for _, range_, _ in hub.asked)
    assert hub.sent <= 2 * len(raw)


def test_stored_rotary_factors_are_fetched(hub: Hub) -> None:
    factors = struct.pack("<8f", *range(1, 9))
    raw = gguf_file(entries=(entry("rope_freqs.weight", (8,), 0, 0),), data=factors)
    for revision in ("main", COMMIT):
        hub.put(f"org/name/resolve/{revision}/m.gguf", raw, len(raw))
    mixer = open_model("org/name:m.gguf").blueprint.layers[0].mixer
    assert isinstance(mixer, Attention)
    assert mixer.rope is not None
    assert mixer.rope.scaling == FactorScaling(tuple(map(float, range(1, 9))))


def put_listing(hub: Hub, *names: str) -> None:
    listing = {"sha": COMMIT, "siblings": [{"rfilename": name} for name in names]}
    hub.put("api/models/org/name/revision/main", json.dumps(listing).encode())


def test_one_of_several_gguf_files_must_be_named(hub: Hub) -> None:
    put_listing(hub, "README.md", "q4.gguf", "q8-00001-of-00002.gguf", "q8-00002-of-00002.gguf")
    with pytest.raises(ModelNotFound, match=r"2 models; name one of them as org/name:FILE.*q4\.gguf, q8-00001"):
        open_model("org/name")
    put_listing(hub, "README.md", "q4.gguf")
    hub.put(f"org/name/resolve/{COMMIT}/q4.gguf", gguf_file())
    assert open_model("org/name").blueprint.hidden == 64
    put_listing(hub, "README.md", "train.py")
    with pytest.raises(ModelNotFound, match=r"not a model: it has no config\.json and no \.gguf"):
        open_model("org/name")
    with pytest.raises(ModelNotFound, match=r"no file 'q5\.gguf'"):
        open_model("org/name:q5.gguf")


def test_parts_of_a_split_model(hub: Hub) -> None:
    def part(number: int) -> bytes:
        split = [key("split.count", U32, struct.pack("<I", 2)), key("split.no", U32, struct.pack("<I", number))]
        return gguf_file(extra=tuple(split), entries=(entry(f"t{number}", (32,), 0, 0),), data=bytes(128))

    for i, name in enumerate(("m-00001-of-00002.gguf", "m-00002-of-00002.gguf")):
        hub.put(f"org/name/resolve/main/{name}", part(i))
        hub.put(f"org/name/resolve/{COMMIT}/{name}", part(i))
    found = open_model("org/name:m-00001-of-00002.gguf")
    assert found.header is not None
    assert list(found.header.tensors) == ["t0", "t1"]
    del hub.files[f"org/name/resolve/{COMMIT}/m-00002-of-00002.gguf"]
    with pytest.raises(ModelNotFound, match="no file 'm-00002"):
        open_model("org/name:m-00001-of-00002.gguf")


def test_what_is_here_wins(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "org" / "name" / "config.json").write_text(json.dumps(configs.llama()))
    monkeypatch.chdir(tmp_path)
    assert open_model("org/name").kind == "directory"
    assert open_model("gemma-3-270m").kind == "catalogue"
    for name in ("no/such/model.gguf", "./org/other", "org/name/config.yaml", "orgs", "a/b/c"):
        with pytest.raises(ModelNotFound, match="no such file"):
            open_model(name)
    assert hub.asked == []


@pytest.mark.parametrize("name", ["PLAIT_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline(hub: Hub, monkeypatch: pytest.MonkeyPatch, name: str, status: Any) -> None:
    monkeypatch.setenv(name, "1")
    code, out, err = status("inspect", "google/gemma-3-270m")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{name} is set" in err
    assert "the catalogue describes it: gemma-3-270m" in err
    assert hub.asked == []
    with pytest.raises(ModelNotFound, match=name):
        Transport.from_environment({name: "true"})


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

        response = http.client.HTTPResponse(Socket())  # type: ignore[arg-type]
        response.begin()
        return response


def test_the_token_stays_at_home() -> None:
    transport = Transport("https://hub.example/mirror", "hf_secret")
    there = b"HTTP/1.1 302 Found\r\nLocation: https://cdn.example/file\r\n\r\n"
    canned = Canned(there, b"HTTP/1.1 206 OK\r\nContent-Range: bytes 0-1/9\r\nContent-Length: 2\r\n\r\nab")
    transport._opener = canned  # type: ignore[assignment]
    found = transport.range("x", 0, 2)
    assert (found.body, found.size, found.commit) == (b"ab", 9, None)
    assert [r.full_url for r in canned.requests] == ["https://hub.example/mirror/x", "https://cdn.example/file"]
    assert [r.get_header("Authorization") for r in canned.requests] == ["Bearer hf_secret", None]
    assert all(r.get_header("Range") == "bytes=0-1" for r in canned.requests)
    for elsewhere in (b"https://hub.example:444/x", b"https://hub.example.evil/x"):
        canned = Canned(there.replace(b"https://cdn.example/file", elsewhere), b"HTTP/1.1 404 No\r\n\r\n")
        transport._opener = canned  # type: ignore[assignment]
        with pytest.raises(Absent):
            transport.whole("x", limit=9)
        assert canned.requests[1].get_header("Authorization") is None
    downgrade = Canned(there.replace(b"https://cdn.example/file", b"http://hub.example/x"))
    transport._opener = downgrade  # type: ignore[assignment]
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
    transport._opener = Canned(f"HTTP/1.1 {headers}\r\n\r\n{body}".encode())  # type: ignore[assignment]
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
        transport._opener = Canned(*[raw] * 9)  # type: ignore[assignment]
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


@pytest.mark.parametrize(
    ("spelled", "found"),
    [
        ("org/name", HubId("org/name")),
        ("org/name@v1.0", HubId("org/name", "v1.0")),
        ("org/name@refs/pr/1:sub/x.gguf", HubId("org/name", "refs/pr/1", "sub/x.gguf")),
        ("org/name:x.gguf", HubId("org/name", "main", "x.gguf")),
        ("name", None),
        ("a/b/c", None),
        ("../name", None),
        ("org/..", None),
        ("org/name@../x", None),
        ("org/name:../x.gguf", None),
        ("org/name:x.bin", None),
        ("org/na me", None),
        ("https://host/x", None),
        ("\u00fcber/name", None),
    ],
)
def test_ids(spelled: str, found: HubId | None) -> None:
    assert hub_id(spelled) == found
    assert found is None or str(found) == spelled


@pytest.mark.parametrize("endpoint", ["hub.example", "ftp://hub.example", "https://", "https://a b", "http://[", "https://h/?q"])
def test_endpoints_that_are_none(endpoint: str) -> None:
    with pytest.raises(UsageError, match="HF_ENDPOINT"):
        Transport(endpoint)


def test_tokens_that_are_none() -> None:
    with pytest.raises(UsageError, match="HF_TOKEN") as caught:
        Transport(token="a\nb: c")
    assert "a\nb" not in str(caught.value)


def test_commands_on_a_hub_model(hub: Hub, status: Any) -> None:
    put_config(hub, {**configs.qwen3(), "surprise": 1})
    total = shards(configs.qwen3(), hub, 2)
    found = json.loads(status("params", "org/name", "--json")[1])
    assert (found["kind"], found["hub"], found["commit"], found["differences"]) == ("hub", "org/name", COMMIT, [])
    found = json.loads(status("memory", "org/name", "--context", "100", "--json")[1])
    assert found["weights_bytes"] == 2 * parameters_of(open_model("org/name")).used < total
    code, out, err = status("inspect", "org/name", "--coverage")
    assert (code, err) == (0, "")
    assert f"hub, org/name at {COMMIT}" in out
    assert "1 unknown" in out
    put_config(hub, {**configs.qwen3(), "hidden_size": "wide"})
    with pytest.raises(ConfigError, match=r"org/name/config\.json: key 'hidden_size'"):
        open_model("org/name")


def test_an_unknown_family_on_the_hub(hub: Hub) -> None:
    put_config(hub, {**configs.qwen3(), "model_type": "never_heard_of"})
    found = describe("org/name")
    assert found.kind == "hub"
    assert open_hub(HubId("org/name"), Transport(hub.url)).config is not None
