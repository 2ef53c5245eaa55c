"""Which tokens the chat template uses as markers, so that plain text must not be able to spell them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import Final

import jinja2

from plait.engine.tokenizer.spelling import SPACE

__all__ = ["markers"]

_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_CONTROL_ESCAPES: Final = MappingProxyType({"n": "\n", "r": "\r", "t": "\t"})


def markers(tokens: Iterable[str], templates: Sequence[str]) -> frozenset[str]:
    """Those of `tokens` that one of the templates writes literally, in its text or in a string literal.

    White space is never a marker: every template writes line breaks, and forging one forges nothing.
    """
    written = "\0".join(part for template in templates for part in _literals(template))
    return frozenset(token for token in tokens if token.replace(SPACE, " ").strip() and token in written)


def _literals(template: str) -> list[str]:
    try:
        parts = list(jinja2.Environment(autoescape=False).lex(template))
    except jinja2.TemplateError:
        # A template that cannot be read still says which markers it means.
        return [template]
    texts = [value for _, kind, value in parts if kind == "data"]
    strings = [value[1:-1] for _, kind, value in parts if kind == "string"]
    return texts + strings + [_ESCAPE.sub(_unescape, text) for text in strings if "\\" in text]


def _unescape(match: re.Match[str]) -> str:
    code = match[1] or match[2]
    return chr(int(code, 16)) if code else _CONTROL_ESCAPES.get(match[3], match[3])
