"""The app: its routes, and a client that lives as long as it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from pasta_async.backends.sglang.client import http_client
from pasta_async.client import Client
from pasta_async.options import Limits
from pasta_async.protocol import Backend
from pasta_async.server.errors import ApiError
from pasta_async.server.guards import KeyGuard, Requests
from pasta_async.server.operations import Operations
from pasta_async.server.proxy import HttpEngine
from pasta_async.server.replies import respond
from pasta_async.server.requests import ChatRequest, CompletionRequest
from pasta_async.server.service import Admission, Service, service_of
from pasta_async.server.settings import ServerSettings
from pasta_async.trace.page import standalone

_page = cache(standalone)

_LAST_REPLIES_SECONDS = 5.0
"""Seconds that cancelled requests have to tell their clients, after the drain time."""


def create_app(
    backend: Client | Backend | str | None = None,
    settings: ServerSettings | None = None,
    *,
    limits: Limits | None = None,
) -> Starlette:
    """Make the ASGI app that answers OpenAI's API.

    Its lifespan reaches the backend, or loads the model, and closes it in the end; it may start again then.
    While it runs, `app.state.service` is its `Service`.

    Args:
        backend: As for `Client`; or a client, which is then not closed here. None: `PASTA_BACKEND`.
        settings: None: from the environment, or the defaults. Host and port are for `uvicorn_server`.
        limits: As for `Client`; a client has its own.

    Raises:
        InvalidRequestError: A setting or the backend's name is bad.
    """
    settings = settings or ServerSettings()
    operations, open_requests = Operations(settings), set[asyncio.Task[Any]]()

    def make_client() -> Client:
        return backend if isinstance(backend, Client) else Client(backend, limits=limits)

    make_client()  # a bad name is refused now; nothing is reached or loaded before `connect`

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        client, admission = make_client(), Admission(settings)
        try:
            info = await client.connect()
            url = client.backend.url if isinstance(client.backend, HttpEngine) else "http://localhost"
            async with http_client(url, timeout=None) as http:  # the answer's own limit counts
                app.state.service = Service(client, info, settings, admission, http)
                with operations.watching(client, admission):
                    yield
        finally:
            others = open_requests - {asyncio.current_task()}  # a test may ask in the task of the lifespan
            if others:  # they were cancelled, and tell that to their clients
                await asyncio.wait(others, timeout=_LAST_REPLIES_SECONDS)
            if client is not backend:
                await client.aclose()
            await operations.flush()

    routes = [
        Route("/", _playground),
        Route("/health", _health),
        Route("/metrics", operations.metrics),
        Route("/v1/models", _models),
        Route("/v1/models/{name:path}", _models),
        Route("/v1/chat/completions", partial(respond, form=ChatRequest), methods=["POST"]),
        Route("/v1/completions", partial(respond, form=CompletionRequest), methods=["POST"]),
    ]
    return Starlette(
        routes=routes,
        middleware=[
            *operations.middleware,
            Middleware(Requests, open_requests, operations.responses, [route.path for route in routes]),
            *_middleware(settings),
        ],
        exception_handlers={HTTPException: _no_such_route},
        lifespan=lifespan,
    )


def _middleware(settings: ServerSettings) -> list[Middleware]:
    middleware: list[Middleware] = []
    if settings.cors_origins:  # outside the keys: a browser asks for leave without one
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=settings.cors_origins,
                allow_methods=["GET", "POST"],
                allow_headers=["*"],  # OpenAI's client sends some of its own; the origin is what counts
                expose_headers=["x-pasta-mode", "Retry-After", "x-should-retry"],
            )
        )
    if keys := settings.keys():
        middleware.append(Middleware(KeyGuard, keys))
    return middleware


async def _health(request: Request) -> Response:
    """The model, and the number of answers that decode or wait."""
    service = service_of(request)
    counts = {"in_flight": service.admission.in_flight, "queued": service.admission.queued}
    return JSONResponse({"status": "ok", "model": service.info.name, **counts})


async def _models(request: Request) -> Response:
    """The model under all its names, or under the one in the path."""
    service, name = service_of(request), request.path_params.get("name")
    model = {
        "object": "model",
        "created": int(time.time()),
        "owned_by": "pasta_async",
        "max_model_len": service.info.context_length,
    }
    if name is None:
        data = [{"id": each, **model} for each in service.model_names]
        return JSONResponse({"object": "list", "data": data})
    if name in service.model_names:
        return JSONResponse({"id": name, **model})
    message = f"the model {name!r} does not exist here"
    return ApiError(message, 404, code="model_not_found", param="model").response


async def _playground(_: Request) -> Response:
    """The page to try things on. It may talk to this server and to nobody else."""
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
