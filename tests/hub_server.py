"""A model hub on this machine for tests: what is put on it, what was asked of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from plait.cli import main as cli

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
