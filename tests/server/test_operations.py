"""A server under an operator's eyes, over real sockets: a scrape, spans at a collector."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import httpx
import pytest
from live_server import MESSAGES, official, running
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from samples import DOCUMENT

from pasta_async.testing import ScriptedBackend

if TYPE_CHECKING:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """Takes spans over OTLP/HTTP."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        bodies = self.bodies

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                bodies.append(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)

    @property
    def spans(self) -> list[tuple[str, Span]]:
        """Each span with the name of its service."""
        found: list[tuple[str, Span]] = []
        for body in self.bodies:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                names = [
                    a.value.string_value for a in resource.resource.attributes if a.key == "service.name"
                ]
                found += [(names[0], span) for scope in resource.scope_spans for span in scope.spans]
        return found


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


async def test_spans_continue_the_callers_trace(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://127.0.0.1:{collector.server.server_port}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    trace, caller = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    backend = ScriptedBackend(DOCUMENT)
    with running(backend, api_keys=("very-secret",)) as live:
        headers = {"traceparent": f"00-{trace}-{caller}-01"}
        async with official(live.url, api_key="very-secret", default_headers=headers) as client:
            await client.chat.completions.create(model="scripted", messages=MESSAGES)
        async with httpx.AsyncClient(base_url=live.url) as http:
            await http.get("/metrics")
    assert {service for service, _ in collector.spans} == {"pasta-async"}
    spans = [span for _, span in collector.spans if span.trace_id.hex() == trace]
    by_id = {span.span_id: span for span in spans}
    [answer] = [span for span in spans if span.name == "chat scripted"]
    http = by_id[answer.parent_span_id]
    assert http.parent_span_id.hex() == caller and "/v1/chat/completions" in http.name
    requests = [span for span in spans if span.name == "text_completion scripted"]
    assert len(requests) == 4
    assert {by_id[by_id[span.parent_span_id].parent_span_id].name for span in requests} == {answer.name}
    sent = {(request.headers or {})["traceparent"].split("-")[2] for request in backend.requests}
    assert sent == {answer.span_id.hex()}
    assert not [span for _, span in collector.spans if "metrics" in span.name]
    assert not any(b"very-secret" in body for body in collector.bodies)
