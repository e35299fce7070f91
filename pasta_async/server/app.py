"""The app: its routes, its guards, its metrics and traces, and a client that lives as long as it."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pasta_async.client import Client
from pasta_async.errors import missing_extra
from pasta_async.observers import Observer
from pasta_async.options import Limits
from pasta_async.protocol import Backend
from pasta_async.server.errors import ApiError
from pasta_async.server.replies import check, respond
from pasta_async.server.requests import ChatRequest, CompletionRequest
from pasta_async.server.service import RequestQueue, Service, service_of
from pasta_async.server.settings import ServerSettings
from pasta_async.telemetry.logs import Logs
from pasta_async.telemetry.metrics import Metrics
from pasta_async.trace import standalone


def create_app(
    backend: Backend | str | None = None,
    settings: ServerSettings | None = None,
    *,
    limits: Limits | Mapping[str, Any] | None = None,
) -> Starlette:
    """Make the ASGI app that answers OpenAI's API.

    Its lifespan, which runs once, reaches the backend, or loads the model. In the end it closes a backend
    that was given by its name. While it runs, `app.state.service` is its `Service`.

    Args:
        backend: A backend as for `Client`. None: `PASTA_BACKEND`.
        settings: None: from the environment, or the defaults. Host and port are for `uvicorn_server`.
        limits: Limits as for `Client`.

    Raises:
        InvalidRequestError: A setting or the backend's name is bad.
    """
    settings = settings or ServerSettings()
    queue = RequestQueue(settings)
    registry = _registry(settings, queue)
    observers: list[Observer] = [Metrics(registry), Logs(text=settings.log_text)]
    middleware: list[Middleware] = []
    flush_spans: Callable[[], object] | None = None
    if any(map(os.environ.get, ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"))):
        flush_spans = _trace(observers, middleware)
    client = Client(backend, limits=limits, observers=observers)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        try:
            async with client:
                app.state.service = Service(client, await client.connect(), settings, queue)
                yield
        finally:
            if flush_spans:  # a signal ends the process right then
                await asyncio.to_thread(flush_spans)

    routes = [
        Route("/", _playground),
        Route("/health", _health),
        Route("/metrics", partial(_metrics, registry=registry)),
        Route("/v1/models", _models),
        Route("/v1/models/{name:path}", _models),
        Route("/v1/chat/completions", partial(respond, form=ChatRequest), methods=["POST"]),
        Route("/v1/completions", partial(respond, form=CompletionRequest), methods=["POST"]),
        Route("/v1/plans/check", check, methods=["POST"]),
    ]
    middleware.append(Middleware(_counted, registry, [route.path for route in routes]))
    if keys := settings.keys():
        middleware.append(Middleware(_guarded, keys))
    handlers = {HTTPException: _no_such_route}
    return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers, lifespan=lifespan)


def _registry(settings: ServerSettings, queue: RequestQueue) -> CollectorRegistry:
    """A registry of the app's own, with the metrics of its process and its queue."""
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    for name, text, number in (
        ("in_flight", "Requests that decode.", lambda: queue.in_flight),
        ("queued", "Requests that wait for a place.", lambda: queue.queued),
        ("limit", "Places there are.", lambda: settings.max_answers),
    ):
        Gauge(f"pasta_server_answers_{name}", text, registry=registry).set_function(number)
    return registry


def _trace(observers: list[Observer], middleware: list[Middleware]) -> Callable[[], object] | None:
    """Trace answers, and each HTTP request around them, over OTLP/HTTP as the `OTEL_*` variables say.

    They set its endpoint, headers, sampler and resource. Its service is `pasta-async` unless they name one.
    Where the program has set up a global provider (`opentelemetry-instrument` does), that is used instead.
    Returns a function that sends the spans that are left, if the provider has one.
    """
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.instrumentation.asgi import (  # pyright: ignore[reportMissingTypeStubs]
            OpenTelemetryMiddleware,
        )
        from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from pasta_async.telemetry.tracing import Tracing
    except ModuleNotFoundError as error:
        raise missing_extra("the endpoint for traces", "server,otel", error) from error
    provider: TracerProvider | None = None
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        named = Resource({SERVICE_NAME: "pasta-async"}).merge(OTELResourceDetector().detect())
        provider = TracerProvider(resource=Resource.create().merge(named))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    observers.append(Tracing(provider))
    middleware.append(
        Middleware(
            OpenTelemetryMiddleware,
            tracer_provider=provider,
            exclude_spans=["receive", "send"],
            excluded_urls="/health$,/metrics$",
        )
    )
    return getattr(provider or trace.get_tracer_provider(), "force_flush", None)


async def _metrics(request: Request, registry: CollectorRegistry) -> Response:
    """Prometheus's text, or OpenMetrics for clients that accept it."""
    encode, kind = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(registry), headers={"content-type": kind})


async def _health(request: Request) -> Response:
    """The model, and the number of answers that decode or wait."""
    service = service_of(request)
    counts = {"in_flight": service.queue.in_flight, "queued": service.queue.queued}
    return JSONResponse({"status": "ok", "model": service.model.name, **counts})


async def _models(request: Request) -> Response:
    """The model under all its names, or under the one in the path."""
    service = service_of(request)
    name = request.path_params.get("name", "")
    model = {
        "object": "model",
        "created": int(time.time()),
        "owned_by": "pasta_async",
        "max_model_len": service.model.context_length,
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
    html, policy = standalone("index.html")
    headers = {
        "Content-Security-Policy": f"{policy}; connect-src 'self'; frame-ancestors 'none'",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-cache",
    }
    return HTMLResponse(html, headers=headers)


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


def _counted(app: ASGIApp, registry: CollectorRegistry, paths: Collection[str]) -> ASGIApp:
    """Count responses by path and status; a path that the app does not have, or a model's, is `other`."""
    labels = ("path", "status")
    responses = Counter("pasta_http_responses", "Responses, by path and status.", labels, registry=registry)

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                path = _path_in_app(scope)
                responses.labels(path if path in paths else "other", str(message["status"])).inc()
            await send(message)

        await app(scope, receive, counted)

    return run


def _guarded(app: ASGIApp, keys: Sequence[str]) -> ASGIApp:
    """Refuse requests without one of the keys, except for `_OPEN_PATHS`."""
    digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def allows(scope: Scope) -> bool:
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        digest = hashlib.sha256(key.strip(" ").encode("latin-1")).digest()
        # Every key is compared, and all digests have one length, so that the time it takes tells nothing.
        matches = [hmac.compare_digest(digest, key_digest) for key_digest in digests]
        return _path_in_app(scope) in _OPEN_PATHS or (any(matches) and scheme.lower() == "bearer")

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        allowed = scope["type"] == "lifespan" or allows(scope)
        await (app if allowed else _NO_KEY.response)(scope, receive, send)

    return run
