"""The OpenAPI description, made from the types that requests are checked by and answers are written as."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import TypeAdapter

from plait import __version__
from plait.server.answers import ChatAnswer, ChatChunk, CompletionAnswer, Health, ModelObject, Models
from plait.server.faults import ErrorBody
from plait.server.schema import ChatRequest, CompletionRequest

__all__ = ["description"]

_TYPES: Final = (
    ChatAnswer,
    ChatChunk,
    ChatRequest,
    CompletionAnswer,
    CompletionRequest,
    ErrorBody,
    Health,
    ModelObject,
    Models,
)
_JSON: Final = "application/json"


def description(*, key: bool) -> dict[str, Any]:
    """OpenAPI 3.1. `key`: requests to /v1 must bring one."""
    refs, schemas = TypeAdapter.json_schemas(
        [(kind, "validation", TypeAdapter(kind)) for kind in _TYPES], ref_template="#/components/schemas/{model}"
    )
    ref: dict[object, dict[str, Any]] = {kind: found for (kind, _), found in refs.items()}
    errors = {
        "400": "A field is unknown, not supported, or has a wrong value; or the prompt is too long for the context.",
        "404": "Another model is asked for.",
        "408": "The body did not arrive in time.",
        "413": "The body is too long.",
        "415": "The body is not announced as JSON.",
        "429": "The queue is full; Retry-After says when to come back.",
        "500": "The engine failed.",
        "503": "The server is stopping.",
        **({"401": "The API key is missing or another one."} if key else {}),
    }

    def error(text: str) -> dict[str, Any]:
        return {"description": text, "content": _content(_JSON, ref[ErrorBody])}

    def post(name: str, summary: str, body: type, answer: type, chunk: type) -> dict[str, Any]:
        success = {
            "description": "The answer; with `stream` its chunks as server-sent events, the last one [DONE]. An error "
            "after the beginning is an event with `error`.",
            "content": {
                **_content(_JSON, ref[answer]),
                **_content("text/event-stream", _event(ref[chunk], ref[ErrorBody])),
            },
        }
        return {
            "operationId": name,
            "summary": summary,
            "requestBody": {"required": True, "content": _content(_JSON, ref[body])},
            "responses": {"200": success, **{status: error(text) for status, text in errors.items()}},
            **_security(key),
        }

    def get(name: str, summary: str, answer: Any, kind: str, others: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        responses = {"200": {"description": summary, "content": _content(kind, answer)}, **others}
        return {"operationId": name, "summary": summary, "responses": responses, **more}

    unauthorized = {"401": error(errors["401"])} if key else {}
    unknown = {"404": error("Another model is asked for.")}
    sick = {"503": {"description": "It drains, or makes no progress.", "content": _content(_JSON, ref[Health])}}
    text = {"type": "string"}
    paths = {
        "/v1/completions": {
            "post": post("completions", "Continue prompts.", CompletionRequest, CompletionAnswer, CompletionAnswer)
        },
        "/v1/chat/completions": {
            "post": post("chat_completions", "Answer a chat.", ChatRequest, ChatAnswer, ChatChunk)
        },
        "/v1/models": {
            "get": get("models", "The served model, as a list.", ref[Models], _JSON, unauthorized, **_security(key))
        },
        "/v1/models/{id}": {
            "get": get(
                "model", "The served model.", ref[ModelObject], _JSON, {**unknown, **unauthorized}, **_security(key)
            ),
            "parameters": [
                {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            ],
        },
        "/health": {"get": get("health", "Whether the engine makes progress.", ref[Health], _JSON, sick)},
        "/metrics": {"get": get("metrics", "Figures for Prometheus.", text, "text/plain", {})},
        "/openapi.json": {"get": get("openapi", "This description.", {"type": "object"}, _JSON, {})},
    }
    keys = {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}} if key else {}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Plait", "version": __version__, "description": "A model behind the OpenAI API."},
        "paths": paths,
        "components": {"schemas": _components(schemas), **keys},
    }


def _event(*data: Mapping[str, Any]) -> dict[str, Any]:
    """One of a stream of events, whose data are JSON in one of these forms, but for the last."""
    text = {"type": "string", "contentMediaType": _JSON, "contentSchema": {"anyOf": list(data)}}
    return {
        "type": "object",
        "properties": {"data": {"anyOf": [{"type": "string", "const": "[DONE]"}, text]}},
        "required": ["data"],
    }


def _content(kind: str, schema: Any) -> dict[str, Any]:
    return {kind: {"schema": schema}}


def _security(key: bool) -> dict[str, Sequence[Mapping[str, Sequence[str]]]]:
    return {"security": [{"key": []}]} if key else {}


def _components(schemas: Mapping[str, Any]) -> dict[str, Any]:
    found = schemas["$defs"]
    assert isinstance(found, dict)
    return found
