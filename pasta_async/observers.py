"""Observers of a client's answers: metrics, traces, logs (`pasta_async.telemetry`), or your own.

An `Observer` is told of every answer of its `Client`, and gives an `AnswerObserver` for it. That is called a
few times for each request, and never for a token. The records of the answer (`Generation`) carry the rest.

All calls come from the event loop of the answer, so they must return at once. An error that they raise is
logged and goes no further.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, Self, TypeVar, runtime_checkable

from pydantic import Field, InstanceOf, SkipValidation, StrictBool

from pasta_async.options import Limits, Options, Parallel, Sampling
from pasta_async.prompts import Prompt
from pasta_async.protocol import DecodeRequest, Model
from pasta_async.results import Generation

_T = TypeVar("_T")

Turn = Literal["waiting", "decoding", "over"]
"""A thread waits for a slot of its answer and of its client, decodes, or needs none any more."""


class AnswerStart(Options):
    """An answer that is asked for: what `Client.generate` was given, with the client's limits as defaults."""

    answer: str
    """Its id, the same as `DecodeRequest.answer`."""
    prompt: SkipValidation[Prompt]
    """The prompt, not checked yet. Keep it out of logs and traces unless it is wanted there."""
    sampling: InstanceOf[Sampling]
    limits: InstanceOf[Limits]
    baseline: StrictBool = False
    parallel: Parallel = "auto"
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict[str, Any])
    whole_chunks: StrictBool = False
    streamed: bool = False
    """True if the answer is read as a stream."""
    model: InstanceOf[Model] | None = None
    """None if the answer ends at once, since its prompt is bad or the backend cannot be reached."""


class AnswerObserver:
    """Is told what an answer does. Each method does nothing until it is overridden."""

    def turn(self, thread: int, turn: Turn) -> None:
        """A thread waits for a slot, has it, or needs none any more.

        The main thread does this anew for each stretch between syncs. A thread that waits for its reader, or
        to send a request again, is "waiting" once more. "over" comes last, whatever happens.
        """

    def request(self, request: DecodeRequest) -> Mapping[str, str] | None:
        """A request is about to be sent; returns headers to send along, a trace context for instance."""

    def request_failed(self, request: DecodeRequest, error: BaseException) -> None:
        """A request failed. It may be sent again."""

    def ended(self, generation: Generation | None, error: BaseException | None) -> None:
        """The answer is over, and so are its turns and requests.

        Args:
            generation: The answer, or the part of it that there is; None if nothing was sent.
            error: What ended it; `asyncio.CancelledError` if it was cancelled.
        """


@runtime_checkable
class Observer(Protocol):
    """Is told of every answer of a client."""

    def answer(self, start: AnswerStart) -> AnswerObserver:
        """An answer begins; the returned observer is told the rest of it."""
        ...


class Observation(AnswerObserver):
    """The observers of one answer, as one observer.

    It is entered when the answer begins, and left when the answer is over. An error in one of the observers
    harms neither the answer nor the others.

    Attributes:
        start: The options of the answer.
        partial: Gives the answer so far.
        generation: The answer, once it is there.
    """

    def __init__(self, observers: Sequence[Observer], start: AnswerStart) -> None:
        self._observers = observers
        self.start: AnswerStart = start
        self._answers: list[AnswerObserver] | None = None
        self.partial: Callable[[], Generation] | None = None
        self.generation: Generation | None = None

    def __enter__(self) -> Self:
        return self

    def begin(self, model: Model | None) -> None:
        """Tell the observers of the answer, and of its model; None if the answer ends before it is known."""
        start = self.start.model_copy(update={"model": model})
        self._answers = _each(self._observers, lambda observer: observer.answer(start))

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._observers:
            if self._answers is None:
                self.begin(None)
            partial = self.partial() if error is not None and self.partial else None
            self.ended(self.generation or partial, error)

    def turn(self, thread: int, turn: Turn) -> None:
        """See `AnswerObserver`."""
        _each(self._answers, lambda observer: observer.turn(thread, turn))

    def request(self, request: DecodeRequest) -> Mapping[str, str] | None:
        """The headers of all observers together."""
        headers = _each(self._answers, lambda observer: observer.request(request))
        return {name: value for given in headers if given for name, value in given.items()}

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
