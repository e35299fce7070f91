"""Spans, as OpenTelemetry's own in-memory exporter gets them."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

from pasta_async import Client, ThreadFailedError
from pasta_async.backends.sglang import SGLangBackend
from pasta_async.telemetry.tracing import SCHEMA_URL, Tracing
from pasta_async.testing import Fault, ScriptedBackend
from tests.helpers import odd_server
from tests.helpers.metric_samples import DOCUMENT


class Traces:
    """A provider, and the spans that ended."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith(name)]

    def children(self, parent: ReadableSpan, name: str) -> list[ReadableSpan]:
        parent_id = context(parent).span_id
        return [span for span in self.spans(name) if span.parent and span.parent.span_id == parent_id]


def context(span: ReadableSpan) -> SpanContext:
    span_context = span.get_span_context()
    assert span_context
    return span_context


def attributes(span: ReadableSpan) -> Any:
    return dict(span.attributes or {})


async def test_an_answer_has_threads_and_they_have_requests() -> None:
    traces = Traces()
    client = Client(ScriptedBackend(DOCUMENT), observers=[Tracing(traces.provider)])
    generation = await client.generate("a secret")
    [answer] = traces.spans("chat scripted")
    assert answer.parent is None
    assert answer.instrumentation_scope and answer.instrumentation_scope.schema_url == SCHEMA_URL
    fields = attributes(answer)
    assert fields["gen_ai.usage.input_tokens"] == generation.usage.prompt_tokens
    assert fields["gen_ai.usage.output_tokens"] == generation.usage.completion_tokens
    assert fields["gen_ai.response.finish_reasons"] == ("stop",)
    assert fields["pasta.critical_path"] == generation.critical_path
    threads = sorted(
        traces.children(answer, "pasta.thread"), key=lambda span: attributes(span)["pasta.thread"]
    )
    for span, record in zip(threads, generation.threads, strict=True):
        assert attributes(span)["pasta.tokens"] == record.tokens
        requests = traces.children(span, "text_completion scripted")
        for request, kept in zip(requests, record.requests, strict=True):
            assert request.kind == SpanKind.CLIENT
            assert attributes(request)["gen_ai.usage.input_tokens"] == kept.prompt_tokens
            assert attributes(request)["gen_ai.usage.output_tokens"] == kept.completion_tokens
            assert attributes(request)["gen_ai.usage.cache_read.input_tokens"] == kept.cached_tokens
            assert answer.start_time and request.start_time and request.end_time and answer.end_time
            assert answer.start_time <= request.start_time <= request.end_time <= answer.end_time
    everything = " ".join(span.to_json() for span in traces.exporter.get_finished_spans())
    assert "secret" not in everything and "chunks" not in everything and '"one"' not in everything


async def test_a_server_over_http_gets_the_trace_context() -> None:
    traces = Traces()
    server = odd_server.OddServer(decoding=[odd_server.good()])
    async with server.client() as http:
        backend = SGLangBackend("http://odd", client=http)
        await Client(backend, observers=[Tracing(traces.provider)]).generate("x", baseline=True)
    [answer] = traces.spans("chat odd")
    expected = f"00-{context(answer).trace_id:032x}-{context(answer).span_id:016x}"
    sent = [headers["traceparent"] for headers in server.headers if "traceparent" in headers]
    assert [header.rpartition("-")[0] for header in sent] == [expected]


async def test_a_failure_marks_its_request_and_its_answer() -> None:
    traces = Traces()
    backend = ScriptedBackend(DOCUMENT, faults=[Fault(thread=2, after_tokens=1)])
    with pytest.raises(ThreadFailedError):
        await Client(backend, observers=[Tracing(traces.provider)]).generate("x")
    failed = [span for span in traces.spans("") if span.status.status_code is StatusCode.ERROR]
    assert sorted(span.name for span in failed) == ["chat scripted", "text_completion scripted"]
    assert attributes(traces.spans("chat")[0])["error.type"] == "BackendError"
