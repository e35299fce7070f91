"""Put together what the threads wrote: the document of an answer, the text of each thread, the result."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from pasta_async.lang import Chunk, Code, Document, Ignored, Promise, Text
from pasta_async.results import Generation, Usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pasta_async.interpreter.threads import Thread
    from pasta_async.interpreter.visible import Visible
    from pasta_async.lang import Diagnostic, Node
    from pasta_async.protocol import FinishReason
    from pasta_async.results import Span, ThreadRecord

__all__ = ["assemble", "diagnostics_since", "generation", "own_text"]


def assemble(threads: Sequence[Thread], *, visible: int | None = None) -> Document:
    """The document of an answer whose main thread is `threads[0]`.

    `visible`: characters of visible text after which a stop text ended the answer; what follows is left out.
    """
    nodes: Sequence[Node] = tuple(_with_chunks(threads))
    if visible is not None:
        nodes = tuple(_truncated(nodes, visible))
    count = sum(isinstance(node, Promise) for node in nodes)
    kept = [thread for thread in threads[: count + 1] if not thread.superseded]
    return Document(tuple(nodes), tuple(found for thread in kept for found in diagnostics_since(thread, 0)))


def diagnostics_since(thread: Thread, index: int) -> Iterator[Diagnostic]:
    """What a thread's parser found from then on; that its cap cut a chunk is no fault of what it says."""
    cut = thread.closed_by in ("budget", "interrupted")
    for found in thread.reader.parser.diagnostics[index:]:
        if not (cut and found.code is Code.ASYNC_UNCLOSED):
            yield replace(found, thread=thread.number)


def own_text(number: int, nodes: Sequence[Node]) -> str:
    """The text of one thread in the nodes of a document: main's outside of chunks, or a promise's chunk."""
    if number == 0:
        return "".join(node.text for node in nodes if isinstance(node, Text))
    promises = [node for node in nodes if isinstance(node, Promise)]
    chunk = promises[number - 1].chunk if number <= len(promises) else None
    return chunk.text if chunk else ""


def generation(
    threads: Sequence[Thread],
    visible: Visible,
    finish_reason: FinishReason,
    *,
    prompted: bool,
    critical_path: int,
    now: float,
    spans: Sequence[Span],
    parallel: bool,
    notes: tuple[str, ...],
) -> Generation:
    """The answer so far as users see it."""
    document = assemble(threads, visible=visible.length if visible.stopped else None)
    records = tuple(_records(threads, document))
    requests = [request for record in records for request in record.requests]
    completion = sum(record.tokens for record in records)
    discarded = sum(record.discarded_tokens for record in records)
    text_tokens = sum(thread.reader.text_tokens for thread in threads if thread.kept)
    if prompted:
        text_tokens = round((completion - discarded) * len(document.text) / max(1, len(document.format())))
    return Generation(
        text="".join(visible.shown),
        reasoning="".join(threads[0].reader.reasoning),
        document=document,
        threads=records,
        usage=Usage(
            prompt_tokens=requests[0].prompt_tokens if requests else 0,
            completion_tokens=completion,
            discarded_tokens=discarded,
            cached_tokens=sum(request.cached_tokens or 0 for request in requests),
            prefilled_tokens=sum(r.prompt_tokens - (r.cached_tokens or 0) for r in requests),
            requests=len(requests),
        ),
        critical_path=critical_path,
        text_tokens=text_tokens,
        finish_reason=finish_reason,
        matched_stop=visible.matched_stop,
        elapsed=now,
        timeline=tuple(spans),
        parallel=parallel,
        notes=notes,
    )


def _records(threads: Sequence[Thread], document: Document) -> Iterator[ThreadRecord]:
    promises = document.promises
    for thread in threads:
        if thread.number == 0:
            yield thread.record(own_text(0, document.nodes))
        else:
            chunk = promises[thread.number - 1].chunk if thread.number <= len(promises) else None
            yield thread.record(chunk.text if chunk else "")


def _with_chunks(threads: Sequence[Thread]) -> Iterator[Node]:
    """Main's nodes, with each promise's chunk right behind it."""
    number = 0
    for node in threads[0].reader.parser.nodes:
        if isinstance(node, Promise):
            number += 1
            thread = threads[number]
            if node.chunk is None and thread.closed_by is not None:
                body = cast("tuple[Text | Ignored, ...]", tuple(thread.reader.parser.nodes))
                yield replace(node, chunk=Chunk(body, closed_by=thread.closed_by))
                continue
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
