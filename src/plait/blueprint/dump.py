"""A blueprint as plain JSON values, and back: `load(dump(b)) == b`, names, tokens and evidence included.

Every object carries its kind under `type`; tuples are lists. Loading is strict: a missing, unknown or misshaped field
is a ConfigError that names its path.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from math import isfinite
from types import MappingProxyType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from plait.blueprint import spec
from plait.blueprint.check import check
from plait.blueprint.spec import Blueprint
from plait.errors import ConfigError, fault

__all__ = ["FORMAT", "dump", "load"]

FORMAT: Final = 1
_KINDS: Final[Mapping[str, type]] = MappingProxyType(
    {name: kind for name, kind in vars(spec).items() if isinstance(kind, type) and is_dataclass(kind)}
)


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        made: dict[str, object] = {"type": type(value).__name__}
        made.update((item.name, _plain(getattr(value, item.name))) for item in fields(value))
        return made
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value


def dump(blueprint: Blueprint) -> dict[str, object]:
    """The blueprint as dicts, lists, strings, numbers, booleans and None; `format` is the version of this form."""
    made = _plain(blueprint)
    assert isinstance(made, dict)
    return {"format": FORMAT, **made}


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    return MappingProxyType(get_type_hints(kind))


def _error(file: str, path: str, expected: object, found: object) -> ConfigError:
    text = found if isinstance(found, str) and found in ("nothing",) else repr(found)
    return ConfigError(
        fault(f"key {path!r}", file=file, expected=expected, found=text if len(text) <= 60 else text[:57] + "...")
    )


def _object(value: object, kinds: tuple[type, ...], path: str, file: str) -> object:
    names = tuple(kind.__name__ for kind in kinds)
    if not isinstance(value, Mapping):
        raise _error(file, path, f"an object of type {' or '.join(names)}", value)
    tag = value.get("type")
    if tag not in names:
        raise _error(file, f"{path}.type", " or ".join(names), tag)
    kind = kinds[names.index(tag)]
    hints = _hints(kind)
    for key in value:
        if key != "type" and key not in hints:
            raise _error(file, f"{path}.{key}", f"no such field in {tag}", value[key])
    for key in hints:
        if key not in value:
            raise _error(file, f"{path}.{key}", f"a field of {tag}", "nothing")
    return kind(**{key: _typed(value[key], hint, f"{path}.{key}", file) for key, hint in hints.items()})


def _typed(value: object, hint: Any, path: str, file: str) -> object:
    """`value` as `hint` wants it; the hints of the spec are scalars, literals, tuples, unions, mappings and objects."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        options = tuple(item for item in arguments if item is not type(None))
        if all(map(is_dataclass, options)):
            return _object(value, options, path, file)
        (hint,) = options
        return _typed(value, hint, path, file)
    if origin is Literal:
        if not isinstance(value, str) or value not in arguments:
            raise _error(file, path, "one of " + ", ".join(arguments), value)
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise _error(file, path, "a list", value)
        return tuple(_typed(item, arguments[0], f"{path}[{i}]", file) for i, item in enumerate(value))
    if origin is Mapping:
        if not isinstance(value, Mapping):
            raise _error(file, path, "an object", value)
        return MappingProxyType({key: _typed(item, arguments[1], f"{path}.{key}", file) for key, item in value.items()})
    if is_dataclass(hint):
        assert isinstance(hint, type)
        return _object(value, (hint,), path, file)
    return _scalar(value, hint, path, file)


def _scalar(value: object, hint: type, path: str, file: str) -> object:
    if hint is float:
        # JSON writers may drop the point of a whole number.
        if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value):
            raise _error(file, path, "a finite number", value)
        return float(value)
    if type(value) is not hint:
        words = {int: "an integer", bool: "true or false", str: "a string"}
        raise _error(file, path, words[hint], value)
    return value


def load(data: Mapping[str, object], *, file: str = "dump") -> Blueprint:
    """The blueprint that `dump` wrote; `file` is what errors call the source."""
    if data.get("format") != FORMAT:
        raise _error(file, "format", FORMAT, data.get("format"))
    body = {key: value for key, value in data.items() if key != "format"}
    made = _object(body, (_KINDS["Blueprint"],), "blueprint", file)
    assert isinstance(made, Blueprint)
    return check(made, file)
