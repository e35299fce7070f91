"""The app: routes, keys, a client that lives as long as it; and uvicorn to run it."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import socket
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pasta_async.client import Client
from pasta_async.errors import InvalidRequestError, PastaError
from pasta_async.options import Limits
from pasta_async.protocol import Backend
from pasta_async.server.connections import http_protocol
from pasta_async.server.endpoints import respond
from pasta_async.server.errors import ApiError
from pasta_async.server.operations import Operations, log_config
from pasta_async.server.requests import ChatRequest, CompletionRequest
from pasta_async.server.service import Admission, Service, path_in_app, service_of
from pasta_async.server.settings import ServerSettings
from pasta_async.trace.page import standalone

_page = cache(standalone)

_OPEN_PATHS = ("/", "/health")
"""What needs no key: the page, which has a field for one, and the health of the server."""

_LAST_REPLIES_SECONDS = 5.0
"""Seconds that requests have to tell of their end, once the drain time is up."""

_NO_KEY = ApiError(
    "this server needs a key: send `Authorization: Bearer <key>` (api_key= of the client)",
    status=401,
    code="invalid_api_key",
)


def create_app(
    backend: Client | Backend | str | None = None,
    settings: ServerSettings | None = None,
    *,
    limits: Limits | None = None,
) -> Starlette:
    """Make the ASGI app that answers OpenAI's API.

    Its lifespan reaches the backend, or loads the model, and closes it in the end. While it runs,
    `app.state.service` is its `Service`.

    Args:
        backend: What a `Client` takes; or a client, which is then not closed here. None: `PASTA_BACKEND`.
        settings: None: from the environment, or the defaults. Host and port are for whoever runs the app.
        limits: As for `Client`; a client has its own.

    Raises:
        InvalidRequestError: A setting or the backend's name is bad.
    """
    settings = settings or ServerSettings()
    client = backend if isinstance(backend, Client) else Client(backend, limits=limits)
    operations, open_requests = Operations(settings), set[asyncio.Task[Any]]()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        app.state.lifespan = asyncio.current_task()
        try:
            admission = Admission(settings)
            app.state.service = Service(client, await client.connect(), settings, admission)
            with operations.watching(client, admission):
                yield
        finally:
            if open_requests:  # they were cancelled, and tell that to whoever waits
                await asyncio.wait(open_requests, timeout=_LAST_REPLIES_SECONDS)
            if client is not backend:
                await client.aclose()
            await operations.aclose()

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
            Middleware(_Watched, open_requests),
            *operations.middleware([route.path for route in routes]),
            *_middleware(settings),
        ],
        exception_handlers={HTTPException: _no_such_route},
        lifespan=lifespan,
    )


def uvicorn_server(app: Starlette, settings: ServerSettings) -> uvicorn.Server:
    """What runs an app of `create_app` with the same settings.

    The first SIGTERM or SIGINT lets open answers end for `drain_seconds`, a second one ends them at once. One
    that comes while the backend is reached, or the model loads, ends that.

    Raises:
        InvalidRequestError: It is to listen where others can reach it, and has no key.
    """
    keys = settings.keys()
    if not keys and not settings.loopback:
        raise InvalidRequestError(
            f"listening at {settings.host} lets others in, which needs a key: --api-keys-file FILE, or "
            "PASTA_SERVER_API_KEYS"
        )
    if not keys:  # or any page on the web could ask, under a name of its own for this machine
        local = ["localhost", "127.0.0.1", "[::1]", settings.host]
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=local)
    logging.getLogger("sse_starlette").setLevel(logging.INFO)  # its debug lines have the texts
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=http_protocol(settings),
        timeout_graceful_shutdown=round(settings.drain_seconds),
        server_header=False,
        log_config=log_config(settings),
    )
    return _Server(config, app)


class _Server(uvicorn.Server):
    """uvicorn, which by itself ends no start for a signal, and no answers for a second SIGTERM."""

    def __init__(self, config: uvicorn.Config, app: Starlette) -> None:
        super().__init__(config)
        self._app = app

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            await super().startup(sockets)
        except SystemExit:  # the app has not started; if a signal is why, it is raised again behind this
            if not self.should_exit:
                raise

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            for task in self.server_state.tasks:  # as once the drain time is up
                task.cancel()
            return
        super().handle_exit(sig, frame)
        if not self.started and (lifespan := getattr(self._app.state, "lifespan", None)):
            self._loop.call_soon_threadsafe(lifespan.cancel)


def _middleware(settings: ServerSettings) -> list[Middleware]:
    made = [Middleware(_StartErrors)]
    if settings.cors_origins:  # outside the keys: a browser asks for leave without one
        made.append(
            Middleware(
                CORSMiddleware,
                allow_origins=settings.cors_origins,
                allow_methods=["GET", "POST"],
                allow_headers=["*"],  # OpenAI's client sends some of its own; what counts is the origin
                expose_headers=["x-pasta-mode", "Retry-After", "x-should-retry"],
            )
        )
    if keys := settings.keys():
        made.append(Middleware(_KeyGuard, keys))
    return made


async def _health(request: Request) -> Response:
    """What the server does right now."""
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
    status = error.status_code if isinstance(error, HTTPException) else 500
    return ApiError(
        f"there is no {request.method} {request.url.path} here", status, code="unknown_url"
    ).response


class _Watched:
    """ASGI middleware that notes the tasks of open requests: uvicorn does not wait for what it cancels."""

    def __init__(self, app: ASGIApp, tasks: set[asyncio.Task[Any]]) -> None:
        self._app, self._tasks = app, tasks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task() if scope["type"] == "http" else None
        if task:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await self._app(scope, receive, send)


class _StartErrors:
    """ASGI middleware: why the backend cannot be used goes to the log in words, not as a traceback."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def worded(message: Message) -> None:
            failed, error = message["type"] == "lifespan.startup.failed", sys.exception()
            if failed and isinstance(error, PastaError | ModuleNotFoundError):
                message = {**message, "message": str(error)}
            elif failed and isinstance(error, asyncio.CancelledError):
                message = {**message, "message": "stopped while the backend was being reached"}
            await send(message)

        await self._app(scope, receive, worded if scope["type"] == "lifespan" else send)


class _KeyGuard:
    """ASGI middleware that lets nobody in without one of the keys, except to `_OPEN_PATHS`."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan" and path_in_app(scope) not in _OPEN_PATHS:
            scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not self._known(key.strip().encode("latin-1")):
                await _NO_KEY.response(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _known(self, key: bytes) -> bool:
        """Takes as long for any key: digests have one length, and all of them are compared."""
        digest = hashlib.sha256(key).digest()
        return sum(hmac.compare_digest(digest, known) for known in self._digests) > 0
