"""The state of one thread of an answer, and how its tokens count in the answer's document order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from pasta_async.interpreter.recorded import RecordedTokens
from pasta_async.results import RequestRecord, ThreadRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pasta_async.interpreter.reading import Reader
    from pasta_async.interpreter.visible import Lane
    from pasta_async.lang import ClosedBy, Promise
    from pasta_async.options import Limits
    from pasta_async.protocol import FinishReason, Piece

__all__ = ["Cut", "Thread", "TokenBudget"]

_TAIL = 64
"""Characters that a request's latest text is remembered by."""


class Thread:
    """One sequential decoder: thread 0 is main, thread k keeps the k-th promise."""

    __slots__ = (
        "behind",
        "cap",
        "closed_by",
        "ended",
        "finish_reason",
        "first_token",
        "kept",
        "lane",
        "latest",
        "number",
        "opened",
        "origin",
        "promise",
        "prompt",
        "reader",
        "recorded",
        "reported",
        "requests",
        "started",
        "state",
        "stops",
        "tail",
        "tokens",
    )

    def __init__(
        self, number: int, reader: Reader, lane: Lane, *, opened: float, promise: Promise | None = None
    ) -> None:
        self.number: int = number
        self.reader: Reader = reader
        self.promise: Promise | None = promise
        self.lane: Lane = lane
        self.state: Literal["open", "joining", "done"] = "open"
        self.recorded: RecordedTokens = RecordedTokens()
        """What it wrote since its context began."""
        self.cap: int = 0
        """Tokens a chunk may have."""
        self.origin: int = 0
        """Main's tokens up to the promise."""
        self.behind: int = 0
        """Characters that main's token with the end of the promise's tag has behind it."""
        self.reported: int = 0
        """How many of its diagnostics came out as events."""
        self.stops: tuple[tuple[int, ...], tuple[str, ...]] = ((), ())
        """Ids and texts that the request under way stops at."""
        self.tail: str = ""
        """The end of what the request under way has written, in which a stop text is looked for."""
        self.latest: int | None = None
        """Its latest id."""
        self.tokens: int = 0
        """Tokens generated."""
        self.kept: int = 0
        """Of these, tokens that stand in the document."""
        self.opened: float = opened
        self.started: float | None = None
        self.first_token: float | None = None
        self.ended: float | None = None
        self.finish_reason: FinishReason = "abort"
        self.closed_by: ClosedBy | None = None if number == 0 else "interrupted"
        self.prompt: tuple[int, int | None] = (0, None)
        """Context tokens of the request under way, and how many of them were cached."""
        self.requests: list[RequestRecord] = []

    @property
    def superseded(self) -> bool:
        """Whether main wrote the chunk itself."""
        return self.finish_reason == "superseded"

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
            self.kept += len(piece.ids)
        if piece.cached_tokens is not None:
            self.prompt = (self.prompt[0], piece.cached_tokens)

    def stopped_where_asked(self) -> bool:
        """Whether the request under way has come to one of the ids or texts it stops at."""
        ids, texts = self.stops
        return self.latest in ids or any(text in self.tail for text in texts)

    def record(self, text: str) -> ThreadRecord:
        """The thread as users see it."""
        return ThreadRecord(
            thread=self.number,
            topic=self.promise.topic if self.promise else "",
            estimate=self.promise.tokens if self.promise else None,
            text=text,
            tokens=self.tokens,
            discarded_tokens=self.tokens - self.kept,
            opened=self.opened,
            started=self.started,
            first_token=self.first_token,
            ended=self.ended,
            finish_reason=self.finish_reason,
            closed_by=self.closed_by,
            requests=tuple(self.requests),
        )


class Cut(NamedTuple):
    """Where the answer's last token stands: `max_tokens` leaves out all that comes behind it."""

    thread: int
    tokens: int
    """Tokens of that thread that are kept."""


class TokenBudget:
    """Counts tokens in document order: main's up to promise k, those of chunk k, main's behind it, and so on.

    While threads run, the tokens that are known to stand in front of a place only become more, so what is
    known to stand behind the last token of the answer can be cancelled at once, and where that token is
    does not depend on who decoded when. A promise that main may still keep itself counts for nothing yet, and
    nor does what main wrote behind it.

    Args:
        main: The main thread.
        max_tokens: Tokens of the answer.
        limits: Caps of chunks, and the bound on everything that is generated.
    """

    def __init__(self, main: Thread, max_tokens: int, limits: Limits) -> None:
        self.round: list[Thread] = []
        """The promises since the last join."""
        self.generated: int = 0
        """Tokens of all threads, kept or not."""
        self._main, self._max_tokens, self._limits = main, max_tokens, limits
        self._joined = 0  # tokens of chunks that are joined
        self._round_start = 0  # main's tokens when the round began
        self._chain = 0  # critical path of the rounds that are over

    def open(self, thread: Thread, estimate: int | None) -> None:
        """Main wrote a promise."""
        thread.origin = self._main.kept
        thread.cap = self._limits.chunk_cap(estimate)
        self.round.append(thread)

    def join(self) -> None:
        """All promises of the round are kept."""
        self._chain += self._longest()
        self._joined += sum(thread.kept for thread in self.round)
        self._round_start = self._main.kept
        self.round = []

    @property
    def critical_path(self) -> int:
        """Tokens on the longest chain that had to be decoded one after another."""
        return self._chain + self._longest()

    @property
    def exhausted(self) -> bool:
        """Whether `Limits.total_tokens` is used up."""
        return self._total_left() <= 0

    def allowance(self, thread: Thread) -> int:
        """Tokens that a thread may still generate, as far as is known now."""
        left = self._max_tokens - self._known()
        if thread.number:
            of_cap = thread.cap - thread.kept
            left = of_cap if of_cap <= left else min(of_cap, self._left_of_chunk(thread))
        return min(left, self._total_left())

    def at_the_end(self, thread: Thread) -> bool:
        """Whether the answer's last token, rather than a chunk's cap, ends this thread."""
        return thread.number == 0 or (thread.kept < thread.cap and self._left_of_chunk(thread) <= 0)

    def behind(self) -> Iterator[Thread]:
        """Threads of which no further token can be kept."""
        if self._max_tokens <= self._known():
            yield from (thread for thread in self.round if self._left_of_chunk(thread) <= 0)
            yield self._main

    def cut(self) -> Cut | None:
        """Where the answer ends, once all that comes before is done; None if it fits."""
        if self._known() <= self._max_tokens:
            return None
        left = self._max_tokens - self._joined
        for thread in self.round:
            if left < thread.origin:
                break
            if left - thread.origin <= thread.kept:
                return Cut(thread.number, left - thread.origin)
            left -= thread.kept
        return Cut(0, left)

    @property
    def undecided(self) -> bool:
        """Whether main may still keep its last promise itself."""
        return bool(self.round) and self.round[-1].lane.held

    @property
    def round_start(self) -> int:
        """Main's tokens up to the last join."""
        return self._round_start

    def _known(self) -> int:
        """Tokens of the answer that are certain to stand in its document."""
        main = self.round[-1].origin if self.undecided else self._main.kept
        return self._joined + main + sum(thread.kept for thread in self.round if not thread.lane.held)

    def _left_of_chunk(self, chunk: Thread) -> int:
        left = self._max_tokens - self._joined - chunk.origin - chunk.kept
        for thread in self.round:
            if thread is chunk:
                break
            left -= thread.kept
        return left

    def _total_left(self) -> int:
        total = self._limits.total_tokens
        return self._max_tokens if total is None else total - self.generated

    def _longest(self) -> int:
        """The longest chain of the round."""
        main = self._main.kept
        chains = (t.origin + t.kept for t in self.round if not t.superseded and t.origin <= main)
        return max((main, *chains)) - self._round_start
