"""From what a caller gives as messages, tools and variables to plain data a template can take."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from plait.engine.chat.accepts import Accepts
from plait.engine.chat.template import ChatTemplate
from plait.engine.chat.traced import TEMPLATE, Traced
from plait.errors import UnsupportedError, UsageError, fault

__all__ = ["plain", "prepared", "prepared_objects", "prepared_variables"]

_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
# Reasoning goes by three names; templates read the first, some the second.
_REASONING: Final = ("reasoning_content", "thinking", "reasoning")
_TEXT_PARTS: Final = ("text", "input_text", "output_text")
_DEPTH: Final = 64


def plain(value: object, what: str, origin: int | None = None, depth: int = 0) -> Any:
    """A copy made of JSON's types alone; texts get the origin. UsageError: something that JSON cannot hold."""
    if depth > _DEPTH:
        raise UsageError(fault(what, expected=f"data nested at most {_DEPTH} deep", found="deeper"))
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        text = str.__str__(value)
        return text if origin is None else Traced(text, origin)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        made = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise UsageError(fault(f"{what}: key", expected="a string", found=repr(key)[:80]))
            made[str.__str__(key)] = plain(item, f"{what}.{key}", origin, depth + 1)
        return made
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [plain(item, f"{what}[{place}]", origin, depth + 1) for place, item in enumerate(value)]
    raise UsageError(fault(what, expected="JSON data", found=type(value).__name__))


def prepared(messages: object, template: ChatTemplate, accepts: Accepts) -> list[dict[str, Any]]:
    """The messages as this template takes them. UsageError names the message that cannot be used."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise UsageError(
            fault("messages", expected="a list of objects with role and content", found=type(messages).__name__)
        )
    if not messages:
        raise UsageError("messages: expected at least one message, found none")
    return [_message(message, place, template, accepts) for place, message in enumerate(messages)]


def _message(message: object, place: int, template: ChatTemplate, accepts: Accepts) -> dict[str, Any]:
    what = f"message {place}"
    if not isinstance(message, Mapping):
        raise UsageError(fault(what, expected="an object with role and content", found=type(message).__name__))
    # A field that is null is a field that is not there: templates would write "None".
    made = {key: value for key, value in plain(message, what, place).items() if value is not None}
    role = made.get("role")
    if not isinstance(role, str):
        raise UsageError(fault(f"{what}: role", expected="a string", found=repr(role)))
    # Roles are written between control tokens; a name the template does not know could spell another one.
    if role not in _ROLES and role not in template.literals:
        expected = ", ".join(_ROLES) + ", or a role that the template names"
        raise UsageError(fault(f"{what}: role", expected=expected, found=repr(str(role))))
    made["role"] = Traced(role, TEMPLATE)
    if "content" in made:
        made["content"] = _content(made["content"], what, place, accepts)
    if "tool_calls" in made:
        made["tool_calls"] = _calls(made["tool_calls"], what, place, template, accepts)
    reasoning = next((made[name] for name in _REASONING if name in made), None)
    if reasoning is not None:
        made = {"thinking": reasoning, **made, "reasoning_content": reasoning}
    return made


def _content(content: object, what: str, place: int, accepts: Accepts) -> Any:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if accepts.content == "parts" else content
    if not isinstance(content, list):
        raise UsageError(fault(f"{what}: content", expected="text or a list of parts", found=type(content).__name__))
    texts: list[dict[str, Any]] = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(part, dict) and kind not in _TEXT_PARTS:
            raise UnsupportedError(
                fault(
                    f"{what}: content[{number}]",
                    expected="a part of type text",
                    found=f"type {kind!s}",
                    advice="this version reads text alone",
                )
            )
        if not isinstance(text, str):
            raise UsageError(fault(f"{what}: content[{number}].text", expected="a string", found=repr(text)[:80]))
        texts.append({"type": "text", "text": text})
    if accepts.content != "string":
        return texts
    return Traced("", place).join([part["text"] for part in texts])


def _calls(calls: object, what: str, place: int, template: ChatTemplate, accepts: Accepts) -> list[Any]:
    if not isinstance(calls, list):
        raise UsageError(fault(f"{what}: tool_calls", expected="a list", found=type(calls).__name__))
    if calls and accepts.arguments == "none":
        expected = "none: the chat template has no place for them"
        raise UsageError(fault(f"{what}: tool_calls", file=template.file, expected=expected, found=len(calls)))
    made = []
    for number, call in enumerate(calls):
        where = f"{what}: tool_calls[{number}]"
        inner = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
            raise UsageError(fault(where, expected="a function with a name and arguments", found=repr(call)[:80]))
        changed = {**inner, "arguments": _arguments(inner.get("arguments"), where, place, accepts)}
        made.append({**call, "function": changed} if "function" in call else changed)
    return made


def _arguments(arguments: object, where: str, place: int, accepts: Accepts) -> Any:
    """Arguments in the form the template takes. A text stays as it is, byte for byte, wherever it may."""
    if arguments is None:
        arguments = {}
    if isinstance(arguments, str):
        if accepts.arguments != "object":
            return arguments
        try:
            parsed = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            raise UsageError(
                fault(
                    f"{where}.arguments", expected="the text of a JSON object", found=f"{' '.join(str(error).split())}"
                )
            ) from None
        if not isinstance(parsed, dict):
            raise UsageError(
                fault(f"{where}.arguments", expected="the text of a JSON object", found=type(parsed).__name__)
            )
        return plain(parsed, f"{where}.arguments", place)
    if not isinstance(arguments, dict):
        raise UsageError(
            fault(f"{where}.arguments", expected="a JSON object or its text", found=type(arguments).__name__)
        )
    return Traced(json.dumps(arguments, ensure_ascii=False), place) if accepts.arguments == "string" else arguments


def prepared_objects(values: object, what: str, template: ChatTemplate) -> list[Any] | None:
    """Tools or documents as plain data. UsageError: no list of objects, or a template that would leave them out."""
    if values is None:
        return None
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Sequence):
        raise UsageError(fault(what, expected="a list of objects", found=type(values).__name__))
    made = []
    for place, value in enumerate(values):
        if not isinstance(value, Mapping):
            raise UsageError(fault(f"{what}[{place}]", expected="an object", found=type(value).__name__))
        made.append(plain(value, f"{what}[{place}]"))
    if made and not template.reads(what):
        raise UsageError(
            fault(what, file=template.file, expected="none: the chat template has no place for them", found=len(made))
        )
    return made


def prepared_variables(variables: Mapping[str, object], template: ChatTemplate) -> dict[str, Any]:
    """Variables for the template. UsageError: one that it does not read."""
    for name in variables:
        if name not in template.variables:
            there = ", ".join(template.settable) or "none"
            expected = f"one that the chat template reads ({there})"
            raise UsageError(fault(f"variable {name!r}", file=template.file, expected=expected, found="another"))
    return {name: plain(value, f"variable {name!r}") for name, value in variables.items()}
