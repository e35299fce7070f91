"""Events of an answer while it is decoded: one discriminated union, told apart by `type`.

Thread 0 is the main thread, thread k decodes the k-th promise's chunk. Times are seconds since the answer
began.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import Field

from pasta_async.lang.diagnostics import Diagnostic
from pasta_async.results import Generation, ThreadRecord

__all__ = [
    "AnswerDone",
    "DiagnosticFound",
    "ErrorInfo",
    "Event",
    "PromiseOpened",
    "ReasoningDelta",
    "SyncJoined",
    "SyncWaiting",
    "TextDelta",
    "ThreadDelta",
    "ThreadDone",
    "ThreadFailed",
    "ThreadReplaced",
    "ThreadStarted",
]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the visible text, in document order."""

    delta: str
    type: Literal["text.delta"] = "text.delta"


@dataclass(frozen=True, slots=True)
class ThreadDelta:
    """More text of one thread, as it is decoded, without tags."""

    thread: int
    delta: str
    type: Literal["thread.delta"] = "thread.delta"


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More text of a thinking block, in front of the answer."""

    delta: str
    type: Literal["reasoning.delta"] = "reasoning.delta"


@dataclass(frozen=True, slots=True)
class ThreadReplaced:
    """The final text of a thread, in place of its deltas.

    It is shorter than they are: `max_tokens` or a stop text ends the answer before that text or in it.
    """

    thread: int
    text: str
    type: Literal["thread.replaced"] = "thread.replaced"


@dataclass(frozen=True, slots=True)
class PromiseOpened:
    """Main wrote a promise; its thread begins as soon as it may."""

    thread: int
    topic: str
    tokens: int | None
    """The estimated length of the chunk in tokens; None if the promise has none."""
    time: float
    type: Literal["promise.opened"] = "promise.opened"


@dataclass(frozen=True, slots=True)
class ThreadStarted:
    """A thread's first request was sent."""

    thread: int
    time: float
    type: Literal["thread.started"] = "thread.started"


@dataclass(frozen=True, slots=True)
class ThreadDone:
    """A thread has ended."""

    thread: int
    record: ThreadRecord
    type: Literal["thread.done"] = "thread.done"


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """An error, in an event."""

    type: str
    """The name of the error's class."""
    message: str


@dataclass(frozen=True, slots=True)
class ThreadFailed:
    """A request of a thread failed: it is sent again (`retry`), or the answer fails (`fail`)."""

    thread: int
    error: ErrorInfo
    action: Literal["retry", "fail"]
    type: Literal["thread.failed"] = "thread.failed"


@dataclass(frozen=True, slots=True)
class SyncWaiting:
    """Main wrote `<sync/>` and waits for these threads."""

    threads: tuple[int, ...]
    time: float
    type: Literal["sync.waiting"] = "sync.waiting"


@dataclass(frozen=True, slots=True)
class SyncJoined:
    """The chunks are joined; main goes on and sees them."""

    time: float
    type: Literal["sync.joined"] = "sync.joined"


@dataclass(frozen=True, slots=True)
class DiagnosticFound:
    """A place where the model's output is not well-formed."""

    diagnostic: Diagnostic
    type: Literal["diagnostic.found"] = "diagnostic.found"


@dataclass(frozen=True, slots=True)
class AnswerDone:
    """The answer is complete. Always the last event, unless the answer fails."""

    generation: Generation
    type: Literal["answer.done"] = "answer.done"


Event = Annotated[
    TextDelta
    | ThreadDelta
    | ReasoningDelta
    | ThreadReplaced
    | PromiseOpened
    | ThreadStarted
    | ThreadDone
    | ThreadFailed
    | SyncWaiting
    | SyncJoined
    | DiagnosticFound
    | AnswerDone,
    Field(discriminator="type"),
]
"""Every event of an answer; match on the class or on `type`. Immutable, and `pydantic.TypeAdapter(Event)`
makes JSON of it and reads it again."""

_E = TypeVar("_E")

Emit: TypeAlias = Callable[[list[_E]], Coroutine[Any, Any, None] | None]
"""Hands events of a kind on at once. If it returns a coroutine, that is awaited before more is decoded."""


def emit_last(emit: Emit[_E] | None, events: list[_E]) -> None:
    """Hand on the last events, if anybody listens. No slow reader holds them up: nothing more is decoded."""
    if emit and (wait := emit(events)):
        wait.close()
