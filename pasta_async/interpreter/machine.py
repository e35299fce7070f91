"""The interpreter as a pure state machine: fed tokens and text, it says what to do and what to show.

No asyncio, no I/O, no clock: every interleaving can be played by calling `feed` in that order. The shell in
`runner` moves the bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pasta_async import events as ev
from pasta_async.interpreter.assembly import assemble, diagnostics_since, generation, own_text
from pasta_async.interpreter.reading import Reader
from pasta_async.interpreter.recorded import RecordedTokens
from pasta_async.interpreter.threads import Thread, TokenBudget
from pasta_async.interpreter.visible import Visible
from pasta_async.lang import (
    ASYNC_CLOSE,
    ASYNC_OPEN,
    SYNC,
    ChunkBegun,
    ChunkEnded,
    PromiseRead,
    SyncRead,
    TextRead,
)
from pasta_async.results import Span

if TYPE_CHECKING:
    from pasta_async.errors import PastaError
    from pasta_async.interpreter.reading import Dialect
    from pasta_async.interpreter.recorded import Part
    from pasta_async.interpreter.threads import Cut
    from pasta_async.lang import ClosedBy, Promise, Reading
    from pasta_async.options import Fork, Limits
    from pasta_async.protocol import FinishReason, ModelInfo, Piece
    from pasta_async.results import Generation, RequestRecord

__all__ = ["Machine"]


class Machine:
    """One answer: its threads, what they have written, and what must be decoded next.

    Args:
        info: The model.
        dialect: How its tags are read.
        limits: Caps of chunks, and of everything that is generated.
        max_tokens: Tokens of the answer, in document order.
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
        self.dialect: Dialect = dialect
        self._info = info
        self._cut_at_promises = fork == "cut"
        self._listen, self._notes = listen, notes
        self._visible = Visible(stop, max_tokens)
        reader = Reader(dialect, info.tags, main=True, thinking=thinking)
        self.main: Thread = Thread(0, reader, self._visible.tail, opened=0.0)
        self.threads: list[Thread] = [self.main]
        self._budget = TokenBudget(self.main, max_tokens, limits)
        self._joined: list[Part] = []
        self._inline: Thread | None = None
        self._stops_idly = False  # a request of main ended at a tag that had no effect
        self._interrupt = False
        self._truncated = False
        self._finish_reason: FinishReason = "abort"  # until it is over

    # What to decode ---------------------------------------------------------------------------------------

    def context(self, number: int) -> list[Part]:
        """What a thread has behind the prompt: its view, by the language's rule, and what it wrote so far."""
        thread = self.threads[number]
        own = [tuple(thread.recorded.raw)] if thread.recorded.raw else []
        if number == 0:
            return [*self._joined, *own]
        return [*self._joined, *self.main.recorded.before(number), self._written(ASYNC_OPEN), *own]

    def allowance(self, number: int) -> int:
        """Tokens that a thread may still generate, as far as is known now."""
        return self._budget.allowance(self.threads[number])

    def stops(self, number: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Ids, and texts, at which the next request of this thread ends.

        Main's requests end at a sync, so that nothing is decoded behind it and what was decoded is in the
        prefix cache when the written form is prefilled. A sync with nothing open would end one for nothing:
        after the first of those, main's requests go on past syncs until the next join. One that has an effect
        is then ended from here, and what was decoded behind the sync meanwhile is never read.
        """
        tags = self._info.tags
        if self.dialect == "plain" or (number == 0 and self._stops_idly):
            return (), ()
        if self.dialect == "ids" and tags:
            if number:
                return (tags.close_async,), ()
            return ((tags.sync, tags.end) if self._cut_at_promises else (tags.sync,)), ()
        return (), ((ASYNC_CLOSE,) if number else (SYNC, "<sync />", "<sync>"))

    def wants(self, number: int) -> bool:
        """Whether a request of this thread is to be sent (again)."""
        return self.threads[number].state == "open"

    def begin_request(self, number: int, prompt_tokens: int, now: float) -> None:
        """A request is about to be sent."""
        thread = self.threads[number]
        if thread.started is None:
            self._tell(ev.ThreadStarted(number, now))
        thread.stops = self.stops(number)
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
            self.discard(number, len(piece.ids))
            return True
        thread.note(piece, now)
        self._budget.generated += len(piece.ids)
        ids = piece.ids
        ended = bool(ids) and ids[-1] in self._info.end_ids
        if ended:
            ids = ids[:-1]
        if ids or piece.text:
            self._read(thread, ids, piece.text, now)
        if thread.state == "open":
            self._check_end(thread, piece, now, ended=ended)
        self._settle_budget(now)
        stop = self._interrupt or thread.state != "open"
        self._interrupt = False
        return stop

    def discard(self, number: int, tokens: int) -> None:
        """A thread generated tokens that nobody reads."""
        self.threads[number].tokens += tokens
        self._budget.generated += tokens

    def fail(self, number: int, error: PastaError, action: Literal["retry", "sequence", "fail"]) -> None:
        """A request of a thread failed."""
        if action == "fail":
            self.threads[number].finish_reason = "error"
        self._tell(ev.ThreadFailed(number, ev.ErrorInfo(type(error).__name__, str(error)), action))

    def exhaust(self, number: int, now: float) -> None:
        """No token can be decoded for this thread: a limit is reached, or its context fills the model's."""
        self._close(self.threads[number], "length", "budget", now)
        self._settle_budget(now)

    @property
    def open_threads(self) -> list[int]:
        """Threads that main has to wait for."""
        return [thread.number for thread in self._budget.round if thread.state == "open"]

    def join(self, now: float) -> None:
        """Every promise of the round is kept: main goes on and sees the chunks."""
        kept = [thread for thread in self._budget.round if not thread.superseded]
        self._joined += self.main.recorded.joined({thread.number: self._chunk(thread) for thread in kept})
        self._budget.join()
        self.main.recorded = RecordedTokens()
        self.main.state, self._stops_idly = "open", False
        self._tell(ev.SyncJoined(now))

    # The end ----------------------------------------------------------------------------------------------

    @property
    def cut(self) -> Cut | None:
        """Where `max_tokens` cuts the answer, once nothing is decoded any more; None if it fits."""
        return None if self._visible.stopped or self._truncated else self._budget.cut()

    def cut_ids(self, cut: Cut) -> tuple[list[int], int]:
        """Ids of the cut thread up to the cut, and how many of them are known to say what was read so far."""
        thread = self.threads[cut.thread]
        start = 0 if cut.thread else self._budget.round_start
        return thread.recorded.raw[: cut.tokens - start], max(0, thread.reader.known(cut.tokens) - start)

    def truncate(self, cut: Cut, rest: str) -> None:
        """Leave out what stands behind the answer's last token.

        Args:
            cut: Where that is.
            rest: What the ids up to the cut say behind those that are known (`cut_ids`).
        """
        before = [self._text(thread.number) for thread in self.threads]
        inside = self.threads[cut.thread]
        if cut.thread == 0:
            last = sum(thread.origin <= cut.tokens for thread in self.threads[1:])
            self.main.reader, self.main.kept = self.main.reader.first(cut.tokens, rest), cut.tokens
        else:
            last = cut.thread
            self.main.reader = self.main.reader.first(inside.origin, but=inside.behind)
            self.main.kept = inside.origin
            if inside.superseded or cut.tokens < inside.kept:
                inside.reader = inside.reader.first(cut.tokens, rest)
                inside.kept, inside.closed_by, inside.finish_reason = cut.tokens, "budget", "length"
        self.main.finish_reason = "length"
        self._leave_out(last)
        self._truncated = True
        for thread, text in zip(self.threads, before, strict=True):
            if (now := self._text(thread.number)) != text:
                self._tell(ev.ThreadReplaced(thread.number, now))
        self._show(self._visible.close(assemble(self.threads).text))

    def finish(self, finish_reason: FinishReason | None, now: float, *, parallel: bool) -> Generation:
        """End the answer; `finish_reason` says how it was broken off, if it was."""
        for thread in self.threads:
            if thread.state != "done":
                self._close(thread, thread.finish_reason, "interrupted", now)
        if cut := self.cut:
            self.truncate(cut, "")
        if not self._truncated:
            self._show(self._visible.close())
        if self._visible.stopped:
            self._end_at_stop_text()
        self._finish_reason = finish_reason or self.main.finish_reason
        result = self.snapshot(now, parallel=parallel)
        if finish_reason is None:
            self._tell(ev.AnswerDone(result))
        return result

    def snapshot(self, now: float, *, parallel: bool) -> Generation:
        """The answer so far, without ending it."""
        return generation(
            self.threads,
            self._visible,
            self._finish_reason,
            prompted=self.dialect == "text",
            critical_path=self._budget.critical_path,
            now=now,
            spans=self.spans,
            parallel=parallel,
            notes=self._notes,
        )

    def _end_at_stop_text(self) -> None:
        """The thread in which the stop text stands ended there; what stands behind it was not wanted."""
        promises = assemble(self.threads, visible=self._visible.length).promises
        self._leave_out(len(promises))
        if promises and (chunk := promises[-1].chunk) and chunk.closed_by == "interrupted":
            thread = self.threads[len(promises)]
            thread.finish_reason, thread.closed_by = "stop", "interrupted"
        self.main.finish_reason = "stop"

    def _leave_out(self, last: int) -> None:
        """The document ends before the promises of the threads behind this one."""
        for thread in self.threads[last + 1 :]:
            thread.kept, thread.closed_by, thread.finish_reason = 0, "interrupted", "abort"

    # Reading ----------------------------------------------------------------------------------------------

    def _read(self, thread: Thread, ids: tuple[int, ...], text: str, now: float) -> None:
        thread.recorded.add(ids, text)
        count = len(thread.reader.reasoning)
        readings = thread.reader.read(ids, text)
        self._think(thread, count)
        self._act(thread, readings, now)

    def _think(self, thread: Thread, count: int) -> None:
        for text in thread.reader.reasoning[count:]:
            self._tell(ev.ReasoningDelta(text))

    def _act(self, thread: Thread, readings: list[Reading], now: float) -> None:
        found = thread.reader.parser.diagnostics
        if self._listen and len(found) > thread.reported:
            self.events += map(ev.DiagnosticFound, diagnostics_since(thread, thread.reported))
            thread.reported = len(found)
        for reading in readings:
            if isinstance(reading, TextRead):
                self._write(thread, reading.text)
            elif thread is self.main:
                self._act_on_main(reading, now)
            elif isinstance(reading, ChunkEnded):
                self._end_record(thread, reading.end)
                self._close(thread, "stop", "writer", now)

    def _act_on_main(self, reading: Reading, now: float) -> None:
        if isinstance(reading, ChunkBegun):
            self._supersede(reading.gap, now)
            return
        self._release()
        if isinstance(reading, PromiseRead):
            self._open(reading.promise, self.main.reader.characters - reading.end, now)
        elif isinstance(reading, ChunkEnded):
            self._end_inline(now)
        elif isinstance(reading, SyncRead):
            self._end_record(self.main, reading.end)
            self.main.state = "joining"
            self._tell(ev.SyncWaiting(tuple(self.open_threads), now))

    def _end_record(self, thread: Thread, end: int) -> None:
        """What a thread wrote ends with a tag; the rest of the tag's token is no part of it."""
        thread.recorded.cut(thread.reader.characters - end)
        thread.recorded.drop_rest()

    def _write(self, thread: Thread, text: str) -> None:
        lane, owner = thread.lane, thread
        if thread is self.main:
            self._release()
            owner = self._inline or thread
            lane = self._inline.lane if self._inline else self._visible.tail
        lane.pending.append((thread.origin + thread.kept, text))
        self._tell(ev.ThreadDelta(owner.number, text))

    def _show(self, delta: str) -> None:
        """Let out what is visible by now; at a stop text, end everything."""
        if delta:
            self._tell(ev.TextDelta(delta))
        if self._visible.stopped:
            for thread in self.threads:
                if thread.state != "done":
                    thread.state = "done"
                    self.dropped.append(thread.number)

    def _tell(self, event: ev.Event) -> None:
        if self._listen:
            self.events.append(event)

    def _text(self, number: int) -> str:
        """The text of a thread, or what main wrote in its place."""
        thread = self.threads[number]
        if number == 0 or thread.superseded:
            return own_text(number, self.main.reader.parser.nodes)
        return own_text(0, thread.reader.parser.nodes) if thread.kept else ""

    # Threads ----------------------------------------------------------------------------------------------

    def _open(self, promise: Promise, left: int, now: float) -> None:
        number = len(self.threads)
        self.main.recorded.mark(number, left)
        reader = Reader(self.dialect, self._info.tags, main=False)
        thread = Thread(number, reader, self._visible.open(), opened=now, promise=promise)
        thread.behind = left
        self._budget.open(thread, promise.tokens)
        self.threads.append(thread)
        self._tell(ev.PromiseOpened(number, promise.topic, promise.tokens, now))
        if self.allowance(number) > 0:
            self.spawned.append(number)
            self._interrupt = self._cut_at_promises
        else:
            self._close(thread, "length", "budget", now)

    def _supersede(self, gap: str, now: float) -> None:
        """Main keeps its last promise itself: that text is the chunk, the thread is aborted."""
        thread = self._budget.round[-1]
        if self._text(thread.number):
            self._tell(ev.ThreadReplaced(thread.number, ""))
        if thread.state == "open":
            self.dropped.append(thread.number)
        thread.state, thread.kept = "done", 0
        thread.finish_reason, thread.closed_by, thread.ended = "superseded", None, now
        thread.lane.done, thread.lane.tokens = False, 0
        thread.lane.pending = [(self.main.kept, gap)]
        self._inline = thread
        self._release()

    def _end_inline(self, now: float) -> None:
        if self._inline:
            self._inline.lane.done, self._inline.ended = True, now
            self._report_end(self._inline)
            self._inline = None

    def _release(self) -> None:
        """Main did not keep its last promise itself: what the thread writes may be shown, and counts."""
        if self._budget.round:
            self._budget.round[-1].lane.held = False

    def _report_end(self, thread: Thread) -> None:
        if self._listen:
            self.events.append(ev.ThreadDone(thread.number, thread.record(self._text(thread.number))))

    def _check_end(self, thread: Thread, piece: Piece, now: float, *, ended: bool) -> None:
        """End a thread whose request ended for good."""
        if ended:
            self._close(thread, "stop", "end", now)
        elif self.allowance(thread.number) <= 0:
            self._close(thread, "length", "budget", now)
        elif piece.finish_reason == "length":
            if thread is not self.main or not self._budget.undecided or thread.latest is None:
                self._close(thread, "length", "budget", now)
        elif piece.finish_reason == "stop":
            if not thread.stopped_where_asked():
                self._close(thread, "stop", "end", now)
            elif thread is self.main and not self._interrupt:
                self._stops_idly = True

    def _settle_budget(self, now: float) -> None:
        """End what can write no token that is kept, and show what is certain."""
        over = self.threads if self._budget.exhausted else self._budget.behind()
        for thread in [thread for thread in over if thread.state != "done"]:
            self._close(thread, "length", "budget", now)
            self.dropped.append(thread.number)
        self._show(self._visible.take())

    def _close(self, thread: Thread, finish_reason: FinishReason, closed_by: ClosedBy, now: float) -> None:
        """End a thread; what its parser held back is text after all."""
        count = len(thread.reader.reasoning)
        over = closed_by == "interrupted" or (finish_reason == "length" and self._budget.at_the_end(thread))
        readings = thread.reader.close(cut=over)  # half a tag is nothing to show
        self._think(thread, count)
        if thread is self.main:
            self._act(thread, readings, now)
            self._end_inline(now)
            self._release()
        else:
            thread.closed_by = closed_by
            self._act(thread, [reading for reading in readings if isinstance(reading, TextRead)], now)
            thread.lane.done, thread.lane.tokens = True, thread.kept
        thread.state, thread.finish_reason, thread.ended = "done", finish_reason, now
        self._report_end(thread)

    # Contexts ---------------------------------------------------------------------------------------------

    def _written(self, tag: str) -> Part:
        """A forced tag as the model reads it."""
        tags = self._info.tags
        if self.dialect == "ids" and tags:
            return (tags.open_async if tag == ASYNC_OPEN else tags.close_async,)
        return tag

    def _chunk(self, thread: Thread) -> list[Part]:
        """A chunk as it stands in the written form."""
        closed = [] if thread.closed_by == "writer" else [self._written(ASYNC_CLOSE)]
        return [self._written(ASYNC_OPEN), *thread.recorded.joined({}), *closed]
