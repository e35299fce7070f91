"""The interpreter as a pure state machine: fed token ids, it says what to decode and what to show.

No asyncio, no I/O, no clock: a test can play every interleaving by calling `feed` in that order. `runner`
sends the requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

from pasta_async import events as ev
from pasta_async import lang
from pasta_async.errors import PastaError
from pasta_async.interpreter.outline import Head, ItemParser, OutlineParser
from pasta_async.interpreter.reading import THINK_OPEN, Reader, ReasoningRead
from pasta_async.interpreter.state import Thread, TokenBudget, thread_seed
from pasta_async.interpreter.transcript import Lane, Transcript, Visible, diagnostics_since
from pasta_async.observers import AnswerStart
from pasta_async.protocol import DecodeRequest, Model, Piece
from pasta_async.results import FinishReason, Generation, Width
from pasta_async.tag_tokens import TagGrammar, TagIds, plain_topic

_OMITTED = " ..."
"""Text that main sees in the place of an item. A model that sees heads alone never ends its list."""

_PROMPT_END = 8
"""Number of ids at the end of a prompt that are read to see whether it opens a thinking block."""


class Machine:
    """One answer: its threads, the text that they have written, and the requests that are needed next.

    Without `tags` nothing is read as a tag; if an outline is asked for, the heads of lists are promises.
    `prompt` stands in front of every context, and may open a thinking block. `listen` is True if `events` are
    read.
    """

    def __init__(
        self,
        model: Model,
        tags: TagIds | None,
        start: AnswerStart,
        *,
        prompt: Sequence[int],
        listen: bool,
        notes: tuple[str, ...],
    ) -> None:
        self.events: list[ev.Event] = []
        """Events that were not taken yet."""
        self.spawned: list[int] = []
        """Threads to start."""
        self.dropped: list[int] = []
        """Threads whose request is to be aborted."""
        self.model: Model = model
        self.start: AnswerStart = start
        self._tags = tags
        self._listen = listen
        self._visible = Visible(tuple(start.sampling.stop), start.sampling.max_tokens)
        # A trained model that lost its tags to a full engine answers plainly.
        is_outline = model.tags is None and start.parallel == "outline" and not start.baseline
        make_parser = OutlineParser if is_outline else None
        thinking = model.tokenizer.decode(prompt[-_PROMPT_END:]).rstrip().endswith(THINK_OPEN)
        reader = Reader(model.tokenizer, tags, main=True, thinking=thinking, make_parser=make_parser)
        self.main: Thread = Thread(number=0, reader=reader, opened=0.0)
        self.outline: OutlineParser | None = (
            reader.parser if isinstance(reader.parser, OutlineParser) else None
        )
        """The parser of main where heads of lists are promises."""
        self.threads: list[Thread] = [self.main]
        self._chunk_lanes: dict[int, Lane] = {}
        self._budget = TokenBudget(self.main, start.sampling.max_tokens, start.limits)
        width: Width = "one" if start.parallel == "never" else "full"
        width = "plain" if tags is None and not self.outline else width
        self.transcript: Transcript = Transcript(self.threads, self._budget, self._visible, width, notes)
        self._joined_ids = [*prompt]  # the prompt and the written form up to the last join
        self._runs_past_syncs = False  # a request of main ended at a sync that had nothing to join
        self._request_is_obsolete = False  # main's context was changed: a new request follows
        self._topics: set[str] = set()  # of the round's promises (`plain_topic`)
        self._repeats = False  # main has repeated a topic, and is to promise nothing more in this round
        self._lead_tokens = 0  # tokens that led main on to the next head

    # What to decode ---------------------------------------------------------------------------------------

    def context(self, number: int) -> tuple[int, ...]:
        """Ids in front of a thread's next token: the prompt, its view by the language's rule, its own ids."""
        thread = self.threads[number]
        main = self.main.reader.ids
        if number == 0:
            return (*self._joined_ids, *self._own_text())
        forked = main[self._budget.round_start : thread.promise_end]
        if self.outline:  # without the heads of earlier items, behind which the model would write a bare head
            first = self._budget.round[0].head_start
            forked = main[self._budget.round_start : first] + main[thread.head_start : thread.promise_end]
        opening = (self._tags.open_async,) if self._tags else ()
        return (*self._joined_ids, *forked, *opening, *thread.reader.ids)

    def _own_text(self) -> list[int]:
        """Main's ids since the last join, with `_OMITTED` in the place of each item of an outline."""
        main = self.main.reader.ids
        start = self._budget.round_start
        seen: list[int] = []
        if self.outline and self.outline.leading:
            omitted = self.model.tokenizer.encode(_OMITTED)
            for thread in self._budget.round:
                seen += [*main[start : thread.promise_end], *omitted]
                start = thread.promise_end
        return seen + main[start:]

    def wants(self, number: int) -> bool:
        """True if a request of this thread is to be sent (again)."""
        return self.threads[number].state == "open"

    def request(self, number: int, now: float) -> DecodeRequest | None:
        """The next request of a thread, which is sent at once.

        Main's requests end at a sync: then the KV of what was decoded is in the prefix cache when the written
        form is prefilled. Once a request ended at a sync that had nothing to join, main's further requests
        do not end at syncs until the next join.

        Returns:
            The request. None if no token can be decoded: a limit is reached, or the context fills the
            model's. Then the thread is over.
        """
        thread = self.threads[number]
        tags = self._tags
        sampling = self.start.sampling
        ids = self.context(number)
        max_tokens = min(self._budget.allowance(thread), self.model.context_length - len(ids))
        if max_tokens < 1:
            self._close(thread, "budget", now)
            self._settle_budget(now)
            return None
        # Tags that would be wrong wherever the request wrote them are banned.
        if tags is None:
            thread.stop_ids = ()
            banned = self.model.tags or ()
        elif number:
            thread.stop_ids = tags.ends_of_chunk
            banned = tags.wrong_in_chunk
        else:
            thread.stop_ids = () if self._runs_past_syncs else (tags.sync,)
            banned = (tags.open_async, tags.close_async, *([tags.promise] if self._repeats else []))
        if thread.started is None:
            self._tell(ev.ThreadStarted(number, now))
        return DecodeRequest(
            answer=self.start.answer,
            thread=number,
            ids=ids,
            max_tokens=max_tokens,
            sampling=sampling,
            seed=thread_seed(sampling.seed, number),
            stop_ids=thread.stop_ids,
            banned_ids=banned,
            tag_grammar=tags
            and TagGrammar(
                tags,
                self.model.end_ids,
                self.model.tokenizer.token_bytes,
                chunk=number > 0,
                topics=frozenset(self._topics),
            ),
        )

    # What was decoded -------------------------------------------------------------------------------------

    def feed(self, number: int, piece: Piece, now: float) -> bool:
        """Take newly decoded tokens of a thread; returns whether its request has to end here."""
        thread = self.threads[number]
        thread.receive(piece, now)
        for token in piece.ids:
            self._budget.generated += 1
            thread.tokens += 1
            # Tokens behind the thread's end, or of an obsolete request, are counted and discarded.
            if thread.state == "open" and not self._request_is_obsolete:
                self._feed_token(thread, token, now)
        is_obsolete = self._request_is_obsolete
        self._request_is_obsolete = False
        if thread.state == "open" and piece.finish_reason and not is_obsolete:
            self._end_request(thread, piece.finish_reason, now)
        self._settle_budget(now)
        return is_obsolete or thread.state != "open"

    def fail(self, number: int, error: PastaError, action: Literal["retry", "fail"]) -> None:
        """A request of a thread failed."""
        if action == "fail":
            self.threads[number].finish_reason = "error"
        self._tell(ev.ThreadFailed(number, ev.ErrorInfo(type(error).__name__, str(error)), action))

    @property
    def open_threads(self) -> list[int]:
        """Threads that main has to wait for."""
        return [thread.number for thread in self._budget.round if thread.state == "open"]

    def join(self, now: float) -> None:
        """Every promise of the round is kept: main goes on and sees the chunks."""
        main = self.main.reader.ids
        start = self._budget.round_start
        if self.outline:
            self._join_list(now)
        else:
            for thread in self._budget.round:
                self._joined_ids += main[start : thread.promise_end]
                self._joined_ids += self._chunk(thread)
                start = thread.promise_end
            self._joined_ids += main[start:]
        self._budget.join()
        self._topics.clear()
        self._repeats = False
        self.main.undecided_tokens = 0
        self.main.state = "open"
        self._runs_past_syncs = False
        self._tell(ev.SyncJoined(now))

    def finish(self, finish_reason: FinishReason | None, now: float) -> Generation:
        """End the answer; `finish_reason` says how it was broken off, if it was."""
        for thread in self.threads:
            if thread.state != "done":
                self._close(thread, "interrupted", now)
        if cut := self.transcript.cut:
            self._tell_changes(self.transcript.truncate(cut))
            self._show(self._visible.close_at(cut, self.transcript.document().text), now)
        elif not self.transcript.truncated:
            self._show(self._visible.close(), now)
        self.transcript.finish_reason = finish_reason or self._finish_reason()
        result = self.transcript.generation(now)
        if finish_reason is None:
            self._tell(ev.AnswerDone(result))
        return result

    def _finish_reason(self) -> FinishReason:
        """The reason for the answer's end: `length`, too, where a limit of the answer ended a chunk."""
        cut = any(
            thread.closed_by == "budget" and thread.document_tokens + thread.undecided_tokens < thread.cap
            for thread in self.threads
        )
        return "length" if cut and not self._visible.stopped else self.main.finish_reason

    # Reading ----------------------------------------------------------------------------------------------

    def _feed_token(self, thread: Thread, token: int, now: float) -> None:
        outline = self.outline
        if outline and (thread.number or outline.leading):
            self._feed_held(thread, token, now)
        elif token in self.model.end_ids:
            thread.document_tokens += 1
            self._close(thread, "end", now)
        else:
            if outline and outline.at_line_start:
                self.main.head_start = thread.document_tokens
            thread.document_tokens += 1
            self._apply(thread, thread.reader.read(token), now)
        # A budget that does not allow one more token ends the thread at once, so that the answer is the same
        # whether tokens come one by one or many in a piece.
        if thread.state == "open" and not self._budget.allows_one_more(thread):
            self._close(thread, "budget", now)

    def _feed_held(self, thread: Thread, token: int, now: float) -> None:
        """Feed an item of a list, or main behind a head, where the parser may hold text back.

        Such a token is one of `Thread.undecided_tokens` until it is certain that its text is in the document.
        """
        if token in self.model.end_ids:
            thread.undecided_tokens += 1
            if thread is self.main:
                self._end_list(now)
            else:
                self._close(thread, "end", now)
            return
        readings = thread.reader.read(token)
        thread.undecided_tokens += 1
        if any(isinstance(reading, lang.Sync) for reading in readings):
            self._end_list(now)
            return
        if any(isinstance(reading, str) for reading in readings):
            if thread is self.main:
                self._cut_head(str(readings[0]))
            thread.document_tokens = len(thread.reader.ids)
            thread.undecided_tokens = 0
        self._apply(thread, readings, now)

    def _cut_head(self, text: str) -> None:
        """Leave out the white space behind a head, if it is a part of the head's last token."""
        ids = self.main.reader.ids
        tokenizer = self.model.tokenizer
        last = tokenizer.decode(ids[-1:])
        if not text.endswith(last):
            # The parser did not take all of the last token: the rest of it is encoded anew.
            head_ids = tokenizer.encode(last.rstrip())
            ids[-1:] = head_ids
            self.main.inserted += range(len(ids) - len(head_ids) + 1, len(ids))

    def _end_list(self, now: float) -> None:
        """End a list: main waits for its items, then goes on behind the last one."""
        self.main.reader.end_list(self.main.document_tokens)
        self._apply(self.main, [lang.Sync()], now)

    def _end_request(self, thread: Thread, finish_reason: FinishReason, now: float) -> None:
        """Handle the end of a request whose thread is open: the thread ends too, unless it has to go on."""
        if thread is self.main and self.outline and self.outline.leading:
            self._end_list(now)
        elif finish_reason == "length":
            # The backend's limit was the thread's allowance when the request was sent, or the context's end.
            self._close(thread, "budget", now)
        elif not thread.stopped_where_asked():
            # It ended at none of the request's stop ids: the model has no more to say.
            self._close(thread, "end", now)
        elif thread is self.main:
            # It stopped at a tag, but main is not waiting: the sync had nothing to join. Main goes on with a
            # new request, which does not stop at syncs, so that any number of idle ones costs one request.
            self._runs_past_syncs = True

    def _apply(self, thread: Thread, readings: Sequence[lang.Reading | ReasoningRead], now: float) -> None:
        diagnostics = thread.reader.parser.diagnostics
        if self._listen and len(diagnostics) > thread.reported:
            self.events += map(ev.DiagnosticFound, diagnostics_since(thread, thread.reported))
            thread.reported = len(diagnostics)
        for reading in readings:
            if isinstance(reading, str):
                self._write(thread, reading)
            elif isinstance(reading, ReasoningRead):
                self._tell(ev.ReasoningDelta(reading.text))
            elif isinstance(reading, lang.ChunkEnded):
                self._close(thread, reading.closed_by, now)
            elif isinstance(reading, lang.Promise):
                topic = plain_topic(reading.topic)
                if self._tags and topic and topic in self._topics and not self._repeats:
                    self._take_promise_back(self._tags)
                else:
                    self._topics.add(topic)
                    self._open_promise(reading, now)
            else:  # a sync that joins promises
                self.main.state = "joining"
                self._tell(ev.SyncWaiting(tuple(self.open_threads), now))

    def _write(self, thread: Thread, text: str) -> None:
        lane = self._chunk_lanes.get(thread.number, self._visible.tail)
        lane.pending.append((thread.promise_end + thread.document_tokens, text))
        last = self.events[-1] if self.events else None
        if isinstance(last, ev.ThreadDelta) and last.thread == thread.number:
            self.events[-1] = ev.ThreadDelta(thread.number, last.delta + text)  # one event for a piece
        else:
            self._tell(ev.ThreadDelta(thread.number, text))

    def _show(self, delta: str, now: float) -> None:
        """Report new visible text; if a stop text is complete in it, end the answer."""
        if delta:
            self._tell(ev.TextDelta(delta))
        if cut := self._visible.take_stop():
            unfinished = [thread for thread in self.threads if thread.state != "done"]
            for thread in unfinished:
                thread.state = "done"
                thread.ended = now
                self.dropped.append(thread.number)
            self._tell_changes(self.transcript.end_at_stop_text(cut))
            for thread in unfinished:
                self._report_end(thread)

    def _tell_changes(self, texts: Mapping[int, str]) -> None:
        for number, text in texts.items():
            self._tell(ev.ThreadReplaced(number, text))

    def _tell(self, event: ev.Event) -> None:
        if self._listen:
            self.events.append(event)

    # Threads ----------------------------------------------------------------------------------------------

    def _open_promise(self, promise: lang.Promise, now: float) -> None:
        number = len(self.threads)
        head = self.outline.head if self.outline else None
        begins_line = self.outline is not None and self.outline.is_block
        make_parser = partial(ItemParser, head, begins_line=begins_line) if head else None
        reader = Reader(self.model.tokenizer, self._tags, main=False, make_parser=make_parser)
        thread = Thread(number=number, reader=reader, opened=now, promise=promise, closed_by="interrupted")
        if head:
            self._lead_on(head, thread)
        self._budget.open(thread, promise.tokens)
        self._chunk_lanes[number] = self._visible.open(number, thread.promise_end)
        self.threads.append(thread)
        self._tell(ev.PromiseOpened(number, promise.topic, promise.tokens, now))
        if self._budget.allowance(thread) > 0:
            self.spawned.append(number)
        else:
            self._close(thread, "budget", now)

    def _take_promise_back(self, tags: TagIds) -> None:
        """Take back a promise that repeats a topic of its round, and ask main anew, from before it.

        The model has run out of topics: it would write one item twice, or go on with the list for ever. Now
        it writes what comes here itself. A backend that ignores `banned` may repeat the promise, which then
        counts.
        """
        main = self.main
        main.document_tokens = len(main.reader.ids) - 1 - main.reader.ids[::-1].index(tags.promise)
        main.reader = main.reader.prefix(main.document_tokens)
        main.reported = len(main.reader.parser.diagnostics)
        self._repeats = True
        self._request_is_obsolete = True

    def _lead_on(self, head: Head, thread: Thread) -> None:
        """Lead main on to its list's next head, while `thread` writes the item behind this one.

        The interpreter writes the separator for main and, behind the list's first head, the next marker:
        behind a single head a model would write the item itself. Behind two heads it goes on with heads, or
        ends the list.
        """
        main = self.main
        encode = self.model.tokenizer.encode
        earlier = self._budget.round
        separator = encode(head.separator)
        marker = () if earlier else encode(head.next_marker)
        if earlier:
            # This head stands behind the separator that the interpreter wrote. The head came, so the tokens
            # that led main on to it stand in the document, and main did not decode them.
            thread.head_start = earlier[-1].promise_end + len(separator)
            main.inserted += range(earlier[-1].promise_end, earlier[-1].promise_end + self._lead_tokens)
        else:
            thread.head_start = main.head_start
        self._lead_tokens = len(separator) + len(marker)
        for token in (*separator, *marker):
            main.reader.read(token)
        self._request_is_obsolete = True

    def _join_list(self, now: float) -> None:
        """Take a list into main's context as one text, in the tokens that it would have in a plain answer.

        If text followed the last item, main continues after that thread's white space.
        """
        main = self.main
        threads = self._budget.round
        tokenizer = self.model.tokenizer
        ids = main.reader.ids
        # Main's tokens before the list stay as they are.
        start = threads[0].head_start
        self._joined_ids += ids[self._budget.round_start : start]
        # The heads and the items are encoded anew, as one text: tokens may reach over their borders.
        text = ""
        for thread in threads:
            text += tokenizer.decode(ids[start : thread.promise_end]) + self.transcript.text(thread.number)
            start = thread.promise_end
        parser = threads[-1].reader.parser
        gap = parser.gap if isinstance(parser, ItemParser) else ""
        self._joined_ids += tokenizer.encode(text + gap)
        # The white space is main's, as far as the budget goes: the interpreter writes it for main.
        for token in tokenizer.encode(gap)[: max(0, self._budget.allowance(main))]:
            main.inserted.append(main.document_tokens)
            main.document_tokens += 1
            self._apply(main, main.reader.read(token), now)

    def _report_end(self, thread: Thread) -> None:
        if self._listen:
            text = self.transcript.text(thread.number)
            self.events.append(ev.ThreadDone(thread.number, thread.record(text)))

    def _settle_budget(self, now: float) -> None:
        """Close threads that are out of budget; emit text whose position is final."""
        if self._budget.may_be_at_a_limit:
            spent = self.threads if self._budget.exhausted else self._budget.threads_past_the_end()
            for thread in [thread for thread in spent if thread.state != "done"]:
                self._close(thread, "budget", now)
                self.dropped.append(thread.number)
        self._show(self._visible.take(), now)

    def _close(self, thread: Thread, closed_by: lang.ClosedBy, now: float) -> None:
        """End a thread."""
        if closed_by != "interrupted":  # else what interrupted it has said why
            thread.finish_reason = "length" if closed_by == "budget" else "stop"
        readings = self._end_parser(thread, closed_by)
        if thread is self.main:
            self._apply(thread, readings, now)
        else:
            thread.closed_by = closed_by
            # Only text matters of the readings: the thread ends here in any case.
            self._apply(thread, [reading for reading in readings if isinstance(reading, str)], now)
            lane = self._chunk_lanes[thread.number]
            lane.done = True
            lane.tokens = thread.document_tokens
        thread.state = "done"
        thread.ended = now
        self._report_end(thread)

    def _end_parser(self, thread: Thread, closed_by: lang.ClosedBy) -> list[lang.Reading | ReasoningRead]:
        """The text that a thread's parser held back and that belongs to the document; the rest is dropped."""
        readings: list[lang.Reading | ReasoningRead] = []
        if closed_by == "budget":
            # Main's unfinished tag is dropped. An item of an outline holds text back, too: at its own cap
            # that may be the next head, and is dropped; where the answer ends, it belongs to the item.
            cut = not thread.number or thread.document_tokens + thread.undecided_tokens >= thread.cap
            if not cut:
                readings += thread.reader.spill()
        else:
            cut = closed_by == "interrupted"
        readings += thread.reader.close(cut=cut)
        # Tokens whose text was held back count if any of that text came out; else they are forgotten.
        if thread.undecided_tokens and readings:
            thread.document_tokens = len(thread.reader.ids)
        elif thread.undecided_tokens:
            del thread.reader.ids[thread.document_tokens :]
        return readings

    def _chunk(self, thread: Thread) -> list[int]:
        """A chunk's ids in the written form, from `<async>` to `</async>`."""
        assert self._tags, "there are no chunks without tags"
        opening, closing = self._tags.open_async, self._tags.close_async
        if thread.closed_by == "nested":
            body = self._encoded_anew(thread)
        else:
            body = thread.reader.ids
        return [opening, *body] if thread.closed_by == "writer" else [opening, *body, closing]

    def _encoded_anew(self, thread: Thread) -> list[int]:
        """Ids of a chunk's text, encoded anew: its end was left out, maybe in the middle of a token.

        The only tag among a chunk's nodes is an ignored `<async>`: the others end the chunk, or are text.
        """
        assert self._tags, "there are no chunks without tags"
        ids: list[int] = []
        for node in thread.reader.parser.nodes:
            if isinstance(node, lang.Ignored):
                ids.append(self._tags.open_async)
            else:
                ids += self.model.tokenizer.encode(node.text)
        return ids
