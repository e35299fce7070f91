"""The app: its routes, its guards, and a client that lives as long as it."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import Any

import httpx
from prometheus_client import Counter
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pasta_async.backends.http.client import http_client
from pasta_async.client import Client
from pasta_async.options import Limits
from pasta_async.protocol import Backend
from pasta_async.server.errors import ApiError
from pasta_async.server.operations import Operations
from pasta_async.server.proxy import HttpEngine
from pasta_async.server.replies import check, respond
from pasta_async.server.requests import ChatRequest, CompletionRequest
from pasta_async.server.service import Admission, Service, service_of
from pasta_async.server.settings import ServerSettings
from pasta_async.trace.page import standalone

_page = cache(standalone)


def create_app(
    backend: Backend | str | None = None,
    settings: ServerSettings | None = None,
    *,
    limits: Limits | Mapping[str, Any] | None = None,
) -> Starlette:
    """Make the ASGI app that answers OpenAI's API.

    Its lifespan, which runs once, reaches the backend, or loads the model, and closes it in the end. While it
    runs, `app.state.service` is its `Service`.

    Args:
        backend: A backend as for `Client`. None: `PASTA_BACKEND`.
        settings: None: from the environment, or the defaults. Host and port are for `uvicorn_server`.
        limits: Limits as for `Client`.

    Raises:
        InvalidRequestError: A setting or the backend's name is bad.
    """
    settings = settings or ServerSettings()
    admission = Admission(settings)
    operations = Operations(settings, admission)
    client = Client(backend, limits=limits, observers=operations.observers)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        try:
            async with client:
                info = await client.connect()
                url = client.backend.url if isinstance(client.backend, HttpEngine) else "http://localhost"
                # Neither time nor connections are limited here: each answer has its own time limit, and the
                # queue limits the number of answers.
                async with http_client(url, timeout=None, limits=httpx.Limits()) as http:
                    app.state.service = Service(client, info, settings, admission, http)
                    yield
        finally:
            await operations.flush()

    routes = [
        Route("/", _playground),
        Route("/health", _health),
        Route("/metrics", operations.metrics),
        Route("/v1/models", _models),
        Route("/v1/models/{name:path}", _models),
        Route("/v1/chat/completions", partial(respond, form=ChatRequest), methods=["POST"]),
        Route("/v1/completions", partial(respond, form=CompletionRequest), methods=["POST"]),
        Route("/v1/plans/check", check, methods=["POST"]),
    ]
    middleware = [
        *operations.middleware,
        Middleware(_CountedResponses, operations.responses, [route.path for route in routes]),
    ]
    if keys := settings.keys():
        middleware.append(Middleware(_KeyGuard, keys))
    handlers = {HTTPException: _no_such_route}
    return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers, lifespan=lifespan)


async def _health(request: Request) -> Response:
    """The model, and the number of answers that decode or wait."""
    service = service_of(request)
    counts = {"in_flight": service.admission.in_flight, "queued": service.admission.queued}
    return JSONResponse({"status": "ok", "model": service.info.name, **counts})


async def _models(request: Request) -> Response:
    """The model under all its names, or under the one in the path."""
    service = service_of(request)
    name = request.path_params.get("name", "")
    model = {
        "object": "model",
        "created": int(time.time()),
        "owned_by": "pasta_async",
        "max_model_len": service.info.context_length,
    }
    if not name:
        data = [{"id": model_name, **model} for model_name in service.model_names]
        return JSONResponse({"object": "list", "data": data})
    if name in service.model_names:
        return JSONResponse({"id": name, **model})
    message = f"the model {name!r} does not exist here"
    return ApiError(message, 404, code="model_not_found", param="model").response


async def _playground(_: Request) -> Response:
    """The page on which to try prompts. It may send requests to this server alone."""
    page = _page("index.html")
    headers = {
        "Content-Security-Policy": f"{page.policy}; connect-src 'self'; frame-ancestors 'none'",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-cache",
    }
    return HTMLResponse(page.html, headers=headers)


async def _no_such_route(request: Request, error: Exception) -> Response:
    """A wrong path, or a wrong method of a path, in OpenAI's form."""
    assert isinstance(error, HTTPException)
    code = "method_not_allowed" if error.status_code == 405 else "unknown_url"
    message = f"there is no {request.method} {request.url.path} here"
    response = ApiError(message, error.status_code, code=code).response
    response.headers.update(error.headers or {})  # `Allow`
    return response


# Middleware -------------------------------------------------------------------------------------------------

_OPEN_PATHS = ("/", "/health")
"""Paths that need no key: the page, which has a field for one, and the health of the server."""

_NO_KEY = ApiError(
    "this server needs a key: send `Authorization: Bearer <key>` (api_key= of the client)",
    status=401,
    code="invalid_api_key",
)


def _path_in_app(scope: Scope) -> str:
    """The path of a request below the path that the app is mounted at."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


class _CountedResponses:
    """Counts responses by path and status; a path that the app does not have is `other`."""

    def __init__(self, app: ASGIApp, responses: Counter, paths: Collection[str]) -> None:
        self._app = app
        self._responses = responses
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or the lifespan."""

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                path = _path_in_app(scope)
                path = path if path in self._paths else "other"
                self._responses.labels(path, str(message["status"])).inc()
            await send(message)

        await self._app(scope, receive, counted)


class _KeyGuard:
    """Refuses requests without one of the keys, except for `_OPEN_PATHS`."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or the lifespan."""
        app = self._app if scope["type"] == "lifespan" or self._allows(scope) else _NO_KEY.response
        await app(scope, receive, send)

    def _allows(self, scope: Scope) -> bool:
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        digest = hashlib.sha256(key.strip().encode("latin-1")).digest()
        # Every key is compared, and all digests have one length, so that the time it takes tells nothing.
        matches = [hmac.compare_digest(digest, key_digest) for key_digest in self._digests]
        return _path_in_app(scope) in _OPEN_PATHS or (any(matches) and scheme.lower() == "bearer")
