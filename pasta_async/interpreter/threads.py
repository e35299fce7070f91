"""The state of one thread of an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pasta_async.interpreter.context import Stretch
from pasta_async.results import RequestRecord, ThreadRecord

if TYPE_CHECKING:
    from pasta_async.interpreter.visible import Lane
    from pasta_async.lang import Parser, Promise
    from pasta_async.lang.document import ClosedBy
    from pasta_async.protocol import FinishReason, Piece

__all__ = ["Thread"]

_TAIL = 64
"""Characters that a request's latest text is remembered by."""


class Thread:
    """One sequential decoder: thread 0 is main, thread k keeps the k-th promise."""

    __slots__ = (
        "cap",
        "closed_by",
        "ended",
        "fed",
        "finish_reason",
        "first_token",
        "lane",
        "latest",
        "number",
        "opened",
        "origin",
        "parser",
        "promise",
        "prompt",
        "requests",
        "started",
        "state",
        "stretch",
        "tail",
        "text",
        "text_tokens",
        "tokens",
        "told",
    )

    def __init__(
        self, number: int, parser: Parser, lane: Lane, *, opened: float, promise: Promise | None = None
    ) -> None:
        self.number: int = number
        self.parser: Parser = parser
        self.promise: Promise | None = promise
        self.lane: Lane = lane
        self.state: Literal["open", "joining", "done"] = "open"
        self.stretch: Stretch = Stretch()
        self.cap: int = 0
        """Tokens a chunk may have."""
        self.origin: int = 0
        """Main's tokens in its round when the promise was written."""
        self.fed: int = 0
        """Characters its parser was fed."""
        self.told: int = 0
        """How many of its diagnostics came out as events."""
        self.tail: str = ""
        """The end of what the request under way has written, in which a stop text is looked for."""
        self.latest: int | None = None
        """Its latest id."""
        self.tokens: int = 0
        self.text_tokens: int = 0
        self.text: list[str] = []
        self.opened: float = opened
        self.started: float | None = None
        self.first_token: float | None = None
        self.ended: float | None = None
        self.finish_reason: FinishReason = "abort"
        self.closed_by: ClosedBy | None = None if number == 0 else "interrupted"
        self.prompt: tuple[int, int | None] = (0, None)
        """Context tokens of the request under way, and how many of them were cached."""
        self.requests: list[RequestRecord] = []

    def begin_request(self, prompt_tokens: int, now: float) -> None:
        """A request with this context is about to be sent."""
        if self.started is None:
            self.started = now
        self.prompt = (prompt_tokens, None)
        self.tail, self.latest = "", None
        self.requests.append(
            RequestRecord(prompt_tokens=prompt_tokens, cached_tokens=None, completion_tokens=0)
        )

    def end_request(self, generated: int, finish_reason: FinishReason) -> RequestRecord:
        """The request is over, one way or the other, after so many tokens."""
        prompt_tokens, cached = self.prompt
        self.requests[-1] = RequestRecord(
            prompt_tokens=prompt_tokens,
            cached_tokens=cached,
            completion_tokens=generated,
            finish_reason=finish_reason,
        )
        return self.requests[-1]

    def note(self, piece: Piece, now: float) -> None:
        """Count a piece."""
        self.tail = (self.tail + piece.text)[-_TAIL:]
        if piece.ids:
            self.latest = piece.ids[-1]
            if self.first_token is None:
                self.first_token = now
            self.tokens += len(piece.ids)
        if piece.cached_tokens is not None:
            self.prompt = (self.prompt[0], piece.cached_tokens)

    def record(self) -> ThreadRecord:
        """The thread as users see it."""
        return ThreadRecord(
            thread=self.number,
            topic=self.promise.topic if self.promise else "",
            estimate=self.promise.tokens if self.promise else None,
            text="".join(self.text),
            tokens=self.tokens,
            opened=self.opened,
            started=self.started,
            first_token=self.first_token,
            ended=self.ended,
            finish_reason=self.finish_reason,
            closed_by=self.closed_by,
            requests=tuple(self.requests),
        )
