"""The application: routes, and what stands around all of them."""

from __future__ import annotations

from http import HTTPStatus
from time import monotonic

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from plait.engine.engine import Engine
from plait.server import routes, routes_status
from plait.server.faults import ApiFault, not_found
from plait.server.lifecycle import Lifecycle
from plait.server.metrics import Metrics
from plait.server.serving import LEFT, Endpoint, Serving, guarded
from plait.server.settings import Settings
from plait.server.snapshot import snapshot

__all__ = ["application"]


def application(engine: Engine, settings: Settings, lifecycle: Lifecycle | None = None) -> Starlette:
    """The ASGI application that serves `engine`, which stays the caller's to close.

    lifecycle  told to drain and to halt by who runs the application; None: it serves for ever
    """
    serving = Serving(engine, settings, lifecycle or Lifecycle(), Metrics(lambda: snapshot(engine)))

    def route(path: str, endpoint: Endpoint, *methods: str, keyed: bool = False) -> Route:
        return Route(path, guarded(serving, endpoint, keyed=keyed), methods=list(methods))

    made = Starlette(
        routes=[
            route("/v1/models", routes_status.models(serving), "GET", keyed=True),
            route("/v1/models/{id:path}", routes_status.model(serving), "GET", keyed=True),
            route("/v1/completions", routes.completions(serving), "POST", keyed=True),
            route("/v1/chat/completions", routes.chat_completions(serving), "POST", keyed=True),
            route("/health", routes_status.health(serving), "GET"),
            route("/metrics", routes_status.metrics(serving), "GET"),
            route("/openapi.json", routes_status.openapi(serving), "GET"),
        ],
        middleware=[Middleware(_Counted, metrics=serving.metrics), *_cors(settings)],
        exception_handlers={HTTPException: _refused},
    )
    # A path with another end is another path: a redirection would lose the body of a POST.
    made.router.redirect_slashes = False
    return made


def _cors(settings: Settings) -> list[Middleware]:
    if not settings.cors_origins:
        return []
    made = Middleware(
        CORSMiddleware,
        allow_origins=list(settings.cors_origins),
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=["Retry-After"],
    )
    return [made]


async def _refused(request: Request, error: Exception) -> Response:
    """Paths and methods that are none, as errors of the API; OPTIONS says which methods there are."""
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        if request.method == "OPTIONS":
            return Response(status_code=HTTPStatus.NO_CONTENT, headers=error.headers)
        message = f"{request.method[:20]} {request.url.path[:200]}: another method is expected; see the header Allow"
        return ApiFault(message, status=error.status_code, code="method_not_allowed", headers=error.headers).response()
    return not_found(f"{request.url.path[:200]}: no such path; see /openapi.json").response()


class _Counted:
    """Counts requests by route and status."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, began = LEFT, monotonic()

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, counted)
        finally:
            # A path that is none is a word of the client: it becomes no label.
            route = scope.get("route")
            path = route.path if isinstance(route, Route) else "other"
            self._metrics.answered(path, status, monotonic() - began)
