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
    """Where it begins in `Document.text`, in characters; -1 for what a reader does not see."""


@dataclass(frozen=True, slots=True)
class View:
    """A stretch of decoding: what a thread had in its context, and what it then wrote."""

    thread: int
    """0 is the main thread, k the k-th promise of the document."""
    context: tuple[Segment, ...]
    """The answer so far (the prompt comes before it); what was forced is here."""
    target: tuple[Segment, ...]
    """Everything that the thread generated."""
    ends_answer: bool = False
    """True if end-of-text follows the target, as the last thing that main generates."""


def views(document: Document) -> list[View]:
    """Unroll a document into the views of its threads, in document order.

    Covers every generated token once and no forced one (`<async>`; `</async>` where something else than the
    writer closed the chunk). A promise that no chunk keeps has no view of its own.

    Each view has its whole context, so time and memory grow with the square of the number of chunks (2.3 s
    for 192 kB of promises): this is for training and measuring, on answers that are known. Nothing that
    serves answers calls it on a text from outside.
    """
    result: list[View] = []
    joined: list[Segment] = []  # the written form up to the last join
    main: list[Segment] = []  # what main wrote since, bare promises
    written: list[Segment] = []  # the same with the chunks in place
    threads: list[View] = []
    number = start = 0
    for node in document.nodes:
        bare = tuple(_bare(node, start))
        main += bare
        written += bare
        if isinstance(node, Promise):
            number += 1
            if node.chunk is not None:
                opened = (*segments(node.gap), *segments(node.chunk.opened))
                body = tuple(_body(node.chunk, start + len(node.gap)))
                generated = body if node.chunk.closed_by == "writer" else body[:-1]
                threads.append(View(number, (*joined, *main, *opened), generated))
                written += (*opened, *body)
        elif isinstance(node, Sync):
            result += (View(0, tuple(joined), tuple(main)), *threads)
            joined += written
            main, written, threads = [], [], []
        start += len(node.text)
    return [*result, View(0, tuple(joined), tuple(main), ends_answer=True), *threads]


def segments(source: str) -> tuple[Segment, ...]:
    """Split a tag into its tag tokens and the text between them; anything else is text."""
    if not source:
        return ()
    if source in TAG_TOKENS:
        return (Segment(source, is_tag=True),)
    if found := _PROMISE.fullmatch(source):
        topic, tokens = found.groups()
        estimate = () if tokens is None else (PROMISE_TOKENS, unquoted(tokens))
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
