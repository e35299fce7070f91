"""Where the server's spans go, and a span for each HTTP request. Needs the extra `otel`."""

from __future__ import annotations

try:
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.instrumentation.asgi import (  # pyright: ignore[reportMissingTypeStubs]
        OpenTelemetryMiddleware,
    )
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
except ModuleNotFoundError as _missing:
    raise ModuleNotFoundError(
        f"traces need {_missing.name}, which is missing; pip install 'pasta_async[server,otel]' brings it",
        name=_missing.name,
    ) from _missing

__all__ = ["HttpTracing", "open_provider"]

HttpTracing: type[OpenTelemetryMiddleware] = OpenTelemetryMiddleware
"""Continues the trace of whoever asks (`traceparent`) with a span for the HTTP request."""


def open_provider() -> TracerProvider | None:
    """A provider that sends spans over OTLP/HTTP, as the standard `OTEL_*` variables say.

    They name its endpoint, headers, sampler, resource. Its service is `pasta-async` unless they name one.
    None: the program has set up a global one (`opentelemetry-instrument` does), which is to be used.
    """
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    resource = Resource.create()
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "pasta-async"}))
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
