"""`plait explore`: what it writes, where, and what it refuses."""

from __future__ import annotations

import json
import os
import socket
import threading
import urllib.error
import urllib.request
import webbrowser
from pathlib import Path
from typing import Any

import pytest
from configs import gemma3
from explore_site import data_of

from plait.account.memory import memory
from plait.blueprint.source import open_model
from plait.cli import main as cli
from plait.errors import PlaitError, UsageError
from plait.explore import site
from plait.explore.serve import server_of


@pytest.fixture
def status(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a command line in this process over an empty catalogue: (exit status, stdout, stderr)."""
    monkeypatch.setattr(site, "entries", lambda: iter(()))
    monkeypatch.setattr(webbrowser, "open", lambda *_: pytest.fail("a browser is opened"))

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli._status(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "mine" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(gemma3()))
    return path


def test_given_models_come_first_and_are_picked(status: Any, config: Path, tmp_path: Path) -> None:
    out = tmp_path / "site"
    code, text, err = status("explore", str(config), "gemma-3-270m", "-o", str(out), "--json")
    assert (code, err) == (0, "")
    page = out / "index.html"
    assert json.loads(text) == {"path": str(page), "models": 2, "bytes": page.stat().st_size}
    data = data_of(page.read_text(encoding="utf-8"))
    assert [model["id"] for model in data["models"]] == data["pick"] == ["mine", "gemma-3-270m"]
    assert data["models"][0]["named"] == str(config)
    assert all(model["given"] for model in data["models"])


def test_models_of_one_name_are_told_apart(monkeypatch: pytest.MonkeyPatch, config: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "mine" / "config.json"
    other.parent.mkdir(parents=True)
    other.write_text(json.dumps(gemma3() | {"num_hidden_layers": 2}))
    named = tmp_path / "gemma-3-270m.json"
    named.write_text(json.dumps(gemma3()))
    found = site.listed((str(config), str(other), str(config), str(named)))
    assert [item.id for item in found[:3]] == ["mine", "mine (2)", "gemma-3-270m"]
    assert "gemma-3-270m (2)" in [item.id for item in found[3:]]
    assert len({item.id for item in found}) == len(found)


def test_catalogue_entry_that_is_named_stands_once() -> None:
    found = site.listed(("Gemma-3-270M", "gemma-3-270m"))
    assert [item.id for item in found].count("gemma-3-270m") == 1
    assert found[0].id == "gemma-3-270m" and found[0].given


def test_names_cannot_leave_the_data(status: Any, tmp_path: Path) -> None:
    path = tmp_path / "</script><img src=x>" / "config.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(gemma3()))
    code, _, _ = status("explore", str(path), "-o", str(tmp_path / "site"))
    assert code == 0
    page = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert "<img" not in page
    assert page.count("</script>") == 2


def test_names_that_are_no_text_are_shown_as_far_as_they_are(status: Any, tmp_path: Path) -> None:
    path = tmp_path / "sketch.json"
    path.write_text('{"model_type": "un\\ud800heard"}')
    code, _, err = status("explore", str(path), "-o", str(tmp_path / "site"))
    assert (code, err) == (0, "")
    [model] = data_of((tmp_path / "site" / "index.html").read_text(encoding="utf-8"))["models"]
    assert model["family"] == "un\ufffdheard"


def test_sketch_is_shown_as_far_as_it_is_known(status: Any, tmp_path: Path) -> None:
    keys = {
        "model_type": "unheard",
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "vocab_size": 100,
    }
    known, doubtful = tmp_path / "known.json", tmp_path / "doubtful.json"
    known.write_text(json.dumps(keys))
    doubtful.write_text(json.dumps({"model_type": "unheard"}))
    code, _, err = status("explore", str(known), str(doubtful), "-o", str(tmp_path / "site"))
    assert (code, err) == (0, "")
    one, other = data_of((tmp_path / "site" / "index.html").read_text(encoding="utf-8"))["models"]
    # 3 layers of 2 heads of 16 dims, K and V in bf16.
    assert one["state"]["runtime"]["growing"] == [["rows", None, [1536, 768, 384, 384, 408]]]
    assert one["layers"] == [["attention", "unknown", 3]]
    assert one["flops"] is one["parameters"] is one["pictures"] is None
    assert other["state"] is None and other["notes"]


def test_gguf_and_directory_count_the_bytes_they_hold(status: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    directory, gguf = tmp_path / "hub", tmp_path / "file.gguf"
    for words in (("-o", str(directory)), ("-o", str(gguf), "--gguf", "--format", "q8_0")):
        assert status("random", "gemma-3-270m", "--scale", "tiny", *words)[0] == 0
    for path in (directory, gguf):
        code, _, err = status("explore", str(path), "-o", str(tmp_path / "site"))
        assert (code, err) == (0, "")
        [model] = data_of((tmp_path / "site" / "index.html").read_text(encoding="utf-8"))["models"]
        code, text, _ = status("memory", str(path), "--context", "100", "--json")
        assert model["weights"]["stored"][0] == json.loads(text)["weights_bytes"]
        in_bf16 = memory(open_model(path).blueprint, 1, weights_format="bf16").weights_bytes
        assert model["weights"]["bf16"][0] == in_bf16


def test_file_that_lacks_weights_is_shown_without_a_bound(status: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from gguf import GGUFReader

    path = tmp_path / "file.gguf"
    assert status("random", "gemma-3-270m", "--scale", "tiny", "-o", str(path), "--gguf")[0] == 0
    name = GGUFReader(path).tensors[3].name
    del_me = path.read_bytes().replace(name.encode(), b"x" * len(name), 1)
    path.write_bytes(del_me)
    code, _, err = status("explore", str(path), "-o", str(tmp_path / "site"))
    assert (code, err) == (0, "")
    [model] = data_of((tmp_path / "site" / "index.html").read_text(encoding="utf-8"))["models"]
    assert model["fetched"]["stored"] is None and model["fetched"]["bf16"] is not None
    assert any(name in note for note in model["notes"])


@pytest.mark.parametrize("model", ["gemma-3-271m", "no/such/file.gguf"])
def test_unknown_model_is_one_line(status: Any, tmp_path: Path, model: str) -> None:
    code, out, err = status("explore", model, "-o", str(tmp_path / "site"))
    assert (code, out) == (2, "")
    assert err.startswith("plait: error: ") and err.count("\n") == 1


def test_page_is_replaced_and_nothing_else_is(status: Any, config: Path, tmp_path: Path) -> None:
    out = tmp_path / "site"
    assert status("explore", str(config), "-o", str(out))[0] == 0
    (out / "other.txt").write_text("kept")
    assert status("explore", str(config), "-o", str(out))[0] == 0
    assert sorted(item.name for item in out.iterdir()) == ["index.html", "other.txt"]
    (out / "index.html").write_text("<p>mine</p>")
    code, _, err = status("explore", str(config), "-o", str(out))
    assert code == 2 and "is there, and is no page of `plait explore`" in err
    assert (out / "index.html").read_text() == "<p>mine</p>"


def test_file_in_place_of_the_directory(status: Any, config: Path) -> None:
    code, _, err = status("explore", str(config), "-o", str(config))
    assert code == 2 and "expected a directory" in err


def test_directory_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(PlaitError, match="cannot be written .Permission denied.; name another directory with -o"):
        site.place(tmp_path / "new")
    monkeypatch.undo()
    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(PlaitError, match="cannot be written"):
        site.write("text", tmp_path / "index.html")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises((PlaitError, UsageError)):
        site.place(Path("a\0b"))


def test_without_a_place_it_goes_to_the_cache_and_opens(
    status: Any, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    page = tmp_path / "cache" / "plait" / "explore" / "index.html"
    code, out, _ = status("explore", str(config), "--no-open")
    assert code == 0 and out.startswith(f"wrote {page}: 1 models, ")
    opened: list[str] = []

    def opens(address: str) -> bool:
        opened.append(address)
        return False

    monkeypatch.setattr(webbrowser, "open", opens)
    code, _, err = status("explore", str(config))
    assert code == 0 and opened == [page.as_uri()]
    assert err == "no browser could be opened; open the file in one, or use --port\n"


def test_cache_of_each_system(monkeypatch: pytest.MonkeyPatch) -> None:
    assert site.cache_directory({"XDG_CACHE_HOME": "/c"}) == Path("/c/plait/explore")
    unusual = site.cache_directory({"XDG_CACHE_HOME": "c", "HOME": "/h"})
    assert unusual == site.cache_directory({"HOME": "/h"}) == site.cache_directory({"XDG_CACHE_HOME": "", "HOME": "/h"})
    monkeypatch.setattr(site.sys, "platform", "darwin")
    assert site.cache_directory({"HOME": "/h"}) == Path("/h/Library/Caches/plait/explore")
    monkeypatch.setattr(site.sys, "platform", "linux")
    assert site.cache_directory({"HOME": "/h"}) == Path("/h/.cache/plait/explore")
    monkeypatch.setattr(site.sys, "platform", "win32")
    assert site.cache_directory({"LOCALAPPDATA": "/l"}) == Path("/l/plait/explore")


def test_page_is_readable_by_whom_the_mask_allows(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        site.write("text", tmp_path / "index.html")
    finally:
        os.umask(before)
    assert (tmp_path / "index.html").stat().st_mode & 0o777 == 0o640


def test_server_answers_with_the_page_alone(tmp_path: Path) -> None:
    page = tmp_path / "index.html"
    page.write_text("<p>page</p>", encoding="utf-8")
    (tmp_path / "secret").write_text("secret")
    with server_of(page, 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            place = f"http://127.0.0.1:{server.server_address[1]}"
            with urllib.request.urlopen(f"{place}/") as answer:
                assert answer.read() == b"<p>page</p>"
                assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
            request = urllib.request.Request(f"{place}/index.html", method="HEAD")
            with urllib.request.urlopen(request) as answer:
                assert answer.read() == b""
            with pytest.raises(urllib.error.HTTPError) as error:
                urllib.request.urlopen(f"{place}/secret")
            error.value.close()
            assert error.value.code == 404
        finally:
            server.shutdown()
            thread.join()


def test_port_that_is_taken_is_one_line(status: Any, config: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, _, err = status("explore", str(config), "-o", str(tmp_path / "site"), "--port", port)
    assert code == 1 and f"port {port} cannot be had" in err and "--port" in err
