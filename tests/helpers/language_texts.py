"""Texts and documents of PASTA-LANG for property tests."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from hypothesis import strategies as st

from pasta_async.lang import (
    ASYNC_CLOSE,
    MAX_TAG,
    TAG_TOKENS,
    Chunk,
    ClosedBy,
    Document,
    Ignored,
    Node,
    Promise,
    Reading,
    Sync,
    Text,
    ThreadParser,
)

PIECES = (
    *TAG_TOKENS,
    *TAG_TOKENS[3:],
    '<promise topic="a" tokens="10"/>',
    '<promise topic="a" tokens="10"/><async>',
    "<promise topic='b c d e' tokens=15>",
    "<promise/>",
    '<promise topic="a" after="b"/>',
    '<promise topic="a > b" tokens="10"/>',
    "<promise topic='a > \u201cb\u201d' tokens=\u201c10>",
    "<promise topic=",
    '<async topic="a">',
    "<async/>",
    "</async >",
    "</promise>",
    "<sync>",
    "<\\sync/>",
    "<\\\\async>",
    "<\\",
    "<pro",
    "</",
    "<",
    ">",
    "\\",
    " ",
    "\n",
    "\u00a0",
    "word ",
    "\u4e16\U0001f30d",
    f"<sync{' ' * (MAX_TAG - 7)}/>",
    f"<sync{' ' * (MAX_TAG - 6)}/>",
    f"<\\sync{' ' * (MAX_TAG - 7)}/>",
    '<promise topic="' + "x" * MAX_TAG,
)
texts = st.lists(
    st.one_of(st.sampled_from(PIECES), st.text("<>/\\ \n=\"'psync\u201d", max_size=4)), max_size=14
).map("".join)
_topics = st.one_of(st.sampled_from(PIECES), texts, st.sampled_from(["a > b", 'so "called"', "R&D &gt; x"]))
_promise_ids = st.tuples(_topics, st.sampled_from(["10", "", "x", "<"])).map(
    lambda values: [
        (TAG_TOKENS[0], True),
        (values[0], False),
        (TAG_TOKENS[1], True),
        (values[1], False),
        (TAG_TOKENS[2], True),
    ]
)
_single = st.one_of(
    st.tuples(st.sampled_from(TAG_TOKENS), st.just(True)), st.tuples(_topics, st.just(False))
).map(lambda piece: [piece])
token_streams = st.lists(_single | _promise_ids, max_size=10).map(
    lambda runs: [piece for run in runs for piece in run]
)
"""Output of a trained model: text, and tag tokens (True) that come as ids."""


topics = st.text(max_size=20)
estimates = st.none() | st.integers(1, 100_000).map(lambda tens: tens * 10)
plain_texts = texts.filter(bool).map(Text)
promise_tags = st.builds(Promise, topics, estimates).map(lambda promise: promise.source)
ignored_tags = st.sampled_from(("</promise>", "</sync>", "</async >", "<async/>", "<sync a/>")).map(Ignored)
ignored_in_chunks = st.one_of(
    ignored_tags, promise_tags.map(Ignored), st.sampled_from((Sync().source, "<async>")).map(Ignored)
)


def merged(nodes: Iterable[Node]) -> list[Node]:
    result: list[Node] = []
    for node in nodes:
        last = result[-1] if result else None
        if isinstance(node, Text) and isinstance(last, Text):
            result[-1] = Text(last.text + node.text)
        else:
            result.append(node)
    return result


closers = st.sampled_from(("writer", "writer", "budget", "end", "interrupted"))


def _chunk(nodes: list[Text | Ignored], closed_by: ClosedBy) -> Chunk:
    return Chunk(
        tuple(node for node in merged(nodes) if isinstance(node, Text | Ignored)), closed_by=closed_by
    )


chunks = st.builds(_chunk, st.lists(st.one_of(plain_texts, ignored_in_chunks), max_size=3), closers)
kept = st.builds(Promise, topics, estimates, chunks)
bare = st.builds(Promise, topics, estimates)


@st.composite
def canonical_documents(draw: st.DrawFn) -> Document:
    """Documents made by hand, as docs/language.md allows them."""
    nodes: list[Node] = []
    is_open = False
    for node in draw(
        st.lists(st.one_of(plain_texts, kept, kept, bare, ignored_tags, st.just(Sync())), max_size=8)
    ):
        nodes.append(Ignored("<sync/>") if isinstance(node, Sync) and not is_open else node)
        is_open = isinstance(node, Promise) or (is_open and not isinstance(node, Sync))
    return Document(tuple(merged(nodes)))


# What reading them comes to -------------------------------------------------------------------------------


def outcome(parser: ThreadParser, pieces: Iterable[tuple[str, bool]]) -> tuple[object, ...]:
    """Readings, nodes and diagnostics of a thread's stream: text, and tag tokens (True)."""
    readings: list[Reading] = []
    for piece, is_tag in pieces:
        readings += parser.feed_tag(piece) if is_tag else parser.feed_text(piece)
    readings += parser.close()
    assert "" not in readings
    joined: list[Reading] = []
    for is_text, group in groupby(readings, lambda reading: isinstance(reading, str)):
        run = [*group]
        joined += ["".join(map(str, run))] if is_text else run
    return joined, parser.nodes, parser.diagnostics


def closing(document: Document) -> str:
    """The tag that `format` adds to a text that ends inside a chunk."""
    chunks = [promise.chunk for promise in document.promises if promise.chunk]
    return ASYNC_CLOSE if any(chunk.closed_by == "end" for chunk in chunks) else ""
