"""The interpreter as a pure state machine: fed tokens and text, it says what to do and what to show.

No asyncio, no I/O, no clock: every interleaving can be played by calling `feed` in that order. The shell in
`runner` moves the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pasta_async import events as ev
from pasta_async.errors import PastaError
from pasta_async.interpreter.assembly import Answer, diagnostics_since
from pasta_async.interpreter.reading import Dialect, Part, Reader, ReasoningRead, RecordedTokens
from pasta_async.interpreter.threads import Cut, Thread, TokenBudget
from pasta_async.interpreter.visible import Visible
from pasta_async.lang import (
    ASYNC_CLOSE,
    ASYNC_OPEN,
    PROMISE_OPEN,
    SYNC,
    ChunkBegun,
    ChunkEnded,
    ClosedBy,
    Ignored,
    Promise,
    PromiseRead,
    Reading,
    SyncRead,
)
from pasta_async.observers import AnswerStart
from pasta_async.protocol import FinishReason, ModelInfo, Piece
from pasta_async.results import Generation, RequestRecord, Span
from pasta_async.tag_tokens import TagGrammar

_SYNCS = (SYNC, "<sync />", "<sync>")


class Machine:
    """One answer: its threads, what they have written, and what must be decoded next.

    Args:
        info: The model.
        dialect: How its tags are read.
        start: What was asked for.
        thinking: Whether the answer begins inside a thinking block.
        listen: Whether somebody reads `events`.
        notes: What the result says of it.
    """

    def __init__(
        self,
        info: ModelInfo,
        dialect: Dialect,
        start: AnswerStart,
        *,
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
        self.info: ModelInfo = info
        self.dialect: Dialect = dialect
        self.start: AnswerStart = start
        self._listen = listen
        self._visible = Visible(start.sampling.stop, start.sampling.max_tokens)
        reader = Reader(dialect, info.tags, main=True, thinking=thinking)
        self.main: Thread = Thread(0, reader, self._visible.tail, opened=0.0)
        self._budget = TokenBudget(self.main, start.sampling.max_tokens, start.limits)
        self.answer: Answer = Answer(
            self.main,
            self._budget,
            self._visible,
            prompted=dialect == "text",
            width="plain" if dialect == "plain" else "one" if start.parallel == "never" else "full",
            notes=notes,
        )
        self.threads: list[Thread] = self.answer.threads
        self._joined: list[Part] = []
        self._inline: Thread | None = None
        self._stops_idly = False  # a request of main ended at a tag that had no effect

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

    def takes(self, number: int, piece: Piece) -> bool:
        """Whether a piece can be fed as it is: it is within all limits, and no tag ends amid its tokens."""
        thread, tokens = self.threads[number], len(piece.ids)
        if tokens > 1 and self.dialect == "text":
            return False
        return thread.state != "open" or self._budget.allows(thread, tokens)

    def allows(self, number: int, tokens: int) -> bool:
        """Whether a thread may generate so many more tokens, as far as is known now, or is over anyway."""
        thread = self.threads[number]
        return thread.state != "open" or self._budget.allows(thread, tokens)

    def stops(self, number: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Ids, and texts, at which the next request of this thread ends.

        Main's requests end at a sync, so that nothing is decoded behind it and what was decoded is in the
        prefix cache when the written form is prefilled. A sync with nothing open ends one for nothing, which
        cannot be known when it is sent: nothing is open then. After the first of those, main's requests go on
        past syncs until the next join. One that has an effect is then ended from here, and what was decoded
        behind the sync meanwhile is never read.

        A chunk's end at `</async>`, and at the promise or sync that a thread writes when it forgot that tag.
        """
        tags = self.info.tags
        if self.dialect == "plain" or (number == 0 and self._stops_idly):
            return (), ()
        if self.dialect == "ids" and tags:
            return ((tags.close_async, tags.promise, tags.sync) if number else (tags.sync,)), ()
        return (), ((ASYNC_CLOSE, PROMISE_OPEN, *_SYNCS) if number else _SYNCS)

    def banned(self, number: int) -> tuple[int, ...]:
        """Ids of tags that would be wrong wherever the next request of this thread wrote them.

        Only the interpreter writes `<async>`, and only a thread ends its chunk; an answer in the plain form
        has no tag at all. A thread's promise or sync stays possible: it ends the chunk. Where tags are text
        nothing can be banned, for the tokens they are made of have other uses.
        """
        tags = self.info.tags
        if not tags or self.dialect == "text":
            return ()
        if self.dialect == "plain":
            return tags
        if number:
            return tags.tokens, tags.end, tags.open_async
        return tags.open_async, tags.close_async

    def grammar(self, number: int) -> TagGrammar | None:
        """Which tags may come next, where `banned` says no more: it depends on what was written before."""
        tags = self.info.tags
        if not tags or self.dialect != "ids":
            return None
        return TagGrammar(tags, self.info.end_ids, chunk=number > 0, open=bool(self._budget.round))

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
        self, number: int, began: float, now: float, finish_reason: FinishReason
    ) -> RequestRecord:
        """A request is over, whatever ended it."""
        self.answer.spans.append(Span(thread=number, start=began, end=now))
        return self.threads[number].end_request(finish_reason)

    # What was decoded -------------------------------------------------------------------------------------

    def feed(self, number: int, piece: Piece, now: float) -> bool:
        """Take what a thread decoded; returns whether its request has to end here."""
        thread = self.threads[number]
        if thread.state != "open":
            self.discard(number, len(piece.ids))
            return True
        ids, text = piece.ids, piece.text
        thread.note(piece, now)
        self._budget.generated += len(ids)
        ended = bool(ids) and ids[-1] in self.info.end_ids
        if ended:
            ids = ids[:-1]
        if ids or text:
            thread.recorded.add(ids, text)
            self._act(thread, thread.reader.read(ids, text), now)
        if thread.state == "open":
            self._check_end(thread, piece, now, ended=ended)
        self._settle_budget(now)
        return thread.state != "open"

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

    @property
    def round(self) -> list[Thread]:
        """The threads of the promises since the last join."""
        return self._budget.round

    def certain(self) -> list[Part]:
        """The beginning of main's next context, up to what is still written; main waits at a sync."""
        chunks: dict[int, list[Part]] = {}
        for thread in self._budget.round:
            if thread.state != "done":
                chunks[thread.number] = [
                    self._written(ASYNC_OPEN),
                    *thread.recorded.joined({}, grows=True),
                ]
                return [*self._joined, *self.main.recorded.joined(chunks, last=thread.number)]
            if not thread.superseded:
                chunks[thread.number] = self._chunk(thread)
        return [*self._joined, *self.main.recorded.joined(chunks)]

    def join(self, now: float) -> None:
        """Every promise of the round is kept: main goes on and sees the chunks."""
        self._joined = self.certain()
        self._budget.join()
        self.main.recorded = RecordedTokens()
        self.main.state, self._stops_idly = "open", False
        self._tell(ev.SyncJoined(now))

    # The end ----------------------------------------------------------------------------------------------

    def truncate(self, cut: Cut, rest: str, now: float) -> None:
        """Leave out what stands behind the answer's last token; see `Answer.truncate`."""
        self._replace(self.answer.truncate(cut, rest))
        self._show(self._visible.close(self.answer.document().text), now)

    def finish(self, finish_reason: FinishReason | None, now: float) -> Generation:
        """End the answer; `finish_reason` says how it was broken off, if it was."""
        for thread in self.threads:
            if thread.state != "done":
                self._close(thread, thread.finish_reason, "interrupted", now)
        if cut := self.answer.cut:
            self.truncate(cut, "", now)
        if not self.answer.truncated:
            self._show(self._visible.close(), now)
        self.answer.finish_reason = finish_reason or self.main.finish_reason
        result = self.answer.generation(now)
        if finish_reason is None:
            self._tell(ev.AnswerDone(result))
        return result

    # Reading ----------------------------------------------------------------------------------------------

    def _act(self, thread: Thread, readings: Sequence[Reading | ReasoningRead], now: float) -> None:
        found = thread.reader.parser.diagnostics
        if self._listen and len(found) > thread.reported:
            self.events += map(ev.DiagnosticFound, diagnostics_since(thread, thread.reported))
            thread.reported = len(found)
        for reading in readings:
            if isinstance(reading, str):
                self._write(thread, reading)
            elif isinstance(reading, ReasoningRead):
                self._tell(ev.ReasoningDelta(reading.text))
            elif thread is self.main:
                self._act_on_main(reading, now)
            elif isinstance(reading, ChunkEnded):
                thread.recorded.end(thread.reader.parser.offset - reading.end)
                self._close(thread, "stop", reading.closed_by, now)

    def _act_on_main(self, reading: Reading, now: float) -> None:
        if isinstance(reading, ChunkBegun):
            self._supersede(reading.gap, now)
            return
        self._release()
        if isinstance(reading, PromiseRead):
            self._open(reading.promise, self.main.reader.parser.offset - reading.end, now)
        elif isinstance(reading, ChunkEnded):
            self._end_inline(now)
        elif isinstance(reading, SyncRead):
            self.main.recorded.end(self.main.reader.parser.offset - reading.end)
            self.main.state = "joining"
            self._tell(ev.SyncWaiting(tuple(self.open_threads), now))

    def _write(self, thread: Thread, text: str) -> None:
        lane, owner = thread.lane, thread
        if thread is self.main:
            self._release()
            owner = self._inline or thread
            lane = self._inline.lane if self._inline else self._visible.tail
        lane.pending.append((thread.origin + thread.kept, text))
        if self._listen:
            self.events.append(ev.ThreadDelta(owner.number, text))

    def _show(self, delta: str, now: float) -> None:
        """Let out what is visible by now; at a stop text, end everything."""
        if delta and self._listen:
            self.events.append(ev.TextDelta(delta))
        if self._visible.stopped:
            over = [thread for thread in self.threads if thread.state != "done"]
            for thread in over:
                thread.state, thread.ended = "done", now
                self.dropped.append(thread.number)
            self._replace(self.answer.end_at_stop_text())
            self._end_inline(now)
            for thread in over:
                self._report_end(thread)

    def _replace(self, texts: Mapping[int, str]) -> None:
        """Threads have these texts from here, whatever was told of them."""
        for number, text in texts.items():
            self._tell(ev.ThreadReplaced(number, text))

    def _tell(self, event: ev.Event) -> None:
        if self._listen:
            self.events.append(event)

    # Threads ----------------------------------------------------------------------------------------------

    def _open(self, promise: Promise, left: int, now: float) -> None:
        number = len(self.threads)
        self.main.recorded.mark(number, left)
        reader = Reader(self.dialect, self.info.tags, main=False)
        thread = Thread(number, reader, self._visible.open(), now, promise, closed_by="interrupted")
        thread.behind = left
        self._budget.open(thread, promise.tokens)
        self.threads.append(thread)
        self._tell(ev.PromiseOpened(number, promise.topic, promise.tokens, now))
        if self.allowance(number) > 0:
            self.spawned.append(number)
        else:
            self._close(thread, "length", "budget", now)

    def _supersede(self, gap: str, now: float) -> None:
        """Main keeps its last promise itself: that text is the chunk, the thread is aborted."""
        thread = self._budget.round[-1]
        if self.answer.text(thread.number):
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
            self.events.append(ev.ThreadDone(thread.number, thread.record(self.answer.text(thread.number))))

    def _check_end(self, thread: Thread, piece: Piece, now: float, *, ended: bool) -> None:
        """End a thread whose request ended for good."""
        if ended:
            self._close(thread, "stop", "end", now)
        elif not self._budget.allows(thread, 1):
            self._close(thread, "length", "budget", now)
        elif piece.finish_reason == "length":
            if thread is not self.main or not self._budget.undecided or thread.tokens == thread.before:
                self._close(thread, "length", "budget", now)
        elif piece.finish_reason == "stop":
            if not thread.stopped_where_asked():
                self._close(thread, "stop", "end", now)
            elif thread is self.main:
                self._stops_idly = True

    def _settle_budget(self, now: float) -> None:
        """End what can write no token that is kept, and show what is certain."""
        if self._budget.reached:
            over = self.threads if self._budget.exhausted else self._budget.behind()
            for thread in [thread for thread in over if thread.state != "done"]:
                self._close(thread, "length", "budget", now)
                self.dropped.append(thread.number)
        if self._visible.ready:
            self._show(self._visible.take(), now)

    def _close(self, thread: Thread, finish_reason: FinishReason, closed_by: ClosedBy, now: float) -> None:
        """End a thread; what its parser held back is text after all."""
        over = closed_by == "interrupted" or (finish_reason == "length" and self._budget.at_the_end(thread))
        readings = thread.reader.close(cut=over)  # half a tag is nothing to show
        if thread is self.main:
            self._act(thread, readings, now)
            self._end_inline(now)
            self._release()
        else:
            thread.closed_by = closed_by
            self._act(thread, [reading for reading in readings if isinstance(reading, str)], now)
            thread.lane.done, thread.lane.tokens = True, thread.kept
        thread.state, thread.finish_reason, thread.ended = "done", finish_reason, now
        self._report_end(thread)

    # Contexts ---------------------------------------------------------------------------------------------

    def _written(self, tag: str) -> Part:
        """A forced tag as the model reads it."""
        tags = self.info.tags
        if self.dialect == "ids" and tags:
            return (tags.open_async if tag == ASYNC_OPEN else tags.close_async,)
        return tag

    def _chunk(self, thread: Thread) -> list[Part]:
        """A chunk as it stands in the written form."""
        closed = [] if thread.closed_by == "writer" else [self._written(ASYNC_CLOSE)]
        nested = thread.closed_by == "nested"
        body = self._rewritten(thread) if nested else thread.recorded.joined({})
        return [self._written(ASYNC_OPEN), *body, *closed]

    def _rewritten(self, thread: Thread) -> list[Part]:
        """A chunk of which the end was left out, maybe in the middle of a token: to be encoded anew."""
        return [
            self._written(node.source)
            if isinstance(node, Ignored)
            else (node.format() if self.dialect == "text" else node.text)
            for node in thread.reader.parser.nodes
        ]
