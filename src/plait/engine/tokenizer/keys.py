"""The `tokenizer.*` keys of a GGUF, read with checks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final, Protocol, TypeVar, cast

from plait.errors import TokenizerError, fault

__all__ = ["Header", "Keys", "Kind", "Vocabulary", "read_scores", "read_vocabulary"]

T = TypeVar("T")

_ENDS: Final = ("eos_token_id", "eot_token_id", "eom_token_id")


class Header(Protocol):
    """What is needed of a GGUF header: the file it came from and its metadata by key."""

    @property
    def path(self) -> Path: ...

    @property
    def metadata(self) -> Mapping[str, object]: ...


class Kind(IntEnum):
    """`tokenizer.ggml.token_type`, numbered as in SentencePiece's ModelProto."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Keys:
    """Typed access to keys below `tokenizer.ggml.`; every error is a TokenizerError naming file and key."""

    header: Header

    def text(self, key: str) -> str | None:
        return self._of_type(key, str, "a string")

    def flag(self, key: str) -> bool | None:
        return self._of_type(key, bool, "true or false")

    def token(self, key: str, count: int) -> int | None:
        """A token id below `count`."""
        value = self._of_type(key, int, "a token id")
        if value is not None and not 0 <= value < count:
            raise self.error(key, f"a token id below {count}", value)
        return value

    def items(self, key: str) -> Sequence[object] | None:
        """The elements of an array, decoded."""
        found = self.array(key)
        return None if found is None else list(found)

    def array(self, key: str) -> Iterable[object] | None:
        """An array as the header holds it: each pass over a long one decodes it again."""
        value = self.header.metadata.get(_name(key))
        if value is None:
            return None
        if isinstance(value, str | bytes) or not hasattr(value, "__len__") or not hasattr(value, "__iter__"):
            raise self.error(key, "an array", value)
        return cast("Iterable[object]", value)

    def error(self, key: str, expected: object, found: object, advice: str | None = None) -> TokenizerError:
        """A TokenizerError about one key."""
        return TokenizerError(
            fault(_name(key), file=self.header.path, expected=expected, found=_short(found), advice=advice)
        )

    def templates(self) -> tuple[str | None, tuple[str, ...]]:
        """(the default chat template, all chat templates)."""
        every = []
        for key, value in self.header.metadata.items():
            if key == "tokenizer.chat_template" or key.startswith("tokenizer.chat_template."):
                if not isinstance(value, str):
                    raise TokenizerError(fault(key, file=self.header.path, expected="a string", found=_short(value)))
                every.append(value)
        default = self.header.metadata.get("tokenizer.chat_template")
        return default if isinstance(default, str) else None, tuple(every)

    def _of_type(self, key: str, kind: type[T], expected: str) -> T | None:
        value = self.header.metadata.get(_name(key))
        if value is None:
            return None
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.error(key, expected, value)
        return value


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens with their kinds, by id; and the ids that the metadata gives a meaning.

    start is what the file's own rule puts before a text; `ids` maps every spelling to its id.
    """

    tokens: Sequence[str]
    kinds: Sequence[int]
    ids: Mapping[str, int]
    bos: int | None
    eos: tuple[int, ...]
    start: tuple[int, ...]
    adds_eos: bool
    unknown: int | None

    def of(self, *kinds: Kind) -> dict[str, int]:
        """Spelling and id of all tokens of these kinds."""
        wanted = frozenset(map(int, kinds))
        if wanted.isdisjoint(self.kinds):
            return {}
        return {self.tokens[token]: token for token, kind in enumerate(self.kinds) if kind in wanted}

    def ends(self) -> dict[str, int]:
        """The tokens that begin or end texts, but for those that spell a single byte or white space."""
        named = {token for token in (self.bos, *self.eos) if token is not None}
        return {
            self.tokens[token]: token
            for token in sorted(named)
            if self.kinds[token] != Kind.BYTE and len(self.tokens[token].strip()) > 1
        }


def read_vocabulary(keys: Keys, *, adds_bos: bool) -> Vocabulary:
    """Tokens, kinds and special ids. `adds_bos` is what holds where the file does not say."""
    raw = keys.items("tokens")
    if not raw:
        raise keys.error("tokens", "an array of strings", "nothing" if raw is None else "an empty one")
    if not all(raw) or set(map(type, raw)) != {str}:
        place = next(place for place, text in enumerate(raw) if not isinstance(text, str) or not text)
        raise keys.error("tokens", f"a string of at least one character at {place}", raw[place])
    tokens = cast("Sequence[str]", raw)
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(ids) != len(tokens):
        place = next(place for place, text in enumerate(tokens) if ids[text] != place)
        raise keys.error("tokens", "every token once", f"{tokens[place]!r} at {place} and at {ids[tokens[place]]}")
    bos = keys.token("bos_token_id", len(tokens))
    ends = {token for key in _ENDS if (token := keys.token(key, len(tokens))) is not None}
    adds = keys.flag("add_bos_token")
    if adds and bos is None:
        raise keys.error("bos_token_id", "a token id, since add_bos_token is true", "nothing")
    begins = (adds_bos if adds is None else adds) and bos is not None
    return Vocabulary(
        tokens=tokens,
        kinds=_kinds(keys, len(tokens)),
        ids=ids,
        bos=bos,
        eos=tuple(sorted(ends)),
        start=(bos,) if begins and bos is not None else (),
        adds_eos=bool(keys.flag("add_eos_token")),
        unknown=keys.token("unknown_token_id", len(tokens)),
    )


def read_scores(keys: Keys, count: int) -> Sequence[float]:
    """One finite score for each of `count` tokens."""
    raw = keys.items("scores")
    if raw is None or len(raw) != count:
        raise keys.error("scores", f"{count} numbers, one for each token", "nothing" if raw is None else len(raw))
    if set(map(type, raw)) != {float} or not all(map(math.isfinite, cast("Sequence[float]", raw))):
        place = next(i for i, score in enumerate(raw) if not isinstance(score, float) or not math.isfinite(score))
        raise keys.error("scores", f"a finite number at {place}", raw[place])
    return cast("Sequence[float]", raw)


def _kinds(keys: Keys, count: int) -> Sequence[int]:
    raw = keys.items("token_type")
    if raw is None or len(raw) != count:
        raise keys.error("token_type", f"{count} numbers, one for each token", "nothing" if raw is None else len(raw))
    if not set(map(type, raw)) <= {int, bool} or not set(raw) <= frozenset(Kind):
        place = next(i for i, kind in enumerate(raw) if not isinstance(kind, int) or not 1 <= kind <= 6)
        raise keys.error("token_type", f"1 to 6 at {place}", raw[place])
    return cast("Sequence[int]", raw)


def _name(key: str) -> str:
    return f"tokenizer.ggml.{key}"


def _short(value: object) -> str:
    text = repr(value) if not isinstance(value, str) else value
    return text if len(text) <= 80 else text[:77] + "..."
