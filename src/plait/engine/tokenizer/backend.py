"""The only place that calls the `tokenizers` library, so that all its errors become ours."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from tokenizers import AddedToken
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers.models import BPE, Model

from plait.errors import TokenizerError, fault

__all__ = ["Library", "byte_pairs"]


_NONE: Final = MappingProxyType({"type": "BPE", "vocab": {}, "merges": []})
_FLAGS: Final = ("single_word", "lstrip", "rstrip", "normalized", "special")
_TEXTS: Final = ("unk_token", "continuing_subword_prefix", "end_of_word_suffix")
_SWITCHES: Final = ("fuse_unk", "byte_fallback", "ignore_merges")


def byte_pairs(vocabulary: dict[str, int], merges: Sequence[tuple[str, str]], file: str | Path, **rest: Any) -> BPE:
    """A model of byte-pair encoding, made without a text of it: that would take twice as long.

    Raises TokenizerError for merges that are not two tokens which make a third.
    """
    try:
        return BPE(vocabulary, merges, **rest)
    except BaseException as error:
        raise _wrapped("merges", file, error) from None


class Library:
    """A tokenizer of the `tokenizers` library, built from the content of a tokenizer.json."""

    __slots__ = ("_file", "_inner")

    def __init__(self, document: Mapping[str, Any], file: str | Path, model: Model | None = None) -> None:
        """`model` takes the place of the document's. Raises TokenizerError for a document that the library refuses."""
        self._file = file
        usual = all(type(entry.get(flag)) is bool for entry in _added(document) for flag in _FLAGS)
        if model is None and usual:
            model = _from_parts(document["model"], file)
        try:
            if model is None or not usual:
                self._inner = LibraryTokenizer.from_str(json.dumps(document))
                return
            around = {**document, "added_tokens": [], "model": dict(_NONE)}
            self._inner = LibraryTokenizer.from_str(json.dumps(around))
            self._inner.model = model
            self._inner.add_tokens(
                [AddedToken(entry["content"], **{flag: entry[flag] for flag in _FLAGS}) for entry in _added(document)]
            )
        except BaseException as error:
            raise _wrapped("tokenizer", file, error) from None

    @property
    def model(self) -> Model:
        """The model alone, to be shared: it does not change."""
        model: Model = self._inner.model
        return model

    def encode(self, text: str) -> list[int]:
        """Ids of `text` alone: nothing is put before or after it."""
        try:
            return list(self._inner.encode(text, add_special_tokens=False).ids)
        except BaseException as error:
            raise _wrapped("encoding a text", self._file, error) from None

    def id_of(self, text: str) -> int | None:
        """The id of a token by its exact vocabulary string."""
        return self._inner.token_to_id(text)

    def text_of(self, token: int) -> str | None:
        """The vocabulary string of an id, or None."""
        return self._inner.id_to_token(token) if token < 1 << 32 else None


def _added(document: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = document["added_tokens"]
    return found


def _from_parts(model: Mapping[str, Any], file: str | Path) -> BPE | None:
    """Byte-pair encoding in its usual form; the library reads all else from a text, and says best what is wrong."""
    vocabulary, merges = model["vocab"], model.get("merges")
    rest = {name: value for name, value in model.items() if name not in _NONE and value is not None}
    if (
        model.get("type") != "BPE"
        or not isinstance(vocabulary, dict)
        or not set(map(type, vocabulary.values())) <= {int}
        or not isinstance(merges, list)
        or not rest.keys() <= {*_TEXTS, *_SWITCHES}
        or not all(type(value) is (str if name in _TEXTS else bool) for name, value in rest.items())
    ):
        return None
    kinds = set(map(type, merges))
    if kinds <= {list}:
        pairs = list(map(tuple, merges))
    elif kinds == {str} and not any(merge.startswith("#version") for merge in merges):
        pairs = [tuple(merge.split(" ")) for merge in merges]
    else:
        return None
    try:
        return byte_pairs(vocabulary, pairs, file, **rest)
    except TokenizerError:
        return None


def _wrapped(what: str, file: str | Path, error: BaseException) -> BaseException:
    # A panic in the library is a BaseException of its own kind; interrupts must pass through.
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        return error
    detail = " ".join(str(error).split())
    return TokenizerError(fault(what, file=file, expected="what the tokenizers library reads", found=detail))
