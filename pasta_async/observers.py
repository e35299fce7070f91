"""Observers of a client's answers: metrics, traces, logs (`pasta_async.telemetry`), or your own.

An `Observer` is called for every answer of its `Client`, and returns an `AnswerObserver` for it. That one is
called a few times for each request and never for a token. The answer's record (`Generation`) has the rest.

All calls come from the event loop of the answer, so they must return at once. An error that they raise is
logged and goes no further.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, Self, TypeVar

from pydantic import Field, InstanceOf, SkipValidation, StrictBool

from pasta_async.options import Limits, Options, Parallel, Sampling
from pasta_async.prompts import Prompt
from pasta_async.protocol import DecodeRequest, Model
from pasta_async.results import Generation

_T = TypeVar("_T")

ThreadState = Literal["waiting", "decoding", "over"]
"""The state of a thread: it waits for a slot of its answer and of its client, decodes, or needs no slot."""


class AnswerStart(Options):
    """The arguments of `Client.generate` for an answer, with the client's limits as defaults."""

    answer: str
    """Id of the answer, the same as `DecodeRequest.answer`."""
    prompt: SkipValidation[Prompt]
    """The prompt, not checked yet. Keep it out of logs and traces unless it is wanted there."""
    sampling: InstanceOf[Sampling]
    limits: InstanceOf[Limits]
    baseline: StrictBool = False
    parallel: Parallel = "auto"
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict[str, Any])
    streamed: bool = False
    """True if the answer is read as a stream."""
    model: InstanceOf[Model] | None = None
    """None if the answer ends at once, since its prompt is bad or the backend cannot be reached."""


class AnswerObserver:
    """Observes one answer. Each method does nothing until it is overridden."""

    def thread_state(self, thread: int, state: ThreadState) -> None:
        """Called when a thread begins to wait for a slot, gets it, or needs none any more.

        The main thread does this again for each stretch between syncs. A thread that waits for its reader, or
        to send a request again, is "waiting" once more. "over" comes last, whatever happens.
        """

    def request(self, request: DecodeRequest) -> Mapping[str, str] | None:
        """Called before a request is sent; returns headers to send along, a trace context for instance."""

    def request_failed(self, request: DecodeRequest, error: BaseException) -> None:
        """Called when a request failed. It may be sent again."""

    def ended(self, generation: Generation | None, error: BaseException | None) -> None:
        """Called when the answer is over, and with it all threads and requests.

        Args:
            generation: The answer, or the part of it that there is; None if nothing was sent.
            error: The error that ended it; `asyncio.CancelledError` if it was cancelled.
        """


class Observer(Protocol):
    """Observes every answer of a client."""

    def answer(self, start: AnswerStart) -> AnswerObserver:
        """Called when an answer begins; returns the observer of that answer."""
        ...


class Run(Protocol):
    """The decoding of one answer, or plan."""

    def partial(self) -> Generation:
        """The answer so far."""
        ...


class Observation(AnswerObserver):
    """The observers of one answer, as one observer.

    It is entered when the answer begins, and left when the answer is over. An error in one of the observers
    harms neither the answer nor the others.

    Attributes:
        start: The options of the answer.
        run: The run that decodes the answer; None before that.
        generation: The answer once it is over, or the part of it that there is.
    """

    def __init__(self, observers: Sequence[Observer], start: AnswerStart) -> None:
        self._observers = observers
        self.start: AnswerStart = start
        self._answers: list[AnswerObserver] | None = None
        self.run: Run | None = None
        self.generation: Generation | None = None

    def __enter__(self) -> Self:
        return self

    def begin(self, model: Model | None) -> None:
        """Tell the observers of the answer, and of its model; None if the answer ends before it is known."""
        start = self.start.model_copy(update={"model": model})
        self._answers = _each(self._observers, lambda observer: observer.answer(start))

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and self.run:
            self.generation = self.run.partial()
        if self._answers is None:
            self.begin(None)
        self.ended(self.generation, error)

    def thread_state(self, thread: int, state: ThreadState) -> None:
        """See `AnswerObserver`."""
        _each(self._answers, lambda observer: observer.thread_state(thread, state))

    def request(self, request: DecodeRequest) -> Mapping[str, str] | None:
        """The headers of all observers together."""
        headers = _each(self._answers, lambda observer: observer.request(request))
        return {name: value for mapping in headers if mapping for name, value in mapping.items()}

    def request_failed(self, request: DecodeRequest, error: BaseException) -> None:
        """See `AnswerObserver`."""
        _each(self._answers, lambda observer: observer.request_failed(request, error))

    def ended(self, generation: Generation | None, error: BaseException | None) -> None:
        """See `AnswerObserver`."""
        _each(self._answers, lambda observer: observer.ended(generation, error))


def _each(observers: Sequence[Any] | None, call: Callable[[Any], _T]) -> list[_T]:
    """Call each observer; an error is logged, and that observer's result left out."""
    results: list[_T] = []
    for observer in observers or ():
        try:
            results.append(call(observer))
        except Exception:
            name = type(observer).__name__
            logging.getLogger(__name__).exception("%s failed; the answer goes on", name)
    return results
