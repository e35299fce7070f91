"""What an operator sees of a server: `/metrics`, traces, logs with the ids of answers and threads."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.exposition import choose_encoder
from starlette.middleware import Middleware
from starlette.responses import Response

from pasta_async.telemetry.logs import Logs
from pasta_async.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Collection, Generator

    from opentelemetry.sdk.trace import TracerProvider
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from pasta_async.client import Client
    from pasta_async.observers import Observer
    from pasta_async.server.admission import Admission
    from pasta_async.server.settings import ServerSettings

__all__ = ["Operations"]

_UNTRACED = "/health$,/metrics$"


class Operations:
    """Metrics, traces and logs of one app. Its metrics are in a registry of their own.

    Args:
        settings: Whether there are traces, and whether texts may appear in them and in logs.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.registry: CollectorRegistry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._responses = Counter(
            "pasta_http_responses",
            "Responses, by path and status.",
            ("path", "status"),
            registry=self.registry,
        )
        self._places = {
            name: Gauge(f"pasta_server_{name}", documentation, registry=self.registry)
            for name, documentation in (
                ("answers_in_flight", "Places of the server that are taken; several choices take several."),
                ("answers_queued", "Answers that wait for a place."),
                ("answers_limit", "Places there are."),
            )
        }
        self._limit = settings.max_answers
        self._provider: TracerProvider | None = None
        self.observers: list[Observer] = [Metrics(self.registry), Logs(text=settings.log_text)]
        self._traced: list[Middleware] = []
        if settings.traced:
            self._trace(text=settings.log_text)

    def _trace(self, *, text: bool) -> None:
        from pasta_async.server.tracing import HttpTracing, open_provider
        from pasta_async.telemetry.tracing import Tracing

        self._provider = open_provider()
        self.observers.append(Tracing(self._provider, text=text))
        self._traced.append(
            Middleware(
                HttpTracing,
                tracer_provider=self._provider,
                exclude_spans=["receive", "send"],
                excluded_urls=_UNTRACED,
            )
        )

    def middleware(self, paths: Collection[str]) -> list[Middleware]:
        """What goes around everything else; `paths` are counted under their names, others together."""
        return [*self._traced, Middleware(_Counted, responses=self._responses, paths=frozenset(paths))]

    @contextmanager
    def watching(self, client: Client, admission: Admission) -> Generator[None]:
        """Observe a client's answers and what waits for it."""
        self._places["answers_in_flight"].set_function(lambda: admission.in_flight)
        self._places["answers_queued"].set_function(lambda: admission.queued)
        self._places["answers_limit"].set(self._limit)
        client.observers.extend(self.observers)
        try:
            yield
        finally:
            for observer in self.observers:
                client.observers.remove(observer)

    async def metrics(self, request: Request) -> Response:
        """`GET /metrics`: Prometheus's text, or OpenMetrics for who accepts it."""
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self.registry), headers={"content-type": kind})

    async def aclose(self) -> None:
        """Send the spans that are left, for as long as OTLP's time-out; cancelling it does not stop that."""
        if self._provider is not None:
            await asyncio.to_thread(self._provider.shutdown)


class _Counted:
    """ASGI middleware that counts responses."""

    def __init__(self, app: ASGIApp, responses: Counter, paths: frozenset[str]) -> None:
        self._app, self._responses, self._paths = app, responses, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                path = scope["path"] if scope["path"] in self._paths else "other"
                self._responses.labels(path, str(message["status"])).inc()
            await send(message)

        await self._app(scope, receive, counted)
