"""Put together what the threads wrote: the document of an answer, the text of each thread, the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import cast

from pasta_async.interpreter.threads import Cut, Thread, TokenBudget
from pasta_async.interpreter.visible import Visible
from pasta_async.lang import Chunk, Code, Diagnostic, Document, Ignored, Node, Promise, Text
from pasta_async.results import FinishReason, Generation, Span, Usage, Width


@dataclass(slots=True, eq=False)
class Answer:
    """What the threads wrote so far, where the answer ends in it, and the result that it makes."""

    threads: list[Thread]
    """Main, then that of each promise."""
    budget: TokenBudget
    visible: Visible
    width: Width
    notes: tuple[str, ...]
    spans: list[Span] = field(default_factory=list[Span])
    finish_reason: FinishReason = "abort"
    """Until it is over."""
    truncated: bool = False
    """Whether what stands behind the answer's last token, or the stop text, was left out."""

    def document(self) -> Document:
        """The document, up to the stop text that ended it, if one did."""
        nodes = self._nodes()
        count = sum(isinstance(node, Promise) for node in nodes)
        kept = self.threads[: count + 1]
        return Document(nodes, tuple(found for thread in kept for found in diagnostics_since(thread, 0)))

    def text(self, number: int) -> str:
        """The text of a thread, up to the stop text."""
        thread = self.threads[number]
        if number == 0 or self.visible.stopped:
            return dict(enumerate(_texts(self._nodes()))).get(number, "")
        return _texts(thread.reader.parser.nodes)[0] if thread.kept else ""

    @property
    def cut(self) -> Cut | None:
        """Where `max_tokens` cuts the answer, once nothing is decoded any more; None if it fits."""
        return None if self.truncated else self.budget.cut()

    def cut_ids(self, cut: Cut) -> tuple[list[int], int]:
        """Ids of the cut thread up to the cut, and how many of them are known to say what was read so far."""
        thread = self.threads[cut.thread]
        start = 0 if cut.thread else self.budget.round_start
        return thread.recorded.raw[: cut.tokens - start], max(0, thread.reader.known(cut.tokens) - start)

    def truncate(self, cut: Cut, rest: str) -> dict[int, str]:
        """Leave out what stands behind the answer's last token; returns the texts of threads that changed.

        `rest` is what the ids up to the cut say behind those that are known (`cut_ids`).
        """
        before = _texts(self._nodes())
        main, inside = self.threads[0], self.threads[cut.thread]
        if cut.thread == 0:
            last = sum(thread.origin <= cut.tokens for thread in self.threads[1:])
            main.reader, main.kept = main.reader.first(cut.tokens, rest), cut.tokens
        else:
            last = cut.thread
            main.reader, main.kept = main.reader.first(inside.origin), inside.origin
            if cut.tokens < inside.kept:
                inside.reader = inside.reader.first(cut.tokens, rest)
                inside.kept, inside.closed_by, inside.finish_reason = cut.tokens, "budget", "length"
        main.finish_reason = "length"
        self._leave_out(last)
        self.truncated = True
        return _changes(before, _texts(self._nodes()))

    def end_at_stop_text(self) -> dict[int, str]:
        """Leave out what stands behind the stop text; returns the texts of threads that changed.

        The thread in which it stands ended there; what stands behind it was not wanted.
        """
        promises = self.document().promises
        self._leave_out(len(promises))
        if promises and (chunk := promises[-1].chunk) and chunk.closed_by == "interrupted":
            thread = self.threads[len(promises)]
            thread.finish_reason, thread.closed_by = "stop", "interrupted"
        self.threads[0].finish_reason = "stop"
        self.truncated = True
        return _changes(_texts(tuple(_with_chunks(self.threads))), _texts(self._nodes()))

    def generation(self, now: float) -> Generation:
        """The answer so far as users see it."""
        document, threads = self.document(), self.threads
        texts = [*_texts(document.nodes), *("" for _ in threads)]
        records = tuple(thread.record(text) for thread, text in zip(threads, texts, strict=False))
        requests = [request for record in records for request in record.requests]
        completion = sum(record.tokens for record in records)
        discarded = sum(record.discarded_tokens for record in records)
        text_tokens = sum(thread.reader.text_tokens for thread in threads if thread.kept)
        return Generation(
            text="".join(self.visible.shown),
            reasoning="".join(threads[0].reader.reasoning),
            document=document,
            threads=records,
            usage=Usage(
                prompt_tokens=requests[0].prompt_tokens if requests else 0,
                completion_tokens=completion,
                discarded_tokens=discarded,
                cached_tokens=sum(request.cached_tokens or 0 for request in requests),
                prefilled_tokens=sum(
                    request.prompt_tokens - (request.cached_tokens or 0) for request in requests
                ),
                requests=len(requests),
            ),
            critical_path=self.budget.critical_path,
            text_tokens=text_tokens,
            finish_reason=self.finish_reason,
            matched_stop=self.visible.matched_stop,
            elapsed=now,
            timeline=tuple(self.spans),
            width=self.width,
            notes=self.notes,
        )

    def _nodes(self) -> tuple[Node, ...]:
        """The document's, up to the stop text."""
        nodes = tuple(_with_chunks(self.threads))
        return tuple(_truncated(nodes, self.visible.length)) if self.visible.stopped else nodes

    def _leave_out(self, last: int) -> None:
        """The document ends before the promises of the threads behind this one."""
        for thread in self.threads[last + 1 :]:
            thread.kept, thread.closed_by, thread.finish_reason = 0, "interrupted", "abort"


def diagnostics_since(thread: Thread, index: int) -> Iterator[Diagnostic]:
    """What a thread's parser found from then on; that its cap cut a chunk is no fault of what it says."""
    cut = thread.closed_by in ("budget", "interrupted")
    for found in thread.reader.parser.diagnostics[index:]:
        if not (cut and found.code is Code.ASYNC_UNCLOSED):
            yield replace(found, thread=thread.number)


def _texts(nodes: Sequence[Node]) -> list[str]:
    """Main's text outside of chunks, then that of each promise's chunk."""
    chunks = [node.chunk.text if node.chunk else "" for node in nodes if isinstance(node, Promise)]
    return ["".join(node.text for node in nodes if isinstance(node, Text)), *chunks]


def _changes(before: Sequence[str], after: Sequence[str]) -> dict[int, str]:
    """Texts that are others than before, by thread."""
    both = enumerate(zip_longest(before, after, fillvalue=""))
    return {number: now for number, (was, now) in both if now != was}


def _with_chunks(threads: Sequence[Thread]) -> Iterator[Node]:
    """Main's nodes, with each promise's chunk right behind it."""
    number = 0
    for node in threads[0].reader.parser.nodes:
        if isinstance(node, Promise):
            number += 1
            thread = threads[number]
            body = cast("tuple[Text | Ignored, ...]", tuple(thread.reader.parser.nodes))
            yield replace(node, chunk=Chunk(body, closed_by=thread.closed_by or "interrupted"))
        else:
            yield node


def _truncated(nodes: Sequence[Node], left: int) -> Iterator[Node]:
    for node in nodes:
        if left <= 0:
            return
        if isinstance(node, Text):
            yield Text(node.text[:left])
            left -= len(node.text)
        elif isinstance(node, Promise) and node.chunk is not None:
            gap = node.gap[:left]
            left -= len(node.gap)
            body = tuple(_truncated(node.chunk.nodes, left))
            closed_by = node.chunk.closed_by if left >= len(node.chunk.text) else "interrupted"
            kept = replace(node.chunk, nodes=cast("tuple[Text | Ignored, ...]", body), closed_by=closed_by)
            yield replace(node, chunk=kept, gap=gap)
            left -= len(node.chunk.text)
        else:
            yield node
