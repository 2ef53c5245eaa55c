"""A config's keys, read once each and accounted for.

`ConfigReader` stands between a family's parser and the keys of a config.json or of a GGUF header. Every read names
the blueprint field it serves, so that evidence and coverage fall out of the reading itself: a key nobody asked for
is unknown, a default is recorded as such, and two spellings of one fact must agree.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, TypeVar

from plait.blueprint.spec import Evidence
from plait.errors import ConfigError, fault

__all__ = ["MAX_LAYERS", "REQUIRED", "ConfigReader", "Coverage", "Missing", "read_json"]

_MAX_JSON_BYTES: Final = 64 * 2**20
# Above any size of a real model, so that no product of sizes grows without bound.
_MAX_INTEGER: Final = 2**40
# Layers become objects: a damaged count must cost neither memory nor seconds. Real models have hundreds.
MAX_LAYERS: Final = 2_000

T = TypeVar("T")


class Missing(Enum):
    """`REQUIRED` in place of a default: the key must be there."""

    REQUIRED = "required"


REQUIRED: Final = Missing.REQUIRED


@dataclass(frozen=True, slots=True)
class Coverage:
    """Keys of a file, dotted: used for the blueprint, known to be irrelevant, unknown to Plait."""

    used: tuple[str, ...]
    irrelevant: tuple[str, ...]
    unknown: tuple[str, ...]


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise ConfigError(f"key {key!r} stands twice in one object")
        result[key] = value
    return result


def read_json(path: Path) -> dict[str, object]:
    """The object a JSON file holds; malformed, oversized and duplicate-key files are errors."""
    try:
        size = path.stat().st_size
        if size > _MAX_JSON_BYTES:
            raise ConfigError(
                fault("too large for a config", file=path, expected=f"at most {_MAX_JSON_BYTES} bytes", found=size)
            )
        data = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_no_duplicates)
    except OSError as error:
        raise ConfigError(fault(f"cannot be read ({error.strerror})", file=path)) from error
    except ConfigError as error:
        raise ConfigError(fault(str(error), file=path)) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(fault(f"is not valid JSON ({error})", file=path)) from error
    if not isinstance(data, dict):
        raise ConfigError(fault("wrong top level", file=path, expected="a JSON object", found=type(data).__name__))
    return data


def _shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MAX_INTEGER


class ConfigReader:
    """Typed reads of one object of keys, with evidence and coverage. Sections share their parent's records."""

    def __init__(
        self,
        data: Mapping[str, object],
        *,
        file: str,
        prefix: str = "",
        root: ConfigReader | None = None,
    ) -> None:
        self._data = data
        self._prefix = prefix
        self.file = file
        self._root = root if root is not None else self
        if root is None:
            self.evidence: dict[str, Evidence] = {}
            self._used: set[str] = set()
            self._irrelevant: set[str] = set()
        else:
            self.evidence = root.evidence
            self._used = root._used
            self._irrelevant = root._irrelevant

    # -- looking -----------------------------------------------------------------------------------------------

    def __contains__(self, key: str) -> bool:
        return key in self._data

    def dotted(self, key: str) -> str:
        """The key as messages and coverage write it."""
        return self._prefix + key

    def keys(self) -> tuple[str, ...]:
        """The keys of this object. Does not count as a use."""
        return tuple(self._data)

    def given(self, key: str) -> bool:
        """The key is there and not null. Does not count as a use."""
        return self._data.get(key) is not None

    def is_text(self, key: str) -> bool:
        """The value is a string, for keys that have a short and a long form. Does not count as a use."""
        return isinstance(self._data.get(key), str)

    def holds_objects(self) -> bool:
        """Some value is itself an object, as in settings that are given per layer type."""
        return any(isinstance(value, Mapping) for value in self._data.values())

    def error(self, key: str, *, expected: object, found: object, advice: str | None = None) -> ConfigError:
        """A ConfigError about `key` in this file."""
        return ConfigError(
            fault(f"key {self.dotted(key)!r}", file=self.file, expected=expected, found=found, advice=advice)
        )

    def section(self, key: str) -> ConfigReader | None:
        """The object under `key`, None where it is absent or null."""
        value = self._data.get(key)
        self._used.add(self.dotted(key))
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(key, expected="an object", found=_shown(value))
        return ConfigReader(value, file=self.file, prefix=self.dotted(key) + ".", root=self._root)

    # -- recording ---------------------------------------------------------------------------------------------

    def record(self, field: str, origin: str, key: str, value: object) -> None:
        """Evidence for `field` that no single read gives: a convention or a derived value."""
        if origin not in ("key", "default", "convention", "derived"):
            raise ValueError(origin)
        self.evidence[field] = Evidence(origin, key, _shown(value))  # type: ignore[arg-type]

    def irrelevant(self, *keys: str) -> None:
        """Keys known to say nothing about the architecture; whole sections too."""
        self._irrelevant.update(self.dotted(key) for key in keys)

    def use(self, *keys: str) -> None:
        """Mark keys as used that were looked at without a typed read."""
        self._used.update(self.dotted(key) for key in keys if key in self._data)

    # -- typed reads -------------------------------------------------------------------------------------------

    def _raw(self, keys: tuple[str, ...], field: str | None, default: T | Missing) -> object | T:
        """Value of the one fact that `keys` spell; a null counts as absent."""
        present = [key for key in keys if self._data.get(key) is not None]
        self.use(*keys)
        if not present:
            if default is REQUIRED:
                raise ConfigError(
                    fault(f"key {self.dotted(keys[0])!r} is missing", file=self.file, advice="it has no default")
                )
            if field is not None:
                self.evidence[field] = Evidence("default", self.dotted(keys[0]), _shown(default))
            return default
        value = self._data[present[0]]
        for other in present[1:]:
            if self._data[other] != value:
                raise ConfigError(
                    fault(
                        f"keys {self.dotted(present[0])!r} and {self.dotted(other)!r} disagree",
                        file=self.file,
                        expected="two spellings of one fact to be equal",
                        found=f"{_shown(value)} and {_shown(self._data[other])}",
                    )
                )
        if field is not None:
            self.evidence[field] = Evidence("key", self.dotted(present[0]), _shown(value))
        return value

    def integer(
        self,
        *keys: str,
        field: str | None = None,
        default: int | Missing = REQUIRED,
        minimum: int = 1,
        maximum: int = _MAX_INTEGER,
    ) -> int:
        value = self._raw(keys, field, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise self.error(keys[0], expected=f"an integer of at least {minimum}", found=_shown(value))
        if value > maximum:
            raise self.error(keys[0], expected=f"an integer of at most {maximum}", found=_shown(value))
        return value

    def optional_integer(
        self, *keys: str, field: str | None = None, default: int | None = None, minimum: int = 1
    ) -> int | None:
        """As `integer`; absent means `default`, null means None."""
        if any(key in self._data and self._data[key] is None for key in keys) and not any(map(self.given, keys)):
            self.use(*keys)
            if field is not None:
                self.evidence[field] = Evidence("key", self.dotted(keys[0]), "null")
            return None
        if default is None and not any(map(self.given, keys)):
            self._raw(keys, field, None)
            return None
        return self.integer(*keys, field=field, default=REQUIRED if default is None else default, minimum=minimum)

    def number(
        self,
        *keys: str,
        field: str | None = None,
        default: float | Missing = REQUIRED,
        positive: bool = True,
    ) -> float:
        value = self._raw(keys, field, default)
        # An integer above the largest float counts as infinite; comparing needs no conversion.
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= sys.float_info.max:
            raise self.error(keys[0], expected="a finite number", found=_shown(value))
        if positive and value <= 0:
            raise self.error(keys[0], expected="a positive number", found=_shown(value))
        return float(value)

    def optional_number(self, *keys: str, field: str | None = None, default: float | None = None) -> float | None:
        """A positive number; absent means `default`, null means None."""
        if any(key in self._data and self._data[key] is None for key in keys) and not any(map(self.given, keys)):
            self.use(*keys)
            if field is not None:
                self.evidence[field] = Evidence("key", self.dotted(keys[0]), "null")
            return None
        if default is None and not any(map(self.given, keys)):
            self._raw(keys, field, None)
            return None
        return self.number(*keys, field=field, default=REQUIRED if default is None else default)

    def boolean(self, *keys: str, field: str | None = None, default: bool | Missing = REQUIRED) -> bool:
        value = self._raw(keys, field, default)
        if not isinstance(value, bool):
            raise self.error(keys[0], expected="true or false", found=_shown(value))
        return value

    def text(self, *keys: str, field: str | None = None, default: str | Missing = REQUIRED) -> str:
        value = self._raw(keys, field, default)
        if not isinstance(value, str):
            raise self.error(keys[0], expected="a string", found=_shown(value))
        return value

    def choice(
        self,
        *keys: str,
        among: Mapping[str, T],
        field: str | None = None,
        default: str | Missing = REQUIRED,
    ) -> T:
        """The value that `among` gives the word under `keys`."""
        word = self.text(*keys, field=field, default=default)
        if word not in among:
            raise self.error(keys[0], expected="one of " + ", ".join(map(repr, among)), found=_shown(word))
        return among[word]

    def words(self, key: str, *, field: str | None = None, length: int | None = None) -> tuple[str, ...] | None:
        """A list of strings, None where absent or null."""
        value = self._raw((key,), field, None)
        if value is None:
            return None
        if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(v, str) for v in value):
            raise self.error(key, expected="a list of strings", found=_shown(value))
        if length is not None and len(value) != length:
            raise self.error(key, expected=f"{length} entries, one per layer", found=len(value))
        return tuple(str(v) for v in value)

    def integers(self, key: str, *, field: str | None = None, length: int, minimum: int = 0) -> tuple[int, ...] | None:
        """An integer for each of `length` layers: a list of that length, or one number for all; None where absent."""
        value = self._raw((key,), field, None)
        if value is None:
            return None
        items = value if isinstance(value, Sequence) and not isinstance(value, str) else [value] * length
        for item in items:
            if not isinstance(item, int) or isinstance(item, bool) or not minimum <= item <= _MAX_INTEGER:
                wanted = f"integers of at least {minimum} and at most {_MAX_INTEGER}"
                raise self.error(key, expected=wanted, found=_shown(item))
        if len(items) != length:
            raise self.error(key, expected=f"{length} entries, one per layer", found=len(items))
        return tuple(items)

    def numbers(
        self, key: str, *, field: str | None = None, length: int, infinite: bool = False
    ) -> tuple[float, ...] | None:
        """A number for each of `length` layers: a list of that length, None where absent; `infinite`: may be +-inf."""
        value = self._raw((key,), field, None)
        if value is None:
            return None
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise self.error(key, expected="a list of numbers", found=_shown(value))
        for item in value:
            number = isinstance(item, int | float) and not isinstance(item, bool) and item == item
            if not number or not (infinite or abs(item) <= sys.float_info.max):
                raise self.error(key, expected="a list of finite numbers", found=_shown(item))
        if len(value) != length:
            raise self.error(key, expected=f"{length} entries, one per layer", found=len(value))
        return tuple(float(item) for item in value)

    def pairs(
        self, key: str, *, field: str | None = None, default: tuple[tuple[int, int], ...]
    ) -> tuple[tuple[int, int], ...]:
        """Pairs of integers of at least 1, as many as the default has."""
        value = self._raw((key,), field, default)
        found = []
        for item in value if isinstance(value, list | tuple) and len(value) == len(default) else ():
            if isinstance(item, list | tuple) and len(item) == 2 and all(map(_is_size, item)):
                found.append((int(item[0]), int(item[1])))
        if len(found) != len(default):
            raise self.error(key, expected=f"{len(default)} pairs of integers of at least 1", found=_shown(value))
        return tuple(found)

    def booleans(self, key: str, *, field: str | None = None, length: int) -> tuple[bool, ...] | None:
        """A list of `length` booleans, None where absent or not a list."""
        if not isinstance(self._data.get(key), list | tuple):
            return None
        value = self._raw((key,), field, None)
        assert isinstance(value, list | tuple)
        if not all(isinstance(v, bool) for v in value):
            raise self.error(key, expected="a list of booleans", found=_shown(value))
        if len(value) != length:
            raise self.error(key, expected=f"{length} entries, one per layer", found=len(value))
        return tuple(value)

    def indices(self, key: str, *, field: str | None = None) -> tuple[int, ...]:
        """A list of layer numbers, empty where absent or null."""
        value = self._raw((key,), field, ())
        items = value if isinstance(value, list | tuple) else [value]
        if not all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v <= _MAX_INTEGER for v in items):
            raise self.error(key, expected="a list of layer numbers", found=_shown(value))
        return tuple(items)

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One id, a list of ids, or nothing."""
        value = self._raw((key,), None, None)
        items = value if isinstance(value, list | tuple) else [] if value is None else [value]
        if not all(isinstance(v, int) and not isinstance(v, bool) for v in items):
            raise self.error(key, expected="a token id or a list of them", found=_shown(value))
        return tuple(items)

    # -- coverage ----------------------------------------------------------------------------------------------

    def coverage(self) -> Coverage:
        """All keys below the root, each in one list; a section that was never entered counts as one key."""
        used: list[str] = []
        irrelevant: list[str] = []
        unknown: list[str] = []

        def walk(data: Mapping[str, object], prefix: str) -> None:
            for key, value in data.items():
                dotted = prefix + key
                if dotted in self._irrelevant:
                    irrelevant.append(dotted)
                elif dotted not in self._used:
                    unknown.append(dotted)
                elif isinstance(value, Mapping):
                    walk(value, dotted + ".")
                else:
                    used.append(dotted)

        walk(self._root._data, self._root._prefix)
        return Coverage(tuple(used), tuple(irrelevant), tuple(unknown))
