"""OpenTelemetry traces of a client's answers: answer -> thread -> request. Needs the extra `otel`.

Attributes named `gen_ai.` follow the semantic conventions for generative AI in version 1.41.1: the last
release of the OpenTelemetry semantic conventions that has them, since they moved to a repository of their own
(which has no release so far). What they do not have is named `pasta.`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextvars import Token
from time import time_ns

from pasta_async.errors import missing_extra
from pasta_async.observers import AnswerObserver, AnswerStart, Turn, error_type, outcome
from pasta_async.protocol import DecodeRequest
from pasta_async.results import Generation, RequestRecord, ThreadRecord

try:
    from opentelemetry import context, propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanKind, Tracer, TracerProvider
    from opentelemetry.util.types import AttributeValue
except ModuleNotFoundError as _error:
    raise missing_extra("telemetry.tracing", "otel", _error) from _error

Attributes = dict[str, AttributeValue | None]

SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.1"
"""The semantic conventions that the spans follow."""


class Tracing:
    """An observer that makes spans; `Client(observers=[Tracing()])`.

    An answer's span is a child of the span that is current where it is asked for. Its threads' spans are its
    children, and requests are their thread's. While a request runs, its span is current, and its context goes
    to the backend (`traceparent`), so that the spans of an SGLang server continue it.

    Args:
        provider: Where spans go; None: the global one, which does nothing before somebody sets it up.
        text: Whether prompts, topics, answers and the messages of errors may appear in spans.
    """

    def __init__(self, provider: TracerProvider | None = None, *, text: bool = False) -> None:
        self._tracer = trace.get_tracer("pasta_async", tracer_provider=provider, schema_url=SCHEMA_URL)
        self._text = text

    def answer(self, start: AnswerStart) -> AnswerObserver:
        """Begin the span of an answer."""
        return _AnswerSpans(self._tracer, start, text=self._text)


class _AnswerSpans(AnswerObserver):
    def __init__(self, tracer: Tracer, start: AnswerStart, *, text: bool) -> None:
        self._tracer, self._text = tracer, text
        self._model = start.model.name if start.model else None
        self._began = time_ns()
        self._span = self._call(
            "chat",
            {
                "gen_ai.output.type": "text",
                "gen_ai.response.id": start.answer,
                "gen_ai.request.temperature": start.sampling.temperature,
                "gen_ai.request.top_p": start.sampling.top_p,
                "gen_ai.request.max_tokens": start.sampling.max_tokens,
                "gen_ai.request.seed": start.sampling.seed,
                "gen_ai.request.stream": start.streamed,
                "gen_ai.input.messages": _messages(start) if text else None,
                "pasta.parallel": start.parallel,
                "pasta.baseline": start.baseline,
            },
        )
        self._context = trace.set_span_in_context(self._span)
        self._outside = context.attach(self._context)
        self._threads: dict[int, Span] = {}
        self._requests: dict[int, tuple[Span, Token[Context]]] = {}

    def _call(
        self,
        operation: str,
        attributes: Attributes,
        parent: Context | None = None,
        kind: SpanKind = trace.SpanKind.INTERNAL,
    ) -> Span:
        """Begin the span of a call of the model, as the conventions have it."""
        common = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "pasta_async",
            "gen_ai.request.model": self._model,
        }
        name = f"{operation} {self._model}" if self._model else operation
        return self._tracer.start_span(name, parent, kind, _known(common | attributes))

    def turn(self, thread: int, turn: Turn) -> None:
        if thread not in self._threads:
            name = "pasta.thread chunk" if thread else "pasta.thread main"
            span = self._tracer.start_span(name, self._context, attributes={"pasta.thread": thread})
            self._threads[thread] = span
        self._threads[thread].add_event(f"pasta.{turn}")

    def request_started(self, request: DecodeRequest) -> Mapping[str, str] | None:
        attributes: Attributes = {
            "gen_ai.request.max_tokens": request.max_tokens,
            "gen_ai.request.temperature": request.sampling.temperature,
            "gen_ai.request.seed": request.seed,
            "pasta.thread": request.thread,
        }
        parent = trace.set_span_in_context(self._threads[request.thread], self._context)
        span = self._call("text_completion", attributes, parent, trace.SpanKind.CLIENT)
        inside = trace.set_span_in_context(span, self._context)
        self._requests[request.thread] = span, context.attach(inside)
        headers = dict[str, str]()
        propagate.inject(headers, inside)
        return headers

    def request_ended(
        self, request: DecodeRequest, record: RequestRecord, error: BaseException | None
    ) -> None:
        span, outside = self._requests.pop(request.thread)
        context.detach(outside)
        attributes: Attributes = {
            "gen_ai.usage.input_tokens": record.prompt_tokens,
            "gen_ai.usage.output_tokens": record.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
            "gen_ai.response.finish_reasons": [record.finish_reason or "error"],
        }
        self._end(span, attributes, error)

    def ended(self, generation: Generation | None, error: BaseException | None) -> None:
        context.detach(self._outside)
        records = {record.thread: record for record in generation.threads} if generation else {}
        for number, span in self._threads.items():
            self._end_thread(span, records.get(number))
        finish_reason = outcome(generation, error)
        attributes: Attributes = {"gen_ai.response.finish_reasons": [finish_reason]}
        if generation:
            attributes |= self._figures(generation)
        self._end(self._span, attributes, error if finish_reason == "error" else None)

    def _figures(self, generation: Generation) -> Attributes:
        usage = generation.usage
        return {
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "gen_ai.response.time_to_first_chunk": generation.threads[0].first_token,
            "gen_ai.output.messages": _output(generation) if self._text else None,
            "pasta.cached_tokens": usage.cached_tokens,
            "pasta.prefilled_tokens": usage.prefilled_tokens,
            "pasta.width": generation.width,
            "pasta.threads": len(generation.threads),
            "pasta.critical_path": generation.critical_path,
            "pasta.text_speedup": generation.text_speedup,
            "pasta.diagnostics": [diagnostic.code.value for diagnostic in generation.diagnostics],
        }

    def _end_thread(self, span: Span, record: ThreadRecord | None) -> None:
        """End a thread's span at the time its record says."""
        if record is None:
            span.end()
            return
        first, ended = record.first_token, record.ended
        attributes: Attributes = {
            "pasta.tokens": record.tokens,
            "pasta.finish_reason": record.finish_reason,
            "pasta.estimate": record.estimate,
            "pasta.closed_by": record.closed_by,
            "pasta.time_to_first_token": None if first is None else first - record.opened,
            "pasta.topic": record.topic if self._text else None,
        }
        self._end(span, attributes, at=None if ended is None else self._began + round(ended * 1e9))

    def _end(
        self, span: Span, attributes: Attributes, error: BaseException | None = None, at: int | None = None
    ) -> None:
        if error is not None:
            attributes["error.type"] = error_type(error)
            span.set_status(trace.Status(trace.StatusCode.ERROR, str(error) if self._text else None))
        span.set_attributes(_known(attributes))
        span.end(at)


def _known(attributes: Attributes) -> dict[str, AttributeValue]:
    """Those that have a value."""
    return {name: value for name, value in attributes.items() if value is not None}


def _messages(start: AnswerStart) -> str:
    """The prompt in the conventions' form of messages; token ids have none."""
    prompt = [{"role": "user", "content": start.prompt}] if isinstance(start.prompt, str) else start.prompt
    return json.dumps(
        [_message(each["role"], each["content"]) for each in prompt if not isinstance(each, int)]
    )


def _output(generation: Generation) -> str:
    return json.dumps([{**_message("assistant", generation.text), "finish_reason": generation.finish_reason}])


def _message(role: str, text: object) -> dict[str, object]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}
