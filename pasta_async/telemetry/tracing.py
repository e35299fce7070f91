"""OpenTelemetry traces of a client's answers: answer -> thread -> request. Needs the extra `otel`.

Attributes named `gen_ai.` follow the semantic conventions for generative AI in version 1.41.1: the last
release of the OpenTelemetry semantic conventions that has them, since they moved to a repository of their own
(which has no release so far). Others are named `pasta.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import time_ns
from typing import Any

from pasta_async.errors import missing_extra
from pasta_async.observers import AnswerObserver, AnswerStart
from pasta_async.protocol import DecodeRequest
from pasta_async.results import Generation, RequestRecord, ThreadRecord
from pasta_async.telemetry import error_type, figures, outcome

try:
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import SpanKind, Tracer, TracerProvider
except ModuleNotFoundError as _error:
    raise missing_extra("telemetry.tracing", "otel", _error) from _error

SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.1"
"""The semantic conventions that the spans follow."""


class Tracing:
    """An observer that makes spans; `Client(observers=[Tracing()])`.

    An answer's span is a child of the span that is current where it is asked for. Its context goes to the
    backend with each request (`traceparent`), so that the spans of an SGLang server continue it. When it is
    over, spans of its threads and of their requests are made from its records.

    Args:
        provider: The receiver of the spans; None: the global one, which does nothing until it is set up.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("pasta_async", tracer_provider=provider, schema_url=SCHEMA_URL)

    def answer(self, start: AnswerStart) -> AnswerObserver:
        """Begin the span of an answer."""
        return _AnswerSpans(self._tracer, start)


class _AnswerSpans(AnswerObserver):
    def __init__(self, tracer: Tracer, start: AnswerStart) -> None:
        self._tracer = tracer
        self._start = start
        self._model = start.model.name if start.model else None
        self._began = time_ns()
        self._span = self._call("chat", None, trace.SpanKind.INTERNAL, self._began)
        self._context = trace.set_span_in_context(self._span)

    def request(self, request: DecodeRequest) -> Mapping[str, str] | None:
        headers = dict[str, str]()
        propagate.inject(headers, self._context)
        return headers

    def ended(self, generation: Generation | None, error: BaseException | None) -> None:
        start = self._start
        sampling = start.sampling
        reason = outcome(generation, error)
        attributes: dict[str, Any] = {
            "gen_ai.output.type": "text",
            "gen_ai.response.id": start.answer,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.max_tokens": sampling.max_tokens,
            "gen_ai.request.seed": sampling.seed,
            "gen_ai.request.stream": start.streamed,
            "gen_ai.response.finish_reasons": [reason],
            "pasta.parallel": start.parallel,
            "pasta.baseline": start.baseline,
        }
        if generation:
            attributes |= {
                "gen_ai.usage.input_tokens": generation.usage.prompt_tokens,
                "gen_ai.usage.output_tokens": generation.usage.completion_tokens,
                "gen_ai.response.time_to_first_chunk": generation.first_token,
                "pasta.diagnostics": [diagnostic.code.value for diagnostic in generation.diagnostics],
                **{f"pasta.{name}": value for name, value in figures(generation).items()},
            }
            for record in generation.threads:
                self._add_thread(generation, record)
        _set(self._span, attributes)
        if reason == "error" and error:
            self._span.set_attribute("error.type", error_type(error))
            self._span.set_status(trace.StatusCode.ERROR)  # the message may quote a prompt
        self._span.end()

    def _add_thread(self, generation: Generation, record: ThreadRecord) -> None:
        """The span of a thread, and those of its requests, at the times of their records."""
        ended = generation.elapsed if record.ended is None else record.ended
        name = "pasta.thread chunk" if record.thread else "pasta.thread main"
        span = self._tracer.start_span(name, self._context, start_time=self._at(record.opened))
        fields = record.model_dump(exclude={"requests", "text", "topic"})  # no text in traces
        _set(span, {f"pasta.{name}": value for name, value in fields.items()})
        for request in record.requests:
            self._add_request(request, generation.elapsed, trace.set_span_in_context(span, self._context))
        span.end(self._at(ended))

    def _add_request(self, record: RequestRecord, elapsed: float, parent: Context) -> None:
        started, ended = record.times(elapsed)
        span = self._call("text_completion", parent, trace.SpanKind.CLIENT, self._at(started))
        attributes = {
            "gen_ai.usage.input_tokens": record.prompt_tokens,
            "gen_ai.usage.output_tokens": record.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
            "gen_ai.response.finish_reasons": [record.finish_reason or "abort"],
        }
        _set(span, attributes)
        if record.finish_reason == "error":
            span.set_status(trace.StatusCode.ERROR)
        span.end(self._at(ended))

    def _call(self, operation: str, parent: Context | None, kind: SpanKind, at: int) -> trace.Span:
        """Begin the span of a call of the model, with the attributes that the conventions require."""
        name = f"{operation} {self._model}" if self._model else operation
        span = self._tracer.start_span(name, parent, kind, start_time=at)
        required = {"gen_ai.operation.name": operation, "gen_ai.provider.name": "pasta_async"}
        _set(span, {**required, "gen_ai.request.model": self._model})
        return span

    def _at(self, seconds: float) -> int:
        """A time of the answer, in nanoseconds since the epoch as for spans."""
        return self._began + round(seconds * 1e9)


def _set(span: trace.Span, attributes: Mapping[str, Any]) -> None:
    """Set the attributes that are not None."""
    span.set_attributes({name: value for name, value in attributes.items() if value is not None})
