"""Who wants to know what a client's answers do: metrics, traces, logs (`pasta_async.telemetry`), or your own.

An `Observer` is told of every answer of its `Client` and gives an `AnswerObserver` for it, whose methods are
called as the answer goes on: a few calls for each request, none for a token. Records that exist anyway carry
the rest: `RequestRecord` when a request is over, `Generation` with every `ThreadRecord` in the end.

All calls come from the event loop of the answer, so they must return at once. What they raise is logged and
goes no further.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, Protocol, Self, runtime_checkable

from pydantic import Field, InstanceOf, SkipValidation, StrictBool

from pasta_async.errors import ThreadFailedError
from pasta_async.options import Limits, Options, Parallel, Sampling
from pasta_async.prompting import Prompt
from pasta_async.protocol import DecodeRequest, ModelInfo
from pasta_async.results import FinishReason, Generation, RequestRecord

Turn = Literal["waiting", "decoding", "over"]
"""A thread waits for a slot of its answer and of its client, holds both, has given them back or up."""


class AnswerStart(Options):
    """An answer that is asked for: what `Client.generate` was given, with the client's limits laid under.

    Its prompt is not checked yet, and not encoded.
    """

    answer: str
    """Its id, the same as `DecodeRequest.answer`."""
    prompt: SkipValidation[Prompt]
    """What was asked. Keep it out of logs and traces unless somebody wants it there."""
    sampling: InstanceOf[Sampling]
    limits: InstanceOf[Limits]
    baseline: StrictBool = False
    parallel: Parallel = "auto"
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict[str, Any])
    whole_chunks: StrictBool = False
    streamed: bool = False
    """Whether somebody watches it, rather than waiting for the whole."""
    model: InstanceOf[ModelInfo] | None = None
    """None if the answer ends at once, since its prompt is bad or the backend cannot be reached."""


class AnswerObserver:
    """Is told what one answer does. Each method does nothing until it is overridden."""

    def turn(self, thread: int, turn: Turn) -> None:
        """A thread waits, decodes, or has left. The main thread takes a turn for each stretch between syncs.

        The first and the last call of a turn come from one task; the last comes whatever happens.
        """

    def request_started(self, request: DecodeRequest) -> Mapping[str, str] | None:
        """A request is about to be sent; returns headers to send along, a trace context for instance."""

    def request_ended(
        self, request: DecodeRequest, record: RequestRecord, error: BaseException | None
    ) -> None:
        """That request is over, called from the same task.

        `error` is why, if `record.finish_reason` is "error".
        """

    def ended(self, generation: Generation | None, error: BaseException | None) -> None:
        """The answer is over, and so are its turns and requests. Called from the task that began it.

        Args:
            generation: The answer, or the part of it that there is; None if nothing was sent.
            error: What ended it; `asyncio.CancelledError` if it was cancelled.
        """


@runtime_checkable
class Observer(Protocol):
    """Is told of every answer of a client."""

    def answer(self, start: AnswerStart) -> AnswerObserver:
        """An answer begins; what is returned is told the rest of it."""
        ...


class Observation(AnswerObserver):
    """One answer before its observers: entered when it begins, left when it is over, one way or the other.

    It passes on what it is told, from `begin` on or, where that is not reached, when it is left. A mistake in
    one of the observers harms neither the answer nor the others.
    """

    def __init__(self, observers: Sequence[Observer], start: AnswerStart) -> None:
        self._observers, self._start = observers, start
        self._answers: list[AnswerObserver] | None = None
        self.partial: Callable[[], Generation] | None = None
        """The answer so far."""
        self.generation: Generation | None = None
        """The answer, once it is there."""

    def __enter__(self) -> Self:
        return self

    def begin(self, model: ModelInfo | None) -> None:
        """Tell the observers of the answer, and of its model."""
        self._answers = []
        for observer in self._observers:
            with _logged(observer):
                self._answers.append(observer.answer(self._start.model_copy(update={"model": model})))

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._observers:
            if self._answers is None:
                self.begin(None)
            partial = self.partial() if error is not None and self.partial else None
            self.ended(self.generation or partial, error)

    def turn(self, thread: int, turn: Turn) -> None:
        """See `AnswerObserver`, as for the others."""
        for observer in self._answers or ():
            with _logged(observer):
                observer.turn(thread, turn)

    def request_started(self, request: DecodeRequest) -> Mapping[str, str] | None:
        """The headers of all observers together."""
        headers: dict[str, str] = {}
        for observer in self._answers or ():
            with _logged(observer):
                headers |= observer.request_started(request) or {}
        return headers

    def request_ended(
        self, request: DecodeRequest, record: RequestRecord, error: BaseException | None
    ) -> None:
        """The observer that came last is told first."""
        for observer in reversed(self._answers or ()):
            with _logged(observer):
                observer.request_ended(request, record, error)

    def ended(self, generation: Generation | None, error: BaseException | None) -> None:
        """The observer that came last is told first."""
        for observer in reversed(self._answers or ()):
            with _logged(observer):
                observer.ended(generation, error)


async def observed_request(
    observer: AnswerObserver,
    request: DecodeRequest,
    decode: Callable[[DecodeRequest], Awaitable[FinishReason]],
    record: Callable[[FinishReason], RequestRecord],
) -> None:
    """Decode a request, and tell an observer of it; the headers that it gives are sent along.

    `decode` says why the request ended; `record` makes the record of one that ended so, also by an error
    ("error") or a cancellation ("abort"), which go on.
    """
    if headers := observer.request_started(request):
        request = replace(request, headers=headers)
    finish_reason: FinishReason = "abort"
    problem = None
    try:
        finish_reason = await decode(request)
    except Exception as error:
        finish_reason, problem = "error", error
        raise
    finally:
        observer.request_ended(request, record(finish_reason), problem)


def error_type(error: BaseException) -> str:
    """The name that metrics, traces and logs give an error: its class, or that of what made a thread fail."""
    if isinstance(error, ThreadFailedError) and error.__cause__ is not None:
        error = error.__cause__
    return type(error).__name__


def outcome(generation: Generation | None, error: BaseException | None) -> FinishReason:
    """Why an answer ended: as `Generation.finish_reason` says, or "abort" if it was cancelled, or "error"."""
    if error is not None:
        return "abort" if isinstance(error, asyncio.CancelledError) else "error"
    return generation.finish_reason if generation else "stop"


@contextmanager
def _logged(observer: object) -> Generator[None]:
    try:
        yield
    except Exception:
        logging.getLogger(__name__).exception("%s failed; the answer goes on", type(observer).__name__)
