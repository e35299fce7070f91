"""Put the threads' nodes together into one document."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from pasta_async.lang import Chunk, Code, Document, Ignored, Promise, Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pasta_async.interpreter.threads import Thread
    from pasta_async.lang import Diagnostic, Node

__all__ = ["assemble", "found_in"]


def assemble(threads: Sequence[Thread], *, visible: int | None = None) -> Document:
    """The document of an answer whose main thread is `threads[0]`.

    `visible`: characters of visible text after which a stop text ended the answer; what follows is left out.
    """
    nodes: Sequence[Node] = tuple(_kept(threads))
    if visible is not None:
        nodes = tuple(_truncated(nodes, visible))
    return Document(nodes, tuple(_diagnostics(threads)))


def found_in(thread: Thread, since: int) -> Iterator[Diagnostic]:
    """What a thread's parser found from then on; that its cap cut a chunk is no fault of what it says."""
    cut = thread.closed_by in ("budget", "interrupted")
    for found in thread.parser.diagnostics[since:]:
        if not (cut and found.code is Code.ASYNC_UNCLOSED):
            yield replace(found, thread=thread.number)


def _diagnostics(threads: Sequence[Thread]) -> Iterator[Diagnostic]:
    for thread in threads:
        if thread.finish_reason == "superseded":
            continue  # what it wrote is not in the document
        yield from found_in(thread, 0)


def _kept(threads: Sequence[Thread]) -> Iterator[Node]:
    """Main's nodes, with each promise's chunk right behind it."""
    number = 0
    for node in threads[0].parser.nodes:
        if isinstance(node, Promise):
            number += 1
            thread = threads[number]
            if node.chunk is None and thread.closed_by is not None:
                body = cast("tuple[Text | Ignored, ...]", tuple(thread.parser.nodes))
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
