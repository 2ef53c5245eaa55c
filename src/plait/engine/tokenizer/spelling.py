"""How a vocabulary entry is spelled, and the bytes it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from plait.errors import TokenizerError, fault

__all__ = ["BYTE_LEVEL", "SPACE", "Spelling", "byte_of", "parse_decoder"]

SPACE: Final = "\u2581"  # SentencePiece writes a space as LOWER ONE EIGHTH BLOCK


def _byte_alphabet() -> Mapping[str, int]:
    """GPT-2's one printable character for each byte: bytes that print stand for themselves."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = [byte for byte in range(256) if byte not in own]
    table = {chr(byte): byte for byte in own}
    table.update({chr(256 + place): byte for place, byte in enumerate(other)})
    return MappingProxyType(table)


BYTE_LEVEL: Final = _byte_alphabet()


def byte_of(text: str) -> int | None:
    """The byte that a byte-fallback token such as "<0x0A>" stands for."""
    if len(text) != 6 or not text.startswith("<0x") or not text.endswith(">"):
        return None
    digits = text[3:5]
    if any(digit not in "0123456789abcdefABCDEF" for digit in digits):
        return None
    return int(digits, 16)


@dataclass(frozen=True, slots=True)
class Spelling:
    """The decoder of a tokenizer.json, as far as it concerns single tokens.

    byte_level    characters are GPT-2's byte alphabet
    replace       (old, new) applied to every token, in this order
    fallback      "<0xNN>" stands for that byte
    first_space   one space at the beginning of a text is not part of it
    """

    byte_level: bool = False
    replace: tuple[tuple[str, str], ...] = ()
    fallback: bool = False
    first_space: bool = False

    def spell(self, text: str, *, added: bool) -> bytes:
        """The bytes of the token `text`; added tokens are written as they are, not in the byte alphabet."""
        if self.byte_level and not added:
            values = [BYTE_LEVEL.get(char) for char in text]
            known = [value for value in values if value is not None]
            return bytes(known) if len(known) == len(values) else text.encode()
        if self.fallback:
            byte = byte_of(text)
            if byte is not None:
                return bytes((byte,))
        for old, new in self.replace:
            text = text.replace(old, new)
        return text.encode()


def parse_decoder(decoder: object, file: str | Path) -> Spelling:
    """`decoder` of a tokenizer.json. Raises TokenizerError for kinds that cannot be decoded token by token."""
    byte_level = fallback = first_space = False
    replace: list[tuple[str, str]] = []
    for step in _steps(decoder):
        kind = step.get("type")
        if kind == "ByteLevel":
            byte_level = True
        elif kind == "ByteFallback":
            fallback = True
        elif kind == "Fuse":
            continue
        elif kind == "Metaspace":
            replace.append((str(step.get("replacement", SPACE)), " "))
            first_space = _prepends(step)
        elif kind == "Replace" and (old := _pattern(step.get("pattern"))):
            replace.append((old, str(step.get("content", ""))))
        elif kind == "Strip" and (step.get("content"), step.get("start"), step.get("stop")) == (" ", 1, 0):
            first_space = True
        else:
            raise _unknown(file, kind)
    if not (byte_level or replace or fallback):
        raise _unknown(file, "none" if decoder is None else decoder)
    return Spelling(byte_level, tuple(replace), fallback, first_space)


def _steps(decoder: object) -> list[dict[str, object]]:
    if not isinstance(decoder, dict):
        return []
    if decoder.get("type") != "Sequence":
        return [decoder]
    inner = decoder.get("decoders")
    return [step for part in inner for step in _steps(part)] if isinstance(inner, list) else []


def _prepends(step: Mapping[str, object]) -> bool:
    if "prepend_scheme" in step:
        return step["prepend_scheme"] != "never"
    return step.get("add_prefix_space") is not False


def _pattern(pattern: object) -> str:
    text = pattern.get("String") if isinstance(pattern, dict) else None
    return text if isinstance(text, str) else ""


def _unknown(file: str | Path, found: object) -> TokenizerError:
    return TokenizerError(
        fault(
            "decoder",
            file=file,
            expected="ByteLevel, Metaspace, or Replace with ByteFallback, Fuse and Strip of one leading space",
            found=found,
        )
    )
