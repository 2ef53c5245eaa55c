"""Errors as the OpenAI API writes them: a status and `{"error": {message, type, param, code}}`."""

from __future__ import annotations

import math
import re
import sys
import traceback
from collections.abc import Mapping
from http import HTTPStatus
from os import environ
from typing import Literal

from starlette.responses import JSONResponse, Response
from typing_extensions import TypedDict

from plait.errors import ContextExceeded, PlaitError, QueueFull, UserError

__all__ = ["ApiFault", "ErrorBody", "ErrorObject", "fault_of", "not_found", "stopping"]

ErrorKind = Literal[
    "invalid_request_error", "authentication_error", "not_found_error", "rate_limit_error", "server_error"
]


class ErrorObject(TypedDict):
    """`param` is the path of the field that is at fault, `code` a word for programs."""

    message: str
    type: ErrorKind
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    """The body of every answer that is no success."""

    error: ErrorObject


class ApiFault(Exception):
    """A request that ends with an error."""

    def __init__(
        self,
        message: str,
        *,
        status: int = HTTPStatus.BAD_REQUEST,
        kind: ErrorKind = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = int(status)
        self.kind: ErrorKind = kind
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> ErrorBody:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        return JSONResponse(self.body(), status_code=self.status, headers=self.headers)


def not_found(what: str) -> ApiFault:
    return ApiFault(what, status=HTTPStatus.NOT_FOUND, kind="not_found_error", code="not_found")


def stopping(retry_after: int) -> ApiFault:
    """The server is on its way out; another one may take its place."""
    return ApiFault(
        "the server is stopping and takes no more work",
        status=HTTPStatus.SERVICE_UNAVAILABLE,
        kind="server_error",
        code="stopping",
        headers={"Retry-After": str(retry_after), "Connection": "close"},
    )


def fault_of(error: Exception, prompt: str = "prompt") -> ApiFault:
    """The answer to a failure. `prompt`: the field that holds what the model is given."""
    if isinstance(error, ApiFault):
        return error
    if isinstance(error, QueueFull):
        return ApiFault(
            str(error),
            status=HTTPStatus.TOO_MANY_REQUESTS,
            kind="rate_limit_error",
            code="queue_full",
            headers={"Retry-After": str(max(1, math.ceil(error.retry_after)))},
        )
    if isinstance(error, ContextExceeded):
        return ApiFault(str(error), param=prompt, code="context_length_exceeded")
    if isinstance(error, UserError):
        return ApiFault(str(error), param=_param(str(error), prompt), code="invalid_value")
    if isinstance(error, PlaitError):
        _say(str(error))
        return _failed(str(error))
    # Not raised on purpose: its text is for the log alone.
    _say(f"internal error: {type(error).__name__}: {error}")
    if environ.get("PLAIT_TRACEBACK"):
        traceback.print_exception(error)
    return _failed(f"internal error ({type(error).__name__})")


def _failed(message: str) -> ApiFault:
    return ApiFault(message, status=HTTPStatus.INTERNAL_SERVER_ERROR, kind="server_error", code="engine_failed")


def _say(text: str) -> None:
    print(f"plait: {' '.join(text.split())}", file=sys.stderr, flush=True)


def _param(message: str, prompt: str) -> str | None:
    """The field an error of the engine speaks of, where it says so."""
    if found := re.search(r"\bmessage (\d+)\b", message):
        return f"messages[{found[1]}]"
    if found := re.search(r"\bvariable '(\w+)'", message):
        return f"chat_template_kwargs.{found[1]}"
    if found := re.search(r"(?:^|: )(tools|documents|stop|max_tokens|speculate)\b[^:]*: expected", message):
        return found[1]
    if "token id" in message or "the prompt is empty" in message or "the prompt has no tokens" in message:
        return prompt
    return None
