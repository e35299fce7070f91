"""Views: the context and the output of each thread, by the one rule of PASTA-LANG.

A thread sees the document so far, minus the chunks that are not joined yet. The trainer's examples are made
from these views; the interpreter's requests are built as it reads, and tests hold them equal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from pasta_async.lang.document import (
    ASYNC_CLOSE,
    ASYNC_OPEN,
    PROMISE_CLOSE,
    PROMISE_OPEN,
    PROMISE_TOKENS,
    TAG_TOKENS,
    Chunk,
    Document,
    Node,
    Promise,
    Sync,
    Text,
    unquoted,
)

_PROMISE = re.compile(
    f'{re.escape(PROMISE_OPEN)}([^"]*)(?:{re.escape(PROMISE_TOKENS)}([^"]*))?{re.escape(PROMISE_CLOSE)}'
)


@dataclass(frozen=True, slots=True)
class Segment:
    """A tag token, or a run of text between tags."""

    text: str
    """Text for the tokenizer: literal tags are bare, since text is encoded as data."""
    is_tag: bool = False
    """True for one of `TAG_TOKENS`, to be encoded as its one id."""
    start: int = field(default=-1, compare=False)
    """Its place in `Document.text`, in characters; -1 where a reader does not see it."""


@dataclass(frozen=True, slots=True)
class View:
    """A stretch of decoding: the context of a thread, and the output that it wrote behind it."""

    thread: int
    """0 is the main thread, k the k-th promise of the document."""
    context: tuple[Segment, ...]
    """The answer so far, behind the prompt. Tags that the thread did not write itself are here."""
    target: tuple[Segment, ...]
    """All the output that the thread generated."""
    ends_answer: bool = False
    """True if end-of-text follows the target, as the last thing that main generates."""


def views(document: Document) -> list[View]:
    """Unroll a document into the views of its threads, in document order.

    The targets cover every generated token once, and no tag that the interpreter adds: `<async>`, and
    `</async>` where the writer did not close the chunk. A promise without a chunk has no view of its own.

    Each view has its whole context, so time and memory grow with the square of the number of chunks (2.3 s
    for 192 kB of promises): this is for training and measuring, and for templates, on texts that are known.
    Nothing that serves answers calls it on a text from outside.
    """
    result: list[View] = []
    joined: list[Segment] = []  # the written form up to the last sync
    main: list[Segment] = []  # main's output since then, without chunks
    written: list[Segment] = []  # the written form since then, with chunks
    threads: list[View] = []  # views of the chunks since then
    number = 0  # of the promise
    start = 0  # of the node, in characters of the visible text
    for node in document.nodes:
        bare = tuple(_bare(node, start))
        main += bare
        written += bare
        if isinstance(node, Promise):
            number += 1
            if node.chunk is not None:
                # The chunk's thread sees the joined text, and main's output up to its own promise.
                opened = segments(ASYNC_OPEN)
                body = tuple(_body(node.chunk, start))
                generated = body if node.chunk.closed_by == "writer" else body[:-1]
                threads.append(View(number, (*joined, *main, *opened), generated))
                written += (*opened, *body)
        elif isinstance(node, Sync):
            # Main's stretch ends with the sync. From here on every thread sees the chunks before it.
            result += (View(0, tuple(joined), tuple(main)), *threads)
            joined += written
            main = []
            written = []
            threads = []
        start += len(node.text)
    return [*result, View(0, tuple(joined), tuple(main), ends_answer=True), *threads]


def segments(source: str) -> tuple[Segment, ...]:
    """Split a tag into its tag tokens and the text between them; anything else is text."""
    if not source:
        return ()
    if source in TAG_TOKENS:
        return (Segment(source, is_tag=True),)
    if promise := _PROMISE.fullmatch(source):
        topic, tokens = promise.groups()
        estimate = () if tokens is None else (PROMISE_TOKENS, unquoted(tokens))
        # Tag tokens and texts alternate; an empty text has no segment.
        parts = (PROMISE_OPEN, unquoted(topic), *estimate, PROMISE_CLOSE)
        return tuple(Segment(part, is_tag=i % 2 == 0) for i, part in enumerate(parts) if part)
    return (Segment(source),)


def _bare(node: Node, start: int) -> Iterator[Segment]:
    """A node as main writes it: a promise without its chunk."""
    if isinstance(node, Text):
        yield Segment(node.text, start=start)
    else:
        yield from segments(node.source)


def _body(chunk: Chunk, start: int) -> Iterator[Segment]:
    for node in chunk.nodes:
        yield from _bare(node, start)
        start += len(node.text)
    yield Segment(ASYNC_CLOSE, is_tag=True)
