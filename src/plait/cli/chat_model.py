"""What `plait chat --lint` reads: the templates of a model, and its tokenizer where there is one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plait.blueprint.catalog import entry
from plait.blueprint.read.gguf import read_gguf
from plait.engine.chat.read import Templates, read_templates, templates_from_gguf
from plait.engine.packages import packaged_weights
from plait.engine.tokenizer import Tokenizer, load_tokenizer, tokenizer_from_gguf
from plait.errors import ModelNotFound, TokenizerError, UsageError, fault

__all__ = ["ChatFiles", "open_chat_files"]


@dataclass(frozen=True, slots=True)
class ChatFiles:
    """tokenizer  None: there is none beside the templates, or it cannot be read (`without` says why)."""

    templates: Templates
    tokenizer: Tokenizer | None
    without: str


def open_chat_files(model: str) -> ChatFiles:
    """MODEL: a directory, a .gguf file, a catalogue name with packaged weights, a .jinja file, or a JSON file with a
    chat_template. Raises ModelNotFound, and UsageError where it has no chat template."""
    path = Path(model)
    known = entry(model) if not path.exists() else None
    if known is not None:
        path = packaged_weights(known)
    if not path.exists():
        expected = "a directory, .gguf, .jinja or tokenizer_config.json, or a catalogue name"
        raise ModelNotFound(fault("no such file or directory", file=model, expected=expected))
    files = _of_gguf(path) if path.suffix == ".gguf" else _of_path(path)
    if not files.templates.texts:
        raise UsageError(fault("chat template", file=files.templates.file, expected="at least one", found="none"))
    return files


def _of_gguf(path: Path) -> ChatFiles:
    header = read_gguf(path)
    templates = templates_from_gguf(header)
    try:
        return ChatFiles(templates, tokenizer_from_gguf(header), "")
    except TokenizerError as error:
        return ChatFiles(templates, None, str(error))


def _of_path(path: Path) -> ChatFiles:
    single = sorted(path.glob("*.gguf")) if path.is_dir() and not (path / "tokenizer_config.json").exists() else []
    if len(single) == 1:
        return _of_gguf(single[0])
    templates = read_templates(path)
    directory = path if path.is_dir() else path.parent
    if not (directory / "tokenizer.json").exists():
        return ChatFiles(templates, None, f"no tokenizer.json in {directory}")
    try:
        return ChatFiles(templates, load_tokenizer(directory), "")
    except TokenizerError as error:
        return ChatFiles(templates, None, str(error))
