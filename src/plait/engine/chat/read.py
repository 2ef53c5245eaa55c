"""Where a model's files keep its chat templates, and the special tokens that templates may write."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from plait.engine.tokenizer.keys import Header
from plait.errors import TokenizerError, UsageError, fault

__all__ = ["DEFAULT", "SPECIAL_TOKENS", "TOOL_USE", "Templates", "read_templates", "templates_from_gguf"]

DEFAULT: Final = "default"
TOOL_USE: Final = "tool_use"

SPECIAL_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# GGUF's words for the same.
_GGUF_NAMED: Final = MappingProxyType(
    {
        "bos_token": "bos_token_id",
        "eos_token": "eos_token_id",
        "unk_token": "unknown_token_id",
        "sep_token": "seperator_token_id",
        "pad_token": "padding_token_id",
        "cls_token": "cls_token_id",
        "mask_token": "mask_token_id",
    }
)
_GGUF_TEMPLATE: Final = "tokenizer.chat_template"
_LIMIT: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class Templates:
    """A model's chat templates as its files have them.

    file     what messages name as the place of the templates
    texts    Jinja source by name; the usual one is called `default`, one for tools `tool_use`
    special  spelling of the special tokens by the name templates use: bos_token, eos_token, ...
    """

    file: str
    texts: Mapping[str, str]
    special: Mapping[str, str]

    def choose(self, name: str | None, tools: bool) -> str:
        """The name of the template for a request: the one asked for, else `tool_use` with tools, else `default`.

        UsageError: there is no such template, or none at all.
        """
        if name is None and tools and TOOL_USE in self.texts:
            return TOOL_USE
        wanted = DEFAULT if name is None else name
        if wanted not in self.texts:
            there = ", ".join(self.texts) or "none"
            advice = "this model was not made for chats" if not self.texts else "name one of them"
            raise UsageError(
                fault(
                    f"chat template {wanted!r}",
                    file=self.file,
                    expected="one that the model has",
                    found=there,
                    advice=advice,
                )
            )
        return wanted


def read_templates(path: Path) -> Templates:
    """The templates of a model directory, or of one file: .jinja, tokenizer_config.json or chat_template.json.

    In a directory chat_template.jinja goes before chat_template.json and tokenizer_config.json, and
    additional_chat_templates/NAME.jinja adds templates by name. TokenizerError: a file that is malformed.
    """
    if path.is_dir():
        return _of_directory(path)
    if path.suffix == ".jinja":
        return Templates(str(path), MappingProxyType({DEFAULT: _text(path)}), _special_beside(path.parent))
    content = _object(path)
    if content is None:
        raise TokenizerError(fault("file", file=path, expected="a chat template", found="no such file"))
    special = {**_special_beside(path.parent), **_special(content)}
    return Templates(str(path), MappingProxyType(_entries(content, path)), MappingProxyType(special))


def templates_from_gguf(header: Header) -> Templates:
    """The templates in a GGUF's metadata: `tokenizer.chat_template` and `tokenizer.chat_template.NAME`."""
    texts = {}
    for key, value in header.metadata.items():
        if key != _GGUF_TEMPLATE and not key.startswith(_GGUF_TEMPLATE + "."):
            continue
        if not isinstance(value, str):
            raise TokenizerError(fault(key, file=header.path, expected="a string", found=type(value).__name__))
        texts[key.removeprefix(_GGUF_TEMPLATE).removeprefix(".") or DEFAULT] = value
    special = {}
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    for name, key in _GGUF_NAMED.items():
        token = header.metadata.get(f"tokenizer.ggml.{key}")
        if isinstance(token, int) and isinstance(tokens, Sequence) and 0 <= token < len(tokens):
            text = tokens[token]
            if isinstance(text, str):
                special[name] = text
    return Templates(str(header.path), MappingProxyType(texts), MappingProxyType(special))


def _of_directory(directory: Path) -> Templates:
    texts: dict[str, str] = {}
    files = {DEFAULT: directory / "chat_template.jinja"}
    files.update({file.stem: file for file in sorted((directory / "additional_chat_templates").glob("*.jinja"))})
    for name, file in files.items():
        if file.is_file():
            texts[name] = _text(file)
    for file in (directory / "tokenizer_config.json", directory / "chat_template.json"):
        content = _object(file)
        for name, text in (_entries(content, file) if content is not None else {}).items():
            texts.setdefault(name, text)
    return Templates(str(directory), MappingProxyType(texts), _special_beside(directory))


def _special_beside(directory: Path) -> Mapping[str, str]:
    config = _object(directory / "tokenizer_config.json") or {}
    special = _object(directory / "special_tokens_map.json") or {}
    return MappingProxyType({**_special(special), **_special(config)})


def _special(content: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by name; models name further ones in `extra_special_tokens`."""
    extra = content.get("extra_special_tokens")
    given = {**(extra if isinstance(extra, dict) else {}), **{name: content.get(name) for name in SPECIAL_TOKENS}}
    found = {}
    for name, value in given.items():
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str) and text:
            found[name] = text
    return found


def _entries(content: Mapping[str, Any], file: Path) -> dict[str, str]:
    """`chat_template` is a text, an object of texts by name, or a list of objects with `name` and `template`."""
    value = content.get("chat_template")
    if value is None:
        return {}
    entries: list[tuple[object, object]]
    if isinstance(value, dict):
        entries = list(value.items())
    elif isinstance(value, list):
        entries = [(e.get("name"), e.get("template")) if isinstance(e, dict) else (None, None) for e in value]
    else:
        entries = [(DEFAULT, value)]
    texts = {}
    for name, text in entries:
        if not isinstance(name, str) or not isinstance(text, str):
            raise TokenizerError(
                fault(
                    "chat_template",
                    file=file,
                    expected="Jinja text, or several with their names",
                    found=type(value).__name__,
                )
            )
        texts[name] = text
    return texts


def _bytes(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            data = opened.read(_LIMIT * 4 + 1)
    except OSError as error:
        raise TokenizerError(fault("file", file=file, expected="a readable file", found=error.strerror)) from None
    if len(data) > _LIMIT * 4:
        raise TokenizerError(fault("file", file=file, expected=f"at most {_LIMIT * 4} bytes", found="more"))
    return data


def _text(file: Path) -> str:
    try:
        return _bytes(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise TokenizerError(fault("file", file=file, expected="UTF-8 text", found=f"byte {error.start}")) from None


def _object(file: Path) -> dict[str, Any] | None:
    """The JSON object in `file`, or None where there is no such file."""
    if not file.exists():
        return None
    try:
        content = json.loads(_bytes(file))
    except (ValueError, RecursionError) as error:
        raise TokenizerError(fault("JSON", file=file, expected="a JSON object", found=str(error))) from None
    if not isinstance(content, dict):
        raise TokenizerError(fault("JSON", file=file, expected="a JSON object", found=type(content).__name__))
    return content
