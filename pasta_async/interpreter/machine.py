"""The interpreter as a pure state machine: fed tokens and text, it says what to do and what to show.

No asyncio, no I/O, no clock: every interleaving can be played by calling `feed` in that order. The shell in
`runner` moves the bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pasta_async import events as ev
from pasta_async.interpreter.assemble import assemble, found_in
from pasta_async.interpreter.context import Stretch
from pasta_async.interpreter.thinking import ThinkingFilter
from pasta_async.interpreter.threads import Thread
from pasta_async.interpreter.visible import Visible
from pasta_async.lang import (
    ASYNC_CLOSE,
    ASYNC_OPEN,
    SYNC,
    ChunkClosed,
    ChunkOpened,
    Parser,
    PromiseOpened,
    SyncReached,
    TextDelta,
)
from pasta_async.results import Generation, Span, Usage

if TYPE_CHECKING:
    from pasta_async.errors import PastaError
    from pasta_async.interpreter.context import Part
    from pasta_async.lang import ClosedBy, Promise
    from pasta_async.lang import Event as Reading
    from pasta_async.limits import Limits
    from pasta_async.protocol import FinishReason, ModelInfo, Piece
    from pasta_async.results import RequestRecord

__all__ = ["Dialect", "Fork", "Machine"]

Dialect = Literal["ids", "text", "plain"]
"""How tags are read: as the ids of a trained model, as text of a prompted one, or not at all (baseline)."""

Fork = Literal["stream", "cut"]
"""Threads start while main's request goes on, or main's request ends at each promise and is sent again."""


class Machine:
    """One answer: its threads, what they have written, and what must be decoded next.

    Args:
        info: The model.
        dialect: How its tags are read.
        limits: Caps of chunks.
        max_tokens: Tokens of the answer, all threads together.
        stop: Texts that end the visible text.
        fork: When threads start.
        thinking: Whether the answer begins inside a thinking block.
        listen: Whether somebody reads `events`.
        notes: What the answer says about itself.
    """

    def __init__(
        self,
        info: ModelInfo,
        dialect: Dialect,
        limits: Limits,
        *,
        max_tokens: int,
        stop: tuple[str, ...] = (),
        fork: Fork = "stream",
        thinking: bool = False,
        listen: bool = True,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.events: list[ev.Event] = []
        """What happened and was not taken yet."""
        self.spawned: list[int] = []
        """Threads to start."""
        self.dropped: list[int] = []
        """Threads whose request is to be aborted."""
        self.spans: list[Span] = []
        self._info, self._dialect, self._limits = info, dialect, limits
        self._tag_ids = frozenset(info.tags) if info.tags and dialect == "ids" else frozenset[int]()
        self._max_tokens = max_tokens
        self._cut = fork == "cut"
        self._listen, self._notes = listen, notes
        self._visible = Visible(stop)
        self._thinking = ThinkingFilter(inside=thinking)
        self.main: Thread = Thread(0, Parser(halt_at_sync=True), self._visible.tail, opened=0.0)
        self.threads: list[Thread] = [self.main]
        self._joined: list[Part] = []
        self._round: list[Thread] = []
        self._round_start = 0  # main's tokens when the round began
        self._chain = 0  # critical path of the rounds that are over
        self._reserved: dict[int, int] = {}
        self._committed = 0  # tokens reserved by or spent on chunks
        self._inline: Thread | None = None
        self._in_tag = False
        self._interrupt = False
        self._finish_reason: FinishReason = "abort"  # until it is over

    # What to decode ---------------------------------------------------------------------------------------

    def context(self, number: int) -> list[Part]:
        """What a thread has behind the prompt: the view of design section 2, and what it wrote so far."""
        thread = self.threads[number]
        own = [tuple(thread.stretch.raw)] if thread.stretch.raw else []
        if number == 0:
            return [*self._joined, *own]
        return [*self._joined, *self.main.stretch.before(number), self._written(ASYNC_OPEN), *own]

    def allowance(self, number: int) -> int:
        """Tokens that a thread may still generate. Does not depend on what other threads did meanwhile."""
        thread = self.threads[number]
        if number == 0:
            return self._max_tokens - thread.tokens - self._committed
        return thread.cap - thread.tokens

    def stops(self, number: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Ids, and texts, at which a request of this thread ends."""
        tags = self._info.tags
        if self._dialect == "plain":
            return (), ()
        if self._dialect == "ids" and tags:
            if number:
                return (tags.close_async,), ()
            return ((tags.sync, tags.end) if self._cut else (tags.sync,)), ()
        return (), ((ASYNC_CLOSE,) if number else (SYNC, "<sync />", "<sync>"))

    def wants(self, number: int) -> bool:
        """Whether a request of this thread is to be sent (again)."""
        return self.threads[number].state == "open"

    def begin_request(self, number: int, prompt_tokens: int, now: float) -> None:
        """A request is about to be sent."""
        thread = self.threads[number]
        if thread.started is None and self._listen:
            self.events.append(ev.ThreadStarted(number, now))
        thread.begin_request(prompt_tokens, now)

    def end_request(
        self, number: int, began: float, tokens: int, now: float, finish_reason: FinishReason
    ) -> RequestRecord:
        """A request is over, after so many tokens, whatever ended it."""
        self.spans.append(Span(thread=number, start=began, end=now))
        return self.threads[number].end_request(tokens, finish_reason)

    # What was decoded -------------------------------------------------------------------------------------

    def feed(self, number: int, piece: Piece, now: float) -> bool:
        """Take what a thread decoded; returns whether its request has to end here."""
        thread = self.threads[number]
        if thread.state != "open":
            return True
        thread.note(piece, now)
        ids = piece.ids
        ended = bool(ids) and ids[-1] in self._info.end_ids
        if ended:
            ids = ids[:-1]
        if ids or piece.text:
            self._read(thread, ids, piece.text, now)
        if thread.state == "open":
            self._check_end(thread, piece, now, ended=ended)
        self._show()
        stop = self._interrupt or thread.state != "open"
        self._interrupt = False
        return stop

    def fail(self, number: int, error: PastaError, action: Literal["retry", "sequence", "fail"]) -> None:
        """A request of a thread failed."""
        if action == "fail":
            self.threads[number].finish_reason = "error"
        if self._listen:
            self.events.append(ev.ThreadFailed(number, error, action))

    def exhaust(self, number: int, now: float) -> None:
        """No token can be decoded for this thread: its context fills the model's."""
        self._close(self.threads[number], "length", "budget", now)
        self._show()

    @property
    def open_threads(self) -> list[int]:
        """Threads that main has to wait for."""
        return [thread.number for thread in self._round if thread.state == "open"]

    def join(self, now: float) -> None:
        """Every promise of the round is kept: main goes on and sees the chunks."""
        chunks = {
            thread.number: self._chunk(thread)
            for thread in self._round
            if thread.finish_reason != "superseded"
        }
        self._joined += self.main.stretch.joined(chunks)
        self._chain += self._longest()
        self._round_start = self.main.tokens
        for thread in self._round:
            self._commit(thread, thread.tokens if thread.finish_reason != "superseded" else 0)
        self.main.stretch = Stretch()
        self._round = []
        self.main.state = "open"
        if self._listen:
            self.events.append(ev.SyncJoined(now))

    def finish(self, finish_reason: FinishReason | None, now: float, *, parallel: bool) -> Generation:
        """End the answer; `finish_reason` says how it was broken off, if it was."""
        for thread in self.threads:
            if thread.state != "done":
                self._close(thread, thread.finish_reason, "interrupted", now)
        self._show(self._visible.close())
        self._finish_reason = finish_reason or self._finish()
        generation = self._generation(now, parallel=parallel)
        if self._listen and finish_reason is None:
            self.events.append(ev.AnswerDone(generation))
        return generation

    def snapshot(self, now: float, *, parallel: bool) -> Generation:
        """The answer so far, without ending it."""
        return self._generation(now, parallel=parallel)

    # Reading ----------------------------------------------------------------------------------------------

    def _read(self, thread: Thread, ids: tuple[int, ...], text: str, now: float) -> None:
        if self._dialect == "text":
            literal = False
        elif len(ids) == 1 and ids[0] in self._tag_ids:
            literal = False
            if thread is self.main and self._info.tags:
                self._in_tag = ids[0] in self._info.tags[:2]
        else:
            literal = True
            if not (self._in_tag and thread is self.main):
                thread.text_tokens += len(ids)
        thought = ""
        if thread is self.main and not self._thinking.passed:
            thought, text = self._thinking.split(text)
        thread.stretch.add(ids, thought + text)
        thread.fed += len(thought) + len(text)
        if thought:
            self._act(thread, thread.parser.feed(thought, literal=True), now)
        if text:
            self._act(thread, thread.parser.feed(text, literal=literal), now)

    def _act(self, thread: Thread, readings: list[Reading], now: float) -> None:
        if self._listen and len(thread.parser.diagnostics) > thread.told:
            self.events += map(ev.DiagnosticFound, found_in(thread, thread.told))
            thread.told = len(thread.parser.diagnostics)
        for reading in readings:
            if isinstance(reading, TextDelta):
                self._write(thread, reading.text)
            elif thread is not self.main:
                if isinstance(reading, ChunkClosed):
                    thread.stretch.cut(thread.fed - reading.end)
                    thread.stretch.drop_rest()
                    self._close(thread, "stop", "writer", now)
            else:
                self._act_on_main(reading, now)

    def _act_on_main(self, reading: Reading, now: float) -> None:
        if isinstance(reading, ChunkOpened):
            self._supersede(reading.gap, now)
            return
        self._release()
        if isinstance(reading, PromiseOpened):
            self._open(reading.promise, self.main.fed - reading.end, now)
        elif isinstance(reading, ChunkClosed):
            self._end_inline(now)
        elif isinstance(reading, SyncReached):
            self.main.stretch.cut(self.main.fed - reading.end)
            self.main.stretch.drop_rest()
            self.main.state = "joining"
            if self._listen:
                self.events.append(ev.SyncWaiting(tuple(self.open_threads), now))

    def _write(self, thread: Thread, text: str) -> None:
        lane, owner = thread.lane, thread
        if thread is self.main:
            self._release()
            owner = self._inline or thread
            lane = self._inline.lane if self._inline else self._visible.tail
        lane.pending.append(text)
        owner.text.append(text)
        if self._listen:
            self.events.append(ev.ThreadDelta(owner.number, text, owner.text, len(owner.text)))

    def _show(self, text: str | None = None) -> None:
        """Let out what is visible by now; at a stop text, end everything."""
        delta = self._visible.take() if text is None else text
        if delta and self._listen:
            self.events.append(ev.TextDelta(delta, self._visible.shown, len(self._visible.shown)))
        if self._visible.stopped:
            for thread in self.threads:
                if thread.state != "done":
                    thread.state, thread.finish_reason = "done", "stop"
                    self.dropped.append(thread.number)

    # Threads ----------------------------------------------------------------------------------------------

    def _open(self, promise: Promise, left: int, now: float) -> None:
        number = len(self.threads)
        self.main.stretch.mark(number, left)
        thread = Thread(number, Parser(inside_chunk=True), self._visible.open(), opened=now, promise=promise)
        thread.origin = self.main.tokens - self._round_start
        thread.cap = min(self._limits.chunk_cap(promise.tokens), max(0, self.allowance(0)))
        self._reserved[number] = thread.cap
        self._committed += thread.cap
        self.threads.append(thread)
        self._round.append(thread)
        if self._listen:
            self.events.append(ev.PromiseOpened(number, promise.topic, promise.tokens, now))
        if thread.cap:
            self.spawned.append(number)
            self._interrupt = self._cut
        else:
            self._close(thread, "length", "budget", now)

    def _supersede(self, gap: str, now: float) -> None:
        """Main keeps its last promise itself: that text is the chunk, the thread is aborted."""
        thread = self._round[-1]
        thread.lane.pending.clear()
        thread.text = []
        thread.finish_reason, thread.closed_by, thread.ended = "superseded", None, now
        if thread.state == "open":
            self.dropped.append(thread.number)
        thread.state = "done"
        self._commit(thread, 0)
        self._inline = thread
        thread.lane.done = False
        thread.lane.pending.append(gap)
        self._release()

    def _end_inline(self, now: float) -> None:
        if self._inline:
            self._inline.lane.done, self._inline.ended = True, now
            if self._listen:
                self.events.append(ev.ThreadDone(self._inline.number, self._inline.record()))
            self._inline = None

    def _release(self) -> None:
        """Main did not keep its last promise itself: what the thread writes may be shown."""
        if self._round:
            self._round[-1].lane.held = False

    def _commit(self, thread: Thread, tokens: int) -> None:
        """Exchange what a chunk reserved for what it took."""
        self._committed += tokens - self._reserved[thread.number]
        self._reserved[thread.number] = tokens

    def _check_end(self, thread: Thread, piece: Piece, now: float, *, ended: bool) -> None:
        """End a thread whose request ended for good."""
        if ended:
            self._close(thread, "stop", "end", now)
        elif self.allowance(thread.number) <= 0 or piece.finish_reason == "length":
            self._close(thread, "length", "budget", now)
        elif piece.finish_reason == "stop" and not self._resumable(thread):
            self._close(thread, "stop", "end", now)

    def _resumable(self, thread: Thread) -> bool:
        """Whether a request stopped where we asked it to, and yet the thread is to go on."""
        stop_ids, stop_text = self.stops(thread.number)
        return thread.latest in stop_ids or any(stop in thread.tail for stop in stop_text)

    def _close(
        self,
        thread: Thread,
        finish_reason: FinishReason,
        closed_by: ClosedBy,
        now: float,
    ) -> None:
        """End a thread; what its parser held back is text after all."""
        cut = closed_by == "interrupted"  # half a tag is nothing to show
        if thread is self.main:
            held = self._thinking.flush()
            self._act(thread, [*thread.parser.feed(held), *thread.parser.close(cut=cut)], now)
            self._end_inline(now)
            self._release()
        else:
            thread.closed_by, thread.lane.done = closed_by, True
            self._act(thread, [r for r in thread.parser.close(cut=cut) if isinstance(r, TextDelta)], now)
        thread.state, thread.finish_reason, thread.ended = "done", finish_reason, now
        if self._listen:
            self.events.append(ev.ThreadDone(thread.number, thread.record()))

    # Results ----------------------------------------------------------------------------------------------

    def _written(self, tag: str) -> Part:
        """A forced tag as the model reads it."""
        tags = self._info.tags
        if self._dialect == "ids" and tags:
            return (tags.open_async if tag == ASYNC_OPEN else tags.close_async,)
        return tag

    def _chunk(self, thread: Thread) -> list[Part]:
        """A chunk as it stands in the written form."""
        closed = [] if thread.closed_by == "writer" else [self._written(ASYNC_CLOSE)]
        return [self._written(ASYNC_OPEN), *thread.stretch.joined({}), *closed]

    def _longest(self) -> int:
        """The longest chain of the round."""
        main = self.main.tokens - self._round_start
        chains = (
            thread.origin + thread.tokens for thread in self._round if thread.finish_reason != "superseded"
        )
        return max((main, *chains))

    def _finish(self) -> FinishReason:
        if self._visible.stopped:
            return "stop"
        return self.main.finish_reason

    def _generation(self, now: float, *, parallel: bool) -> Generation:
        records = tuple(thread.record() for thread in self.threads)
        requests = [request for record in records for request in record.requests]
        completion = sum(record.tokens for record in records)
        document = assemble(self.threads, visible=self._visible.length if self._visible.stopped else None)
        text_tokens = sum(
            thread.text_tokens for thread in self.threads if thread.finish_reason != "superseded"
        )
        if self._dialect == "text":
            text_tokens = round(completion * len(document.text) / max(1, len(document.format())))
        return Generation(
            text="".join(self._visible.shown),
            document=document,
            threads=records,
            usage=Usage(
                prompt_tokens=requests[0].prompt_tokens if requests else 0,
                completion_tokens=completion,
                cached_tokens=sum(request.cached_tokens or 0 for request in requests),
                prefilled_tokens=sum(r.prompt_tokens - (r.cached_tokens or 0) for r in requests),
                requests=len(requests),
            ),
            critical_path=self._chain + self._longest(),
            text_tokens=text_tokens,
            finish_reason=self._finish_reason,
            matched_stop=self._visible.matched_stop,
            elapsed=now,
            timeline=tuple(self.spans),
            parallel=parallel,
            notes=self._notes,
        )
