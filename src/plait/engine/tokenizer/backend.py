"""The only place that calls the `tokenizers` library, so that all its errors become ours."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers.models import BPE

from plait.errors import TokenizerError, fault

__all__ = ["Library", "byte_pairs"]


def byte_pairs(
    vocabulary: dict[str, int], merges: Sequence[tuple[str, str]], file: str | Path, *, whole_words: bool
) -> BPE:
    """A model of byte-pair encoding, made without a text of it: that would take twice as long.

    Raises TokenizerError for merges that are not two tokens which make a third.
    """
    try:
        return BPE(vocabulary, merges, ignore_merges=whole_words)
    except BaseException as error:
        raise _wrapped("merges", file, error) from None


class Library:
    """A tokenizer of the `tokenizers` library, built from the content of a tokenizer.json."""

    __slots__ = ("_file", "_inner")

    def __init__(self, document: Mapping[str, object], file: str | Path, model: BPE | None = None) -> None:
        """`model` replaces that of the document. Raises TokenizerError for a document that the library refuses."""
        self._file = file
        try:
            self._inner = LibraryTokenizer.from_str(json.dumps(document))
            if model is not None:
                self._inner.model = model
        except BaseException as error:
            raise _wrapped("tokenizer", file, error) from None

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

    def ids(self) -> Mapping[str, int]:
        """All vocabulary strings with their ids, added tokens included (a fresh copy)."""
        return self._inner.get_vocab(with_added_tokens=True)


def _wrapped(what: str, file: str | Path, error: BaseException) -> BaseException:
    # A panic in the library is a BaseException of its own kind; interrupts must pass through.
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        return error
    detail = " ".join(str(error).split())
    return TokenizerError(fault(what, file=file, expected="what the tokenizers library reads", found=detail))
