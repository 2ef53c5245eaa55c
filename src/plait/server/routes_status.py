"""/v1/models, /health, /metrics and /openapi.json."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from plait.server.answers import Health, ModelObject, Models
from plait.server.openapi import description
from plait.server.serving import Endpoint, Serving
from plait.server.snapshot import snapshot

__all__ = ["health", "metrics", "model", "models", "openapi"]


def _model(serving: Serving) -> ModelObject:
    return {
        "id": serving.settings.name,
        "object": "model",
        "created": serving.settings.created,
        "owned_by": "plait",
        "max_model_len": serving.engine.blueprint.max_context,
    }


def models(serving: Serving) -> Endpoint:
    """GET /v1/models"""

    async def endpoint(request: Request) -> Response:
        found: Models = {"object": "list", "data": [_model(serving)]}
        return JSONResponse(found)

    return endpoint


def model(serving: Serving) -> Endpoint:
    """GET /v1/models/{id}"""

    async def endpoint(request: Request) -> Response:
        serving.checked_model(request.path_params["id"])
        return JSONResponse(_model(serving))

    return endpoint


def health(serving: Serving) -> Endpoint:
    """GET /health: 200 while the server serves; 503 while it drains, and where there is work but no progress."""

    async def endpoint(request: Request) -> Response:
        found = snapshot(serving.engine)
        busy = found.queued + found.running > 0
        stalled = busy and found.idle_seconds >= serving.settings.stall_seconds
        answer: Health = {
            "status": "draining" if serving.lifecycle.draining else "stalled" if stalled else "ok",
            "queued": found.queued,
            "running": found.running,
            "steps": found.steps,
            "idle_seconds": round(found.idle_seconds, 3),
        }
        return JSONResponse(answer, status_code=200 if answer["status"] == "ok" else 503)

    return endpoint


def metrics(serving: Serving) -> Endpoint:
    """GET /metrics"""

    async def endpoint(request: Request) -> Response:
        return Response(serving.metrics.page(), media_type="text/plain; version=0.0.4")

    return endpoint


def openapi(serving: Serving) -> Endpoint:
    """GET /openapi.json"""
    made = description(key=serving.settings.api_key is not None)

    async def endpoint(request: Request) -> Response:
        return JSONResponse(made)

    return endpoint
