"""What a template takes, found by rendering small conversations with it: never by its name or its text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from plait.engine.chat.template import ChatTemplate
from plait.engine.chat.traced import TEMPLATE, Traced
from plait.errors import PlaitError

__all__ = ["CALL_ID", "Accepts", "attempt", "probe_tool", "said", "tool_call"]

Forms = Literal["string", "object", "both", "none"]
Contents = Literal["string", "parts", "both"]

_NAME: Final = "probe_tool"
_KEY: Final = "probe_key"
_VALUE: Final = "probe value"
CALL_ID: Final = "call00001"  # nine letters and digits: the strictest form in use


def said(role: str, content: object = None, **fields: object) -> dict[str, Any]:
    """A message with a trusted role, for probes."""
    message: dict[str, Any] = {"role": Traced(role, TEMPLATE), **fields}
    if content is not None:
        message["content"] = content
    return message


def probe_tool() -> dict[str, Any]:
    """The description of a tool, for probes."""
    parameters = {
        "type": "object",
        "properties": {_KEY: {"type": "string", "description": "What to ask."}},
        "required": [_KEY],
    }
    function = {"name": _NAME, "description": "Tells what a probe says.", "parameters": parameters}
    return {"type": "function", "function": function}


def tool_call(arguments: object, name: str = _NAME) -> dict[str, Any]:
    return {"id": CALL_ID, "type": "function", "function": {"name": name, "arguments": arguments}}


def attempt(template: ChatTemplate, messages: Sequence[Mapping[str, Any]], **given: Any) -> Traced | None:
    """The text, or None where the template does not take the conversation."""
    try:
        return template.render(messages, **given)
    except PlaitError:
        return None


@dataclass(frozen=True, slots=True)
class Accepts:
    """content    what a message's content may be: text, a list of parts, or either
    arguments  what the arguments of a tool call may be: JSON text, an object, either, or no calls at all
    tools      descriptions of tools are written into the prompt
    """

    content: Contents
    arguments: Forms
    tools: bool

    @staticmethod
    def of(template: ChatTemplate) -> Accepts:
        return Accepts(_contents(template), _arguments(template), _tools(template))


def _contents(template: ChatTemplate) -> Contents:
    word = "probetext"
    text = attempt(template, [said("user", word)])
    parts = attempt(template, [said("user", [{"type": "text", "text": word}])])
    as_text = text is not None and word in text
    # A list that is written as Python shows it was not understood.
    as_parts = parts is not None and word in parts and "'type'" not in parts and '"type"' not in parts
    if as_parts:
        return "both" if as_text else "parts"
    return "string"


def _tools(template: ChatTemplate) -> bool:
    text = attempt(template, [said("user", "hello")], tools=[probe_tool()])
    return text is not None and _NAME in text


def _arguments(template: ChatTemplate) -> Forms:
    value = {_KEY: _VALUE}
    as_object, as_text = _calls(template, value), _calls(template, json.dumps(value))
    if as_object:
        return "both" if as_text else "object"
    return "string" if as_text else "none"


def _calls(template: ChatTemplate, arguments: object) -> bool:
    """Whether a call with these arguments is written as it should be."""
    call = said("assistant", "", tool_calls=[tool_call(arguments)])
    result = said("tool", "probe result", name=_NAME, tool_call_id=CALL_ID)
    for tools in ([probe_tool()], None):
        for messages in ([said("user", "hello"), call, result], [said("user", "hello"), call]):
            text = attempt(template, messages, tools=tools)
            if text is None:
                continue
            # The description of the tool has the key as well; what counts is behind the user's message.
            rest = str(text)[str(text).rfind("hello") :]
            repr_ = f"'{_KEY}'" in rest
            escaped = f'\\"{_KEY}' in rest
            if _KEY in rest and _VALUE in rest and not repr_ and not escaped:
                return True
    return False
