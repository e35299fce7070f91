"""The threads' text in document order: visible as it grows, and the result in the end."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from operator import itemgetter
from typing import cast

from pasta_async.interpreter.reading import overlap
from pasta_async.interpreter.state import Cut, Thread, TokenBudget
from pasta_async.lang import Chunk, Code, Diagnostic, Document, Ignored, Node, Promise, Text
from pasta_async.results import FinishReason, Generation, Usage, Width, is_cut


@dataclass(slots=True)
class Lane:
    """A place in the document that one thread writes to."""

    thread: int
    promise_end: int = 0
    """Main's token count up to the promise; 0 for main."""
    pending: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """Pieces of text that are not shown yet, each with the token count at its end: main's tokens up to the
    lane and the thread's own, without the chunks in front of it."""
    done: bool = False
    tokens: int = 0
    """Tokens of the chunk, once it is done."""


class Visible:
    """The visible text: lanes in document order. The front lane's text is shown, the others' text waits.

    Main's text before, between and behind its promises goes to `tail`. A stop text ends the visible text
    where it first appears, and with it the answer; so does the answer's last token.
    """

    def __init__(self, stop: Sequence[str] = (), max_tokens: int | None = None) -> None:
        self.shown: list[str] = []
        self.length: int = 0
        """Characters shown."""
        self.matched_stop: str | None = None
        """The stop text that was found."""
        self._stop_cut: Cut | None = None  # the token that completed the stop text
        self.tail: Lane = Lane(0)
        """The last lane, to which main writes now."""
        self._lanes = deque((self.tail,))
        self._chunk_tokens = 0  # tokens of the chunks whose lanes are over
        self._max_tokens = max_tokens
        # The number of characters at the end of the text that may begin each stop text; long ones go first.
        self._begun = dict.fromkeys(sorted(stop, key=len, reverse=True), 0)
        self._held = ""  # text at the end that may be the beginning of a stop text

    @property
    def stopped(self) -> bool:
        """True once a stop text was found."""
        return self.matched_stop is not None

    def open(self, thread: int, promise_end: int) -> Lane:
        """A new lane for a chunk, at main's current place; main goes on in another lane behind it."""
        lane = Lane(thread, promise_end)
        self.tail.done = True
        self.tail = Lane(0)
        self._lanes += (lane, self.tail)
        return lane

    def take(self) -> str:
        """Text that can be shown now and was not yet."""
        text = ""
        while not self.stopped:
            front = self._lanes[0]
            for end, piece in self._certain(front.pending):
                text += self._show(piece, Cut(front.thread, end - front.promise_end))
            # The next lane follows once the front one is over and all of its text is out.
            if front.pending or not front.done or len(self._lanes) == 1:
                break
            self._chunk_tokens += front.tokens
            self._lanes.popleft()
        return text

    def take_stop(self) -> Cut | None:
        """The token that completed a stop text, once."""
        cut = self._stop_cut
        self._stop_cut = None
        return cut

    def close(self) -> str:
        """The rest of the text, of unfinished lanes too: the answer is over."""
        for lane in self._lanes:
            lane.done = True
        self._max_tokens = None
        return self.take() + self._release()

    def close_at(self, cut: Cut, whole: str) -> str:
        """The rest of the text after a cut at the answer's last token; `whole` is all of the text."""
        rest = whole[self.length + len(self._held) :]
        return self._show(rest, cut) + self._release()

    def _certain(self, pending: list[tuple[int, str]]) -> list[tuple[int, str]]:
        """Take out the pieces that stand before the answer's last token, whatever else is decoded."""
        count = len(pending)
        if self._max_tokens is not None:
            count = bisect_right(pending, self._max_tokens - self._chunk_tokens, key=itemgetter(0))
        certain = pending[:count]
        del pending[:count]
        return certain

    def _show(self, piece: str, cut: Cut) -> str:
        """Show more text, except for the beginning of a stop text at its end; `cut` is its last token.

        The stop text that is complete first counts; of several that end together, the longest.
        """
        if self.stopped:
            return ""
        text = self._held + piece
        ends: dict[str, int] = {}
        for stop, begun in self._begun.items():
            start = len(text) - len(piece) - begun  # it may begin here: so a text is read in linear time
            if (index := text.find(stop, start)) >= 0:
                ends[stop] = index + len(stop)
            self._begun[stop] = overlap(text[start:], stop)
        if ends:
            self.matched_stop = min(ends, key=ends.__getitem__)
            self._stop_cut = cut
            self._held = ""
            return self._record(text[: ends[self.matched_stop] - len(self.matched_stop)])
        end = len(text) - max(self._begun.values(), default=0)
        self._held = text[end:]
        return self._record(text[:end])

    def _release(self) -> str:
        """Show the text that was held back: no stop text follows."""
        held = self._held
        self._held = ""
        return self._record(held)

    def _record(self, text: str) -> str:
        if text:
            self.shown.append(text)
            self.length += len(text)
        return text


@dataclass(slots=True, eq=False)
class Transcript:
    """The document that the threads have written so far, cut at the answer's end, and the result of it."""

    threads: list[Thread]
    """The main thread, then that of each promise."""
    budget: TokenBudget
    visible: Visible
    width: Width
    notes: tuple[str, ...]
    finish_reason: FinishReason = "abort"
    """`abort` until the answer is over."""
    truncated: bool = False
    """True once the text behind the answer's last token, or behind the stop text, was left out."""

    def document(self) -> Document:
        """The document, up to the stop text that ended it, if one did."""
        nodes = self._nodes()
        count = sum(isinstance(node, Promise) for node in nodes)
        threads = self.threads[: count + 1]
        diagnostics = (diagnostic for thread in threads for diagnostic in diagnostics_since(thread, 0))
        return Document(nodes, tuple(diagnostics))

    def text(self, number: int) -> str:
        """The text of a thread, up to the stop text."""
        thread = self.threads[number]
        if number == 0 or self.visible.stopped:
            texts = _texts(self._nodes())
            return texts[number] if number < len(texts) else ""
        return _texts(thread.reader.parser.nodes)[0] if thread.document_tokens else ""

    @property
    def cut(self) -> Cut | None:
        """The cut that `max_tokens` makes in the answer, once nothing is decoded; None if it fits."""
        return None if self.truncated else self.budget.cut()

    def truncate(self, cut: Cut) -> dict[int, str]:
        """Leave out what stands behind the answer's last token; returns the texts of threads that changed."""
        before = _texts(self._nodes())
        if self._end_at(cut):
            self.threads[cut.thread].closed_by = "budget"
            self.threads[cut.thread].finish_reason = "length"
        self.threads[0].finish_reason = "length"
        return _changes(before, _texts(self._nodes()))

    def end_at_stop_text(self, cut: Cut) -> dict[int, str]:
        """Leave out the stop text and what stands behind it; returns the texts of threads that changed.

        The token that completed the stop text is the last one that counts, so the token counts do not depend
        on how far other threads were.
        """
        before = _texts(tuple(_with_chunks(self.threads)))
        self._end_at(cut)
        promises = self.document().promises
        self._leave_out(len(promises))
        # The thread that wrote the stop text ended there; the rest of its chunk was not wanted.
        if promises and (chunk := promises[-1].chunk) and chunk.closed_by == "interrupted":
            thread = self.threads[len(promises)]
            thread.finish_reason = "stop"
            thread.closed_by = "interrupted"
        self.threads[0].finish_reason = "stop"
        return _changes(before, _texts(self._nodes()))

    def generation(self, now: float) -> Generation:
        """The answer so far as users see it."""
        threads = self.threads
        document = self.document()
        texts = _texts(document.nodes)
        texts += [""] * (len(threads) - len(texts))  # threads behind the end of the answer have no text in it
        records = tuple(thread.record(text) for thread, text in zip(threads, texts, strict=True))
        first = records[0].requests[:1]  # main's first context is the prompt
        return Generation(
            text="".join(self.visible.shown),
            reasoning="".join(threads[0].reader.reasoning),
            document=document,
            threads=records,
            usage=Usage.of(records, first[0].prompt_tokens if first else 0),
            critical_path=self.budget.critical_path,
            text_tokens=sum(thread.reader.text_tokens for thread in threads if thread.document_tokens),
            finish_reason=self.finish_reason,
            matched_stop=self.visible.matched_stop,
            elapsed=now,
            width=self.width,
            notes=self.notes,
        )

    def _nodes(self) -> tuple[Node, ...]:
        """The document's nodes, up to the stop text."""
        nodes = tuple(_with_chunks(self.threads))
        return tuple(_truncated(nodes, self.visible.length)) if self.visible.stopped else nodes

    def _end_at(self, cut: Cut) -> bool:
        """Keep no token behind this one; returns whether that shortens a chunk."""
        main = self.threads[0]
        shortened = False
        if cut.thread == 0:
            # The answer ends in main's text: promises that main made before that keep their chunks.
            last_thread = sum(thread.promise_end <= cut.tokens for thread in self.threads[1:])
            _keep(main, cut.tokens)
        else:
            # It ends in a chunk: main's text ends with the promise of that chunk.
            last_thread = cut.thread
            thread = self.threads[last_thread]
            _keep(main, thread.promise_end)
            if cut.tokens < thread.document_tokens:
                _keep(thread, cut.tokens)
                shortened = True
        self._leave_out(last_thread)
        self.truncated = True
        return shortened

    def _leave_out(self, last_thread: int) -> None:
        """Leave the threads behind this one out of the document, which ends before their promises."""
        for thread in self.threads[last_thread + 1 :]:
            thread.document_tokens = 0
            thread.closed_by = "interrupted"
            thread.finish_reason = "abort"


def _keep(thread: Thread, tokens: int) -> None:
    """Forget what a thread wrote behind its first `tokens` tokens. Half a tag at their end is left out."""
    thread.reader = thread.reader.prefix(tokens)
    thread.reader.spill()
    thread.reader.close(cut=True)
    thread.document_tokens = tokens


def diagnostics_since(thread: Thread, index: int) -> Iterator[Diagnostic]:
    """Diagnostics of a thread from the `index`-th on, but not that a chunk lacks its end where it was cut."""
    cut = is_cut(thread.closed_by)
    for diagnostic in thread.reader.parser.diagnostics[index:]:
        if not (cut and diagnostic.code is Code.ASYNC_UNCLOSED):
            yield replace(diagnostic, thread=thread.number)


def _texts(nodes: Sequence[Node]) -> list[str]:
    """Main's text outside of chunks, then that of each promise's chunk."""
    chunks = [node.chunk.text if node.chunk else "" for node in nodes if isinstance(node, Promise)]
    return ["".join(node.text for node in nodes if isinstance(node, Text)), *chunks]


def _changes(before: Sequence[str], after: Sequence[str]) -> dict[int, str]:
    """The texts of threads that differ from before, by the thread's number."""
    both = enumerate(zip_longest(before, after, fillvalue=""))
    return {number: new for number, (old, new) in both if new != old}


def _with_chunks(threads: Sequence[Thread]) -> Iterator[Node]:
    """Main's nodes, each promise with its chunk."""
    number = 0
    for node in threads[0].reader.parser.nodes:
        if isinstance(node, Promise):
            number += 1
            thread = threads[number]
            body = cast("tuple[Text | Ignored, ...]", tuple(thread.reader.parser.nodes))
            yield replace(node, chunk=Chunk(body, closed_by=thread.closed_by or "interrupted"))
        else:
            yield node


def _truncated(nodes: Sequence[Node], length: int) -> Iterator[Node]:
    """The nodes up to `length` characters of visible text."""
    for node in nodes:
        if length <= 0:
            return
        if isinstance(node, Text):
            yield Text(node.text[:length])
            length -= len(node.text)
        elif isinstance(node, Promise) and node.chunk is not None:
            body = tuple(_truncated(node.chunk.nodes, length))
            closed_by = node.chunk.closed_by if length >= len(node.chunk.text) else "interrupted"
            chunk = replace(node.chunk, nodes=cast("tuple[Text | Ignored, ...]", body), closed_by=closed_by)
            yield replace(node, chunk=chunk)
            length -= len(node.chunk.text)
        else:
            yield node
