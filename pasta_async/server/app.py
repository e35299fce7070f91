"""The app: its routes, its guards, and a client that lives as long as it."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from urllib.parse import urlsplit

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
from pasta_async.server.replies import HttpEngine, check, respond
from pasta_async.server.requests import ChatRequest, CompletionRequest
from pasta_async.server.service import Admission, Service, service_of
from pasta_async.server.settings import ServerSettings
from pasta_async.trace.page import standalone

_page = cache(standalone)


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
        backend: A backend as for `Client`; or a client, which is then not closed here. None: `PASTA_BACKEND`.
        settings: None: from the environment, or the defaults. Host and port are for `uvicorn_server`.
        limits: Limits as for `Client`; a client has its own.

    Raises:
        InvalidRequestError: A setting or the backend's name is bad.
    """
    settings = settings or ServerSettings()
    operations = Operations(settings)
    keys = settings.keys()

    def make_client() -> Client:
        if isinstance(backend, Client):
            return backend
        return Client(backend, limits=limits, observers=operations.observers)

    # A bad name is refused now; nothing is reached or loaded before `connect`.
    make_client()
    if isinstance(backend, Client):
        backend.observers += operations.observers

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        client = make_client()
        admission = Admission(settings)
        try:
            info = await client.connect()
            url = client.backend.url if isinstance(client.backend, HttpEngine) else "http://localhost"
            # Neither time nor connections are limited here: each answer has its own time limit, and the queue
            # limits the number of answers.
            async with http_client(url, timeout=None, limits=httpx.Limits()) as http:
                app.state.service = Service(client, info, settings, admission, http)
                operations.watch(admission)
                yield
        finally:
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
        Route("/v1/plans/check", check, methods=["POST"]),
    ]
    return Starlette(
        routes=routes,
        middleware=[
            *operations.middleware,
            Middleware(Responses, operations.responses, [route.path for route in routes]),
            *([Middleware(Guard, refuse=_without_key(keys))] if keys else []),
        ],
        exception_handlers={HTTPException: _no_such_route},
        lifespan=lifespan,
    )


async def _health(request: Request) -> Response:
    """The model, and the number of answers that decode or wait."""
    service = service_of(request)
    counts = {"in_flight": service.admission.in_flight, "queued": service.admission.queued}
    return JSONResponse({"status": "ok", "model": service.info.name, **counts})


async def _models(request: Request) -> Response:
    """The model under all its names, or under the one in the path."""
    service = service_of(request)
    name = request.path_params.get("name")
    model = {
        "object": "model",
        "created": int(time.time()),
        "owned_by": "pasta_async",
        "max_model_len": service.info.context_length,
    }
    if name is None:
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


def path_in_app(scope: Scope) -> str:
    """The path of a request below the path that the app is mounted at."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


class Responses:
    """Counts responses by path and status; a path that the app does not have is `other`.

    A path with a slash at its end is the path without it.
    """

    def __init__(self, app: ASGIApp, responses: Counter, paths: Collection[str]) -> None:
        self._app = app
        self._responses = responses
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or the lifespan."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if len(path_in_app(scope)) > 1:
            scope["path"] = scope["path"].rstrip("/") or "/"
        path = path_in_app(scope) if path_in_app(scope) in self._paths else "other"

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._responses.labels(path, str(message["status"])).inc()
            await send(message)

        await self._app(scope, receive, counted)


class Guard:
    """Answers requests for which `refuse` returns an error; the app answers the others."""

    def __init__(self, app: ASGIApp, refuse: Callable[[Scope], ApiError | None]) -> None:
        self._app = app
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or the lifespan."""
        error = None if scope["type"] == "lifespan" else self._refuse(scope)
        app = error.response if error else self._app
        await app(scope, receive, send)


def _without_key(keys: Sequence[str]) -> Callable[[Scope], ApiError | None]:
    """The `refuse` of a `Guard`: requests without one of the keys, except for `_OPEN_PATHS`."""
    digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def refuse(scope: Scope) -> ApiError | None:
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        digest = hashlib.sha256(key.strip().encode("latin-1")).digest()
        # Every key is compared, and all digests have one length, so that the time it takes tells nothing.
        matches = [hmac.compare_digest(digest, key_digest) for key_digest in digests]
        allowed = path_in_app(scope) in _OPEN_PATHS or (any(matches) and scheme.lower() == "bearer")
        return None if allowed else _NO_KEY

    return refuse


def other_names(*hosts: str) -> Callable[[Scope], ApiError | None]:
    """The `refuse` of a `Guard`: requests to other names of this host, which a page on the web may have."""

    def refuse(scope: Scope) -> ApiError | None:
        named = Headers(scope=scope).get("host", "")
        try:
            is_named_so = urlsplit(f"//{named}").hostname in hosts
        except ValueError:
            is_named_so = False
        message = f"without a key this server answers to local names only, not to {named!r:.100}"
        return None if is_named_so else ApiError(message, code="invalid_host")

    return refuse
