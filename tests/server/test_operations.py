"""A server under an operator's eyes, over real sockets: a scrape, spans at a collector."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from pasta_async.testing import ScriptedBackend
from tests.helpers.live_server import MESSAGES, official, running
from tests.helpers.metric_samples import DOCUMENT
from tests.helpers.stand_ins import SilentHandler, listening

if TYPE_CHECKING:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """Bodies that a collector gets over OTLP/HTTP; the environment names its address."""
    bodies: list[bytes] = []

    class Handler(SilentHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

    with listening(Handler) as url:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        yield bodies


def spans_in(bodies: list[bytes]) -> list[tuple[str, Span]]:
    """Each span with the name of its service."""
    named: list[tuple[str, Span]] = []
    for body in bodies:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            names = [a.value.string_value for a in resource.resource.attributes if a.key == "service.name"]
            named += [(names[0], span) for scope in resource.scope_spans for span in scope.spans]
    return named


async def test_spans_continue_the_callers_trace(collected: list[bytes]) -> None:
    trace, caller = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    backend = ScriptedBackend(DOCUMENT)
    with running(backend, api_keys=("very-secret",)) as live:
        headers = {"traceparent": f"00-{trace}-{caller}-01"}
        async with official(live.url, api_key="very-secret", default_headers=headers) as client:
            await client.chat.completions.create(model="scripted", messages=MESSAGES)
        async with httpx.AsyncClient(base_url=live.url) as http:
            await http.get("/metrics")
    named = spans_in(collected)
    assert {service for service, _ in named} == {"pasta-async"}
    spans = [span for _, span in named if span.trace_id.hex() == trace]
    by_id = {span.span_id: span for span in spans}
    [answer] = [span for span in spans if span.name == "chat scripted"]
    http = by_id[answer.parent_span_id]
    assert http.parent_span_id.hex() == caller and "/v1/chat/completions" in http.name
    assert not [span for _, span in named if "metrics" in span.name]
    assert not any(b"very-secret" in body for body in collected)
