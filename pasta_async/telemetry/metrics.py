"""Prometheus metrics of a client's answers. Needs the extra `metrics`.

Names follow Prometheus's rules (base units, `_total` for what only grows, no colon, which is for recording
rules) and, where there is the same thing, the names of SGLang and vLLM: `model_name`, `generation_tokens`,
`time_to_first_token_seconds`.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from pasta_async.observers import AnswerObserver, error_type, outcome

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
except ModuleNotFoundError as _missing:
    raise ModuleNotFoundError(
        f"metrics need {_missing.name}, which is not installed; pip install 'pasta_async[metrics]' brings it",
        name=_missing.name,
    ) from _missing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pasta_async.observers import AnswerStart, Turn
    from pasta_async.protocol import DecodeRequest
    from pasta_async.results import Generation, RequestRecord, ThreadRecord

__all__ = ["Metrics"]

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500)
_WAITS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_RATIOS = (0.75, 0.9, 1, 1.1, 1.25, 1.5, 1.75, 2, 2.5, 3, 4, 5, 7.5, 10)
_THREADS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)


class Metrics:
    """An observer that keeps Prometheus metrics; `Client(observers=[Metrics()])`.

    One of these may serve any number of clients; metrics are told apart by `model_name`.

    Args:
        registry: Where the metrics are registered: a second one cannot be on the same.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._registry = registry
        self.answers: Counter = self._counter("answers", "Answers that ended, by how.", "finish_reason")
        self.answer_errors: Counter = self._counter(
            "answer_errors", "Answers that failed, by the class of the error.", "error_type"
        )
        self.answers_in_flight: Gauge = self._gauge("answers_in_flight", "Answers under way.")
        self.duration: Histogram = self._histogram(
            "answer_duration_seconds", "From the beginning of an answer to its end.", _SECONDS
        )
        self.first_token: Histogram = self._histogram(
            "time_to_first_token_seconds", "From the beginning of an answer to its first token.", _SECONDS
        )
        self.speedup: Histogram = self._histogram(
            "text_speedup_ratio", "Tokens of an answer's text over its critical path.", _RATIOS
        )
        self.answer_threads: Histogram = self._histogram(
            "answer_threads", "Threads of an answer, the main thread counted.", _THREADS
        )
        self.text_tokens: Counter = self._counter("text_tokens", "Tokens of the visible text.")
        self.critical_path: Counter = self._counter(
            "critical_path_tokens", "Tokens that had to be decoded one after another."
        )
        self.diagnostics: Counter = self._counter(
            "diagnostics", "What was not well-formed in what the model wrote.", "code"
        )
        self.threads: Counter = self._counter(
            "threads", "Threads of answers that ended.", "kind", "finish_reason"
        )
        self.threads_decoding: Gauge = self._gauge("threads_decoding", "Threads that hold a slot.")
        self.threads_waiting: Gauge = self._gauge("threads_waiting", "Threads that wait for a slot.")
        self.thread_wait: Histogram = self._histogram(
            "thread_wait_seconds", "How long a thread waited for a slot.", _WAITS
        )
        self.chunk_first_token: Histogram = self._histogram(
            "chunk_time_to_first_token_seconds", "From a promise to its chunk's first token.", _SECONDS
        )
        self.requests: Counter = self._counter(
            "requests", "Requests to the backend, by how.", "finish_reason"
        )
        self.request_errors: Counter = self._counter(
            "request_errors", "Requests that failed, retried ones too.", "error_type"
        )
        self.requests_in_flight: Gauge = self._gauge("requests_in_flight", "Requests under way.")
        self.prompt_tokens: Counter = self._counter(
            "prompt_tokens", "Tokens of prompts, each counted once for its answer."
        )
        self.cached_tokens: Counter = self._counter(
            "cached_tokens", "Tokens of requests' contexts that the prefix cache held."
        )
        self.prefilled_tokens: Counter = self._counter(
            "prefilled_tokens", "Tokens of requests' contexts that were computed."
        )
        self.generation_tokens: Counter = self._counter(
            "generation_tokens", "Tokens generated, tags counted.", "kind"
        )

    def answer(self, start: AnswerStart) -> AnswerObserver:
        """Keep the metrics of an answer that begins."""
        return _AnswerMetrics(self, start.model.name if start.model else "unknown")

    def _counter(self, name: str, documentation: str, *labels: str) -> Counter:
        return Counter(f"pasta_{name}", documentation, ("model_name", *labels), registry=self._registry)

    def _gauge(self, name: str, documentation: str) -> Gauge:
        return Gauge(f"pasta_{name}", documentation, ("model_name",), registry=self._registry)

    def _histogram(self, name: str, documentation: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(
            f"pasta_{name}", documentation, ("model_name",), buckets=buckets, registry=self._registry
        )


class _AnswerMetrics(AnswerObserver):
    def __init__(self, metrics: Metrics, model: str) -> None:
        self._metrics, self._model = metrics, model
        self._began = monotonic()
        self._turns: dict[int, tuple[Turn, float]] = {}
        metrics.answers_in_flight.labels(model).inc()

    def turn(self, thread: int, turn: Turn) -> None:
        metrics, now = self._metrics, monotonic()
        gauges = {"waiting": metrics.threads_waiting, "decoding": metrics.threads_decoding}
        before, since = self._turns.pop(thread, ("over", now))
        if before != "over":
            gauges[before].labels(self._model).dec()
        if before == "waiting":
            metrics.thread_wait.labels(self._model).observe(now - since)
        if turn != "over":
            gauges[turn].labels(self._model).inc()
            self._turns[thread] = (turn, now)

    def request_started(self, request: DecodeRequest) -> Mapping[str, str] | None:
        self._metrics.requests_in_flight.labels(self._model).inc()

    def request_ended(
        self, request: DecodeRequest, record: RequestRecord, error: BaseException | None
    ) -> None:
        metrics, model, cached = self._metrics, self._model, record.cached_tokens or 0
        metrics.requests_in_flight.labels(model).dec()
        metrics.requests.labels(model, record.finish_reason).inc()
        if error:
            metrics.request_errors.labels(model, error_type(error)).inc()
        metrics.generation_tokens.labels(model, _kind(request.thread)).inc(record.completion_tokens)
        metrics.cached_tokens.labels(model).inc(cached)
        metrics.prefilled_tokens.labels(model).inc(record.prompt_tokens - cached)

    def ended(self, generation: Generation | None, error: BaseException | None) -> None:
        metrics, model = self._metrics, self._model
        metrics.answers_in_flight.labels(model).dec()
        metrics.answers.labels(model, outcome(generation, error)).inc()
        if outcome(generation, error) == "error" and error:
            metrics.answer_errors.labels(model, error_type(error)).inc()
        metrics.duration.labels(model).observe(
            generation.elapsed if generation else monotonic() - self._began
        )
        if generation:
            self._count(generation)
        if generation and not error:
            metrics.speedup.labels(model).observe(generation.text_speedup)
            metrics.answer_threads.labels(model).observe(len(generation.threads))

    def _count(self, generation: Generation) -> None:
        metrics, model = self._metrics, self._model
        metrics.prompt_tokens.labels(model).inc(generation.usage.prompt_tokens)
        metrics.text_tokens.labels(model).inc(generation.text_tokens)
        metrics.critical_path.labels(model).inc(generation.critical_path)
        for diagnostic in generation.diagnostics:
            metrics.diagnostics.labels(model, diagnostic.code).inc()
        for thread in generation.threads:
            self._count_thread(thread)

    def _count_thread(self, thread: ThreadRecord) -> None:
        metrics, model = self._metrics, self._model
        metrics.threads.labels(model, _kind(thread.thread), thread.finish_reason).inc()
        if thread.first_token is not None:
            histogram = metrics.chunk_first_token if thread.thread else metrics.first_token
            histogram.labels(model).observe(thread.first_token - thread.opened)


def _kind(thread: int) -> str:
    return "chunk" if thread else "main"
