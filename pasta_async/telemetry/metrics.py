"""Prometheus metrics of a client's answers. Needs the extra `metrics`.

Names follow Prometheus's rules (base units, `_total` for what only grows, no colon, which is for recording
rules) and, where there is the same thing, the names of SGLang and vLLM: `model_name`, `generation_tokens`,
`time_to_first_token_seconds`.
"""

from __future__ import annotations

from time import monotonic

from pasta_async.errors import missing_extra
from pasta_async.observers import AnswerObserver, AnswerStart, ThreadState
from pasta_async.protocol import DecodeRequest
from pasta_async.results import Generation
from pasta_async.telemetry import error_type, outcome

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
except ModuleNotFoundError as _error:
    raise missing_extra("telemetry.metrics", "metrics", _error) from _error

_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500)
"""Upper bounds of the histograms' buckets, in seconds."""

_COUNTERS: tuple[tuple[str, ...], ...] = (
    ("answers", "Answers that ended, by how.", "finish_reason"),
    ("answer_errors", "Answers that failed, by the class of the error.", "error_type"),
    ("answer_widths", "Answers that were decoded, by how parallel the load let them be.", "width"),
    ("text_tokens", "Tokens of text and reasoning, without tags."),
    ("critical_path_tokens", "Tokens that had to be decoded one after another."),
    ("diagnostics", "Places where what the model wrote is not well-formed.", "code"),
    ("threads", "Threads of answers that ended.", "kind", "finish_reason"),
    ("requests", "Requests to the backend, by how.", "finish_reason"),
    ("request_errors", "Requests that failed, retried ones too.", "error_type"),
    ("prompt_tokens", "Tokens of prompts, each counted once for its answer."),
    ("cached_tokens", "Tokens of requests' contexts that the prefix cache held."),
    ("prefilled_tokens", "Tokens of requests' contexts that were computed."),
    ("generation_tokens", "Tokens generated, tags counted.", "kind"),
)
"""Name, documentation, and labels besides `model_name`."""
_GAUGES = (
    ("answers_in_flight", "Answers under way."),
    ("threads_decoding", "Threads that hold a slot, each with a request to the backend."),
    ("threads_waiting", "Threads that wait for a slot, for room on the engine, or for their reader."),
)
_HISTOGRAMS = (
    ("answer_duration_seconds", "From the beginning of an answer to its end."),
    ("time_to_first_token_seconds", "From the beginning of an answer to its first token."),
    ("thread_wait_seconds", "From when a thread asks for a slot until it has one."),
)


class Metrics:
    """An observer that keeps Prometheus metrics; `Client(observers=[Metrics()])`.

    One object may serve any number of clients; the label `model_name` tells their metrics apart.

    Args:
        registry: The registry of the metrics. It cannot have two `Metrics`.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        model = ("model_name",)
        self.counters: dict[str, Counter] = {
            name: Counter(f"pasta_{name}", text, (*model, *labels), registry=registry)
            for name, text, *labels in _COUNTERS
        }
        self.gauges: dict[str, Gauge] = {
            name: Gauge(f"pasta_{name}", text, model, registry=registry) for name, text in _GAUGES
        }
        self.histograms: dict[str, Histogram] = {
            name: Histogram(f"pasta_{name}", text, model, buckets=_BUCKETS, registry=registry)
            for name, text in _HISTOGRAMS
        }

    def answer(self, start: AnswerStart) -> AnswerObserver:
        """Keep the metrics of an answer that begins."""
        return _AnswerMetrics(self, start.model.name if start.model else "unknown")


class _AnswerMetrics(AnswerObserver):
    def __init__(self, metrics: Metrics, model: str) -> None:
        self._metrics = metrics
        self._model = model
        self._began = monotonic()
        self._states: dict[int, tuple[ThreadState, float]] = {}  # the state of each thread, and its beginning
        self._gauge("answers_in_flight", 1)

    def thread_state(self, thread: int, state: ThreadState) -> None:
        now = monotonic()
        before, since = self._states.pop(thread, ("over", now))
        if before != "over":
            self._gauge(f"threads_{before}", -1)
        if before == "waiting":
            self._observe("thread_wait_seconds", now - since)
        if state != "over":
            self._gauge(f"threads_{state}", 1)
            self._states[thread] = (state, now)

    def request_failed(self, request: DecodeRequest, error: BaseException) -> None:
        self._count("request_errors", 1, error_type(error))

    def ended(self, generation: Generation | None, error: BaseException | None) -> None:
        reason = outcome(generation, error)
        self._gauge("answers_in_flight", -1)
        self._count("answers", 1, reason)
        if reason == "error" and error:
            self._count("answer_errors", 1, error_type(error))
        seconds = generation.elapsed if generation else monotonic() - self._began
        self._observe("answer_duration_seconds", seconds)
        if generation:
            self._count_generation(generation)

    def _count_generation(self, generation: Generation) -> None:
        self._count("answer_widths", 1, generation.width)
        self._count("prompt_tokens", generation.usage.prompt_tokens)
        self._count("cached_tokens", generation.usage.cached_tokens)
        self._count("prefilled_tokens", generation.usage.prefilled_tokens)
        self._count("text_tokens", generation.text_tokens)
        self._count("critical_path_tokens", generation.critical_path)
        if (first_token := generation.first_token) is not None:
            self._observe("time_to_first_token_seconds", first_token)
        for diagnostic in generation.diagnostics:
            self._count("diagnostics", 1, diagnostic.code)
        for thread in generation.threads:
            kind = "chunk" if thread.thread else "main"
            self._count("threads", 1, kind, thread.finish_reason)
            self._count("generation_tokens", thread.tokens, kind)
            for request in thread.requests:
                self._count("requests", 1, request.finish_reason or "abort")

    def _count(self, name: str, amount: float, *labels: str) -> None:
        self._metrics.counters[name].labels(self._model, *labels).inc(amount)

    def _gauge(self, name: str, change: float) -> None:
        self._metrics.gauges[name].labels(self._model).inc(change)

    def _observe(self, name: str, value: float) -> None:
        self._metrics.histograms[name].labels(self._model).observe(value)
