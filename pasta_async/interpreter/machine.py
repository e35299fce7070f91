"""The interpreter as a pure state machine: fed tokens and text, it says what to do and what to show.

No asyncio, no I/O, no clock: every interleaving can be played by calling `feed` in that order. The shell in
`runner` moves the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pasta_async import events as ev
from pasta_async import lang
from pasta_async.errors import PastaError
from pasta_async.interpreter.assembly import Answer, diagnostics_since
from pasta_async.interpreter.reading import Part, Reader, ReasoningRead, RecordedTokens
from pasta_async.interpreter.threads import Cut, Thread, TokenBudget
from pasta_async.interpreter.visible import Visible
from pasta_async.observers import AnswerStart
from pasta_async.protocol import ModelInfo, Piece
from pasta_async.results import FinishReason, Generation, RequestRecord, Span, Width
from pasta_async.tag_tokens import TagGrammar, TagIds


class Machine:
    """One answer: its threads, what they have written, and what must be decoded next.

    Args:
        tags: Ids of the tags that are read; None for an answer without tags.
        thinking: Whether the answer begins inside a thinking block.
        listen: Whether somebody reads `events`.
    """

    def __init__(
        self,
        info: ModelInfo,
        tags: TagIds | None,
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
        self.start: AnswerStart = start
        self._tags = tags
        self._opening: Part = (tags.open_async,) if tags else ()
        self._closing: Part = (tags.close_async,) if tags else ()
        self._listen = listen
        self._visible = Visible(start.sampling.stop, start.sampling.max_tokens)
        reader = Reader(tags, main=True, thinking=thinking)
        self.main: Thread = Thread(0, reader, self._visible.tail, opened=0.0)
        self._budget = TokenBudget(self.main, start.sampling.max_tokens, start.limits)
        width: Width = "plain" if tags is None else "one" if start.parallel == "never" else "full"
        self.threads: list[Thread] = [self.main]
        self.answer: Answer = Answer(self.threads, self._budget, self._visible, width=width, notes=notes)
        self._joined: list[Part] = []
        self._stops_idly = False  # a request of main ended at a tag that had no effect

    # What to decode ---------------------------------------------------------------------------------------

    def context(self, number: int) -> list[Part]:
        """What a thread has behind the prompt: its view, by the language's rule, and what it wrote so far."""
        thread = self.threads[number]
        forked = [self.main.recorded.before(number), self._opening] if number else []
        return [*self._joined, *forked, tuple(thread.recorded.raw)]

    def allowance(self, number: int) -> int:
        """Tokens that a thread may still generate, as far as is known now."""
        return self._budget.allowance(self.threads[number])

    def allows(self, number: int, tokens: int) -> bool:
        """Whether a thread may generate so many more tokens, as far as is known now, or is over anyway."""
        thread = self.threads[number]
        return thread.state != "open" or self._budget.allows(thread, tokens)

    def stop_ids(self, number: int) -> tuple[int, ...]:
        """Ids at which the next request of this thread ends.

        Main's end at a sync, so that what was decoded is in the prefix cache when the written form is
        prefilled; but after one at an idle sync, which had to end there for nothing, not until the next join.
        A chunk's end at `</async>`, and at the promise or sync that a thread writes when it forgot that tag.
        """
        tags = self._tags
        if tags is None or (number == 0 and self._stops_idly):
            return ()
        return (tags.close_async, tags.promise, tags.sync) if number else (tags.sync,)

    def banned(self, number: int) -> tuple[int, ...]:
        """Ids of tags that would be wrong wherever the next request of this thread wrote them.

        A thread's promise or sync is none of them: it ends the chunk.
        """
        tags = self._tags
        if tags is None:
            return self.info.tags or ()
        return (tags.tokens, tags.end, tags.open_async) if number else (tags.open_async, tags.close_async)

    def grammar(self, number: int) -> TagGrammar | None:
        """Which tags may come next, where `banned` says no more: it depends on what was written before."""
        if not self._tags:
            return None
        return TagGrammar(self._tags, self.info.end_ids, chunk=number > 0, open=bool(self._budget.round))

    def wants(self, number: int) -> bool:
        """Whether a request of this thread is to be sent (again)."""
        return self.threads[number].state == "open"

    def begin_request(self, number: int, prompt_tokens: int, now: float) -> None:
        """A request is about to be sent."""
        thread = self.threads[number]
        if thread.started is None:
            self._tell(ev.ThreadStarted(number, now))
        thread.stop_ids = self.stop_ids(number)
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
            thread.recorded.raw += ids
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

    def join(self, now: float) -> None:
        """Every promise of the round is kept: main goes on and sees the chunks."""
        chunks = {thread.number: self._chunk(thread) for thread in self._budget.round}
        self._joined += self.main.recorded.joined(chunks)
        self._budget.join()
        self.main.recorded = RecordedTokens()
        self.main.state = "open"
        self._stops_idly = False
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

    def _act(self, thread: Thread, readings: Sequence[lang.Reading | ReasoningRead], now: float) -> None:
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
            elif isinstance(reading, lang.ChunkEnded):
                self._close(thread, "stop", reading.closed_by, now)

    def _act_on_main(self, reading: lang.Reading, now: float) -> None:
        if isinstance(reading, lang.PromiseRead):
            self._open(reading.promise, now)
        elif isinstance(reading, lang.SyncRead):
            self.main.state = "joining"
            self._tell(ev.SyncWaiting(tuple(self.open_threads), now))

    def _write(self, thread: Thread, text: str) -> None:
        lane = self._visible.tail if thread is self.main else thread.lane
        lane.pending.append((thread.origin + thread.kept, text))
        if self._listen:
            self.events.append(ev.ThreadDelta(thread.number, text))

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

    def _open(self, promise: lang.Promise, now: float) -> None:
        number = len(self.threads)
        self.main.recorded.mark(number)
        reader = Reader(self._tags, main=False)
        thread = Thread(number, reader, self._visible.open(), now, promise, closed_by="interrupted")
        self._budget.open(thread, promise.tokens)
        self.threads.append(thread)
        self._tell(ev.PromiseOpened(number, promise.topic, promise.tokens, now))
        if self.allowance(number) > 0:
            self.spawned.append(number)
        else:
            self._close(thread, "length", "budget", now)

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

    def _close(
        self, thread: Thread, finish_reason: FinishReason, closed_by: lang.ClosedBy, now: float
    ) -> None:
        """End a thread; what its parser held back is text after all."""
        over = closed_by == "interrupted" or (finish_reason == "length" and self._budget.at_the_end(thread))
        readings = thread.reader.close(cut=over)  # half a tag is nothing to show
        if thread is self.main:
            self._act(thread, readings, now)
        else:
            thread.closed_by = closed_by
            self._act(thread, [reading for reading in readings if isinstance(reading, str)], now)
            thread.lane.done, thread.lane.tokens = True, thread.kept
        thread.state, thread.finish_reason, thread.ended = "done", finish_reason, now
        self._report_end(thread)

    # Contexts ---------------------------------------------------------------------------------------------

    def _chunk(self, thread: Thread) -> list[Part]:
        """A chunk as it stands in the written form."""
        closed = [] if thread.closed_by == "writer" else [self._closing]
        nested = thread.closed_by == "nested"
        body = self._rewritten(thread) if nested else [tuple(thread.recorded.raw)]
        return [self._opening, *body, *closed]

    def _rewritten(self, thread: Thread) -> list[Part]:
        """A chunk of which the end was left out, maybe in the middle of a token: to be encoded anew.

        Of tag ids only `<async>` is ignored in a chunk; the others end it, or are text.
        """
        nodes = thread.reader.parser.nodes
        return [self._opening if isinstance(node, lang.Ignored) else node.text for node in nodes]
