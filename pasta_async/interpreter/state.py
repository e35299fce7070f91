"""State of an answer's threads, and the count of their tokens in the answer's document order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from pasta_async.interpreter.reading import Reader
from pasta_async.lang import ClosedBy, Promise
from pasta_async.options import Limits
from pasta_async.protocol import Piece
from pasta_async.results import FinishReason, RequestRecord, ThreadRecord


@dataclass(slots=True, eq=False, kw_only=True)
class RequestLog:
    """The times of a part of an answer that one request after another decodes, and their records."""

    number: int
    opened: float
    """Time at which it was asked for. Times are seconds since the answer began."""
    finish_reason: FinishReason = "abort"
    tokens: int = 0
    """Generated tokens, end-of-text included."""
    started: float | None = None
    first_token: float | None = None
    ended: float | None = None
    requests: list[RequestRecord] = field(default_factory=list[RequestRecord])
    """Records of its requests. The last one may be under way; the following fields are about that."""
    tokens_before: int = 0
    """Tokens that were generated before the last request."""
    cached_tokens: int | None = None
    """Tokens of the last request's context that were in the prefix cache."""

    def begin_request(self, prompt_tokens: int, now: float) -> None:
        """A request with this context is about to be sent."""
        self.started = now if self.started is None else self.started
        self.tokens_before = self.tokens
        self.cached_tokens = None
        self.requests.append(
            RequestRecord(started=now, prompt_tokens=prompt_tokens, cached_tokens=None, completion_tokens=0)
        )

    def receive(self, piece: Piece, now: float) -> None:
        """Take what a piece says beside its tokens."""
        if piece.ids and self.first_token is None:
            self.first_token = now
        if piece.cached_tokens is not None:
            self.cached_tokens = piece.cached_tokens

    def end_request(self, finish_reason: FinishReason, now: float) -> None:
        """The request is over, one way or the other."""
        further = {
            "ended": now,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.tokens - self.tokens_before,
            "finish_reason": finish_reason,
        }
        self.requests[-1] = self.requests[-1].model_copy(update=further)

    def record_with(self, **further: Any) -> ThreadRecord:
        """The record for users, with those of its fields that are not kept here."""
        return ThreadRecord(
            thread=self.number,
            tokens=self.tokens,
            opened=self.opened,
            started=self.started,
            first_token=self.first_token,
            ended=self.ended,
            finish_reason=self.finish_reason,
            requests=tuple(self.requests),
            **further,
        )


@dataclass(slots=True, eq=False, kw_only=True)
class Thread(RequestLog):
    """One sequential decoder: thread 0 is main, thread k keeps the k-th promise."""

    reader: Reader
    promise: Promise | None = None
    closed_by: ClosedBy | None = None
    """The cause of the chunk's end; None for main."""
    state: Literal["open", "joining", "done"] = "open"
    cap: int = 0
    """Largest number of tokens that it may have in the document."""
    promise_end: int = 0
    """Number of main's tokens up to the end of its promise."""
    head_start: int = 0
    """In an outline: main's token count before the item's head. For main: before its current line."""
    inserted: list[int] = field(default_factory=list[int])
    """Indexes of main's tokens that the interpreter wrote for it: they led it on, or stand behind a list."""
    undecided_tokens: int = 0
    """In an outline: tokens at the end that are not certain to stand in the document."""
    reported: int = 0
    """Number of its diagnostics that came out as events."""
    document_tokens: int = 0
    """Tokens that stand in the document."""
    stop_ids: tuple[int, ...] = ()
    """Ids at which the last request ends."""

    def stopped_where_asked(self) -> bool:
        """True if the request under way has come to one of its stop ids."""
        return self.tokens > self.tokens_before and self.reader.ids[-1] in self.stop_ids

    def record(self, text: str) -> ThreadRecord:
        """The thread as users see it."""
        inserted = sum(place < self.document_tokens for place in self.inserted)
        return self.record_with(
            topic=self.promise.topic if self.promise else "",
            estimate=self.promise.tokens if self.promise else None,
            text=text,
            discarded_tokens=self.tokens - self.document_tokens + inserted,
            closed_by=self.closed_by,
        )


def thread_seed(seed: int | None, thread: int | str) -> int | None:
    """The seed of a thread: a hash of the answer's seed and the thread's number or name, 31 bits."""
    if seed is None:
        return None
    digest = hashlib.sha256(f"{seed}/{thread}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


class Cut(NamedTuple):
    """Place of the answer's last token: everything behind it in document order is left out."""

    thread: int
    tokens: int
    """Tokens of that thread that are kept."""


class TokenBudget:
    """Counts tokens in document order: main's up to promise k, those of chunk k, main's behind it, and so on.

    The count in front of a token only grows. So tokens past the limit can be cancelled at once, and the cut
    is the same whatever the timing.
    """

    def __init__(self, main: Thread, max_tokens: int, limits: Limits) -> None:
        self.round: list[Thread] = []
        """The threads whose promises were made since the last join."""
        self.round_start: int = 0
        """Main's token count at the last join."""
        self.generated: int = 0
        """Generated tokens of all threads, whether they stand in the document or not."""
        self._main = main
        self._max_tokens = max_tokens
        self._limits = limits
        main.cap = max_tokens
        # With fewer generated tokens than this, no limit can be reached.
        self._smallest_limit = min(max_tokens, limits.total_tokens or max_tokens)
        self._joined_tokens = 0  # tokens of chunks that are joined
        self._earlier_chains = 0  # critical path of the rounds that are over, in tokens

    def open(self, thread: Thread, estimate: int | None) -> None:
        """Main wrote a promise."""
        thread.promise_end = self._main.document_tokens
        thread.cap = self._limits.chunk_cap(estimate)
        self.round.append(thread)

    def join(self) -> None:
        """All promises of the round are kept."""
        self._earlier_chains += self._longest_chain()
        self._joined_tokens += sum(thread.document_tokens for thread in self.round)
        self.round_start = self._main.document_tokens
        self.round = []

    @property
    def critical_path(self) -> int:
        """Tokens on the longest chain that had to be decoded one after another."""
        return self._earlier_chains + self._longest_chain()

    @property
    def exhausted(self) -> bool:
        """True if `Limits.total_tokens` is used up."""
        return self._total_left() <= 0

    @property
    def may_be_at_a_limit(self) -> bool:
        """True if enough tokens were generated that some thread may be at the end of the answer.

        The document has no more tokens than were generated, but for what an outline inserts (its exact cut is
        found at the end), so before that nothing need be counted.
        """
        return self.generated >= self._smallest_limit

    def allows_one_more(self, thread: Thread) -> bool:
        """True if a thread may generate a further token, as far as is known now."""
        # The thread's own cap holds in any case.
        if thread.document_tokens >= thread.cap:
            return False
        # While all threads together have generated less than any limit, no thread can be at the end of the
        # answer. That is the usual case, and it needs no loop over the other threads.
        if not self.may_be_at_a_limit:
            return True
        # Else the tokens that certainly stand in front of this thread's next one decide.
        return self.allowance(thread) > 0

    def allowance(self, thread: Thread) -> int:
        """Tokens that a thread may still generate, as far as is known now."""
        if thread.number:
            tokens_left = min(thread.cap - thread.document_tokens, self._left_of_chunk(thread))
        else:
            tokens_left = self._max_tokens - self._document_tokens()
        return min(tokens_left, self._total_left())

    def threads_past_the_end(self) -> Iterator[Thread]:
        """Threads whose next token would stand behind the end of the answer."""
        if self._max_tokens <= self._document_tokens():
            yield from (thread for thread in self.round if self._left_of_chunk(thread) <= 0)
            yield self._main

    def cut(self) -> Cut | None:
        """The place of the answer's last token, once all threads before it are done; None if it fits."""
        if self._document_tokens() <= self._max_tokens:
            return None
        # Walk through the round in document order: `tokens_left` is the budget for main's tokens, once the
        # chunks passed so far are paid for.
        tokens_left = self._max_tokens - self._joined_tokens
        for thread in self.round:
            if tokens_left < thread.promise_end:
                break  # main's text ends the answer before this promise
            if tokens_left - thread.promise_end <= thread.document_tokens:
                return Cut(thread.number, tokens_left - thread.promise_end)  # it ends inside this chunk
            tokens_left -= thread.document_tokens
        return Cut(0, tokens_left)

    def _document_tokens(self) -> int:
        """Tokens that stand in the document so far."""
        return (
            self._joined_tokens
            + self._main.document_tokens
            + sum(thread.document_tokens for thread in self.round)
        )

    def _left_of_chunk(self, chunk: Thread) -> int:
        """Tokens that fit into the answer behind the last one of a chunk, as far as is known now."""
        tokens_left = self._max_tokens - self._joined_tokens - chunk.promise_end - chunk.document_tokens
        for thread in self.round:
            if thread is chunk:
                break
            tokens_left -= thread.document_tokens
        return tokens_left

    def _total_left(self) -> int:
        total = self._limits.total_tokens
        return self._max_tokens if total is None else total - self.generated

    def _longest_chain(self) -> int:
        """Tokens on the longest chain of the round: main's own, or main's to a promise and its chunk's."""
        main = self._main.document_tokens
        chains = (
            thread.promise_end + thread.document_tokens + thread.undecided_tokens
            for thread in self.round
            if thread.promise_end <= main
        )
        return max((main + self._main.undecided_tokens, *chains)) - self.round_start
