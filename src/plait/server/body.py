"""From the bytes of a request to a checked request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final, NoReturn, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect, Request

from plait.errors import fault
from plait.server.faults import ApiFault
from plait.server.schema import Strict
from plait.server.settings import Settings

__all__ = ["parsed", "read_body"]

# Words for what pydantic finds wrong, with the figures it gives.
_WANTED: Final = MappingProxyType(
    {
        "string_type": "a string",
        "int_type": "an integer",
        "float_type": "a number",
        "bool_type": "true or false",
        "list_type": "an array",
        "dict_type": "an object",
        "model_type": "an object",
        "finite_number": "a finite number",
        "literal_error": "{expected}",
        "greater_than": "above {gt}",
        "greater_than_equal": "at least {ge}",
        "less_than": "below {lt}",
        "less_than_equal": "at most {le}",
        "string_too_short": "at least {min_length} characters",
        "too_short": "at least {min_length} items",
        "too_long": "at most {max_length} items",
    }
)

Body = TypeVar("Body", bound=Strict)


async def read_body(request: Request, settings: Settings) -> bytes:
    """The whole body. ApiFault: no JSON is announced, it is too long, or it does not arrive."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # A browser sends other types to any address without asking first.
        raise ApiFault(
            fault("header Content-Type", expected="application/json", found=repr(kind) if kind else "none"),
            status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            code="unsupported_media_type",
        )
    found = bytearray()
    try:
        async with asyncio.timeout(settings.body_seconds):
            async for piece in request.stream():
                found += piece
                if len(found) > settings.body_bytes:
                    raise _too_long(settings.body_bytes)
    except TimeoutError:
        raise ApiFault(
            f"the body did not arrive within {settings.body_seconds:g} s",
            status=HTTPStatus.REQUEST_TIMEOUT,
            code="timeout",
            headers={"Connection": "close"},
        ) from None
    except ClientDisconnect:
        raise ApiFault("the client left", status=HTTPStatus.BAD_REQUEST) from None
    return bytes(found)


def _too_long(limit: int) -> ApiFault:
    return ApiFault(
        fault("request body", expected=f"at most {limit} bytes", found="more"),
        status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        code="body_too_long",
        headers={"Connection": "close"},
    )


def parsed(data: bytes, kind: type[Body]) -> tuple[Body, dict[str, Any]]:
    """(checked request, the object as it was sent). ApiFault names the first field that is wrong, by its path."""
    try:
        found = json.loads(data.decode("utf-8"), object_pairs_hook=_object, parse_constant=_no_number)
    except UnicodeDecodeError as error:
        raise ApiFault(fault("request body", expected="UTF-8", found=f"byte {error.start}"), code="bad_json") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}: {error.msg}"
        raise ApiFault(fault("request body", expected="JSON", found=where), code="bad_json") from None
    except RecursionError:
        raise ApiFault(fault("request body", expected="JSON", found="one nested too deep"), code="bad_json") from None
    except ValueError as error:
        # What is no fault of ours to word: Python reads no integer of thousands of digits.
        why = "an integer that is too long" if str(error).startswith("Exceeds") else str(error)
        raise ApiFault(fault("request body", expected="JSON", found=why), code="bad_json") from None
    if not isinstance(found, dict):
        raise ApiFault(fault("request body", expected="a JSON object", found=_kind(found)), code="bad_json")
    try:
        return kind.model_validate(found), found
    except ValidationError as error:
        raise _named(error.errors(include_url=False)) from None
    except RecursionError:
        raise ApiFault(fault("request body", expected="JSON", found="one nested too deep"), code="bad_json") from None


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:80]!r} twice in one object")
    if not all(map(str.isascii, made)):
        try:
            "".join(made).encode()
        except UnicodeEncodeError:
            raise ValueError("a key that is no Unicode text") from None
    return made


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text}, which is no JSON number")


def _named(errors: Sequence[ErrorDetails]) -> ApiFault:
    # What is there says more than what is missing because of it: a misspelt field, a part of another kind.
    first = next((error for error in errors if error["type"] != "missing"), errors[0])
    param = _path(first["loc"])
    kind, value = first["type"], first["input"]
    if kind == "extra_forbidden":
        return ApiFault(f"{param}: unknown field; leave it out", param=param, code="unknown_parameter")
    if kind == "none_required":
        return ApiFault(
            f"{param}: not supported by this server; leave it out", param=param, code="unsupported_parameter"
        )
    if kind == "missing":
        return ApiFault(f"{param}: required, and not there", param=param, code="missing_required_parameter")
    wanted = _WANTED.get(kind, first["msg"].removeprefix("Input should be ")).format(**first.get("ctx", {}))
    return ApiFault(fault(param, expected=wanted, found=_kind(value)), param=param, code="invalid_value")


def _path(loc: Sequence[int | str]) -> str:
    """`messages[2].content[0].type`; the ways a field may be written are no part of it."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith("<") and part not in ("str", "dict[str,any]"):
            path += f".{part}" if path else part
    return path[:200]


def _kind(value: object) -> str:
    """A value of JSON in a few words."""
    if isinstance(value, str):
        return f"the string {value[:40]!r}"
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 128 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return repr(value)
    return f"an array of {len(value)} items" if isinstance(value, list) else "an object"
