"""Metrics and traces of an app: `/metrics`, and spans of HTTP requests and answers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
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
from starlette.requests import Request
from starlette.responses import Response

from pasta_async.errors import missing_extra
from pasta_async.observers import Observer
from pasta_async.server.service import Admission
from pasta_async.server.settings import ServerSettings
from pasta_async.telemetry.logs import Logs
from pasta_async.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider


class Operations:
    """Metrics, traces and logs of an app, as its settings say. Its metrics are in a registry of their own."""

    def __init__(self, settings: ServerSettings, admission: Admission) -> None:
        self._registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._registry)
        text = "Responses, by path and status."
        labels = ("path", "status")
        self.responses: Counter = Counter("pasta_http_responses", text, labels, registry=self._registry)
        self._gauge("in_flight", "Requests that decode.", lambda: admission.in_flight)
        self._gauge("queued", "Requests that wait for a place.", lambda: admission.queued)
        self._gauge("limit", "Places there are.", lambda: settings.max_answers)
        self.observers: list[Observer] = [Metrics(self._registry), Logs(text=settings.log_text)]
        self.middleware: list[Middleware] = []
        self._provider: TracerProvider | None = None
        if any(map(os.environ.get, ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"))):
            self._trace()

    def _gauge(self, name: str, documentation: str, number: Callable[[], float]) -> None:
        gauge = Gauge(f"pasta_server_answers_{name}", documentation, registry=self._registry)
        gauge.set_function(number)

    def _trace(self) -> None:
        """Trace answers, and each HTTP request around them, continuing the trace of the caller."""
        try:
            from opentelemetry.instrumentation.asgi import (  # pyright: ignore[reportMissingTypeStubs]
                OpenTelemetryMiddleware,
            )

            from pasta_async.telemetry.tracing import Tracing

            self._provider = _open_provider()
        except ModuleNotFoundError as error:
            raise missing_extra("the endpoint for traces", "server,otel", error) from error
        self.observers.append(Tracing(self._provider))
        self.middleware.append(
            Middleware(
                OpenTelemetryMiddleware,
                tracer_provider=self._provider,
                exclude_spans=["receive", "send"],
                excluded_urls="/health$,/metrics$",
            )
        )

    async def metrics(self, request: Request) -> Response:
        """`GET /metrics`: Prometheus's text, or OpenMetrics for clients that accept it."""
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._registry), headers={"content-type": kind})

    async def flush(self) -> None:
        """Send the spans that are left, within OTLP's time-out: a signal ends the process right then."""
        if self._provider is not None:
            await asyncio.to_thread(self._provider.force_flush)


def _open_provider() -> TracerProvider | None:
    """A provider that sends spans over OTLP/HTTP, as the standard `OTEL_*` variables say.

    They set its endpoint, headers, sampler and resource. Its service is `pasta-async` unless they name one.
    None: the program has set up a global provider (`opentelemetry-instrument` does), which is used instead.
    """
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    named = Resource({SERVICE_NAME: "pasta-async"}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=Resource.create().merge(named))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
