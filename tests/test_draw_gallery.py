"""The gallery: what is stale, missing or left over is noticed and made anew."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def gallery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, for a root of its own and two models."""
    spec = importlib.util.spec_from_file_location("gallery_script", ROOT / "scripts" / "gallery.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    few = tuple(entry for entry in module.entries() if entry.name in ("gemma-3-270m", "qwen3-0.6b"))
    monkeypatch.setattr(module, "entries", lambda: few)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    return module


def test_the_gallery_is_kept_fresh(gallery: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gallery.main(["--check"]) == 1
    assert not (tmp_path / "docs" / "gallery").exists()
    assert gallery.main([]) == 0
    assert gallery.main(["--check"]) == 0
    pictures = tmp_path / "docs" / "gallery"
    assert sorted(path.name for path in pictures.iterdir()) == ["gemma-3-270m.svg", "qwen3-0.6b.svg"]
    page = (tmp_path / "docs" / "gallery.md").read_text(encoding="utf-8")
    assert "## Gemma 3 270M" in page and "(gallery/gemma-3-270m.svg)" in page
    (pictures / "qwen3-0.6b.svg").write_text("old")
    (pictures / "gone.svg").write_text("left over")
    capsys.readouterr()
    assert gallery.main(["--check"]) == 1
    assert sorted(capsys.readouterr().out.split()[::3]) == ["docs/gallery/gone.svg", "docs/gallery/qwen3-0.6b.svg"]
    assert gallery.main([]) == 0
    assert gallery.main(["--check"]) == 0 and not (pictures / "gone.svg").exists()
    with pytest.raises(SystemExit, match="usage"):
        gallery.main(["--no-such"])
