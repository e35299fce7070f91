"""Views of documents, by example and against an oracle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hypothesis import given

from pasta_async.lang import (
    ASYNC_CLOSE,
    ASYNC_OPEN,
    Document,
    Promise,
    Segment,
    Sync,
    Text,
    parse,
    segments,
    views,
)
from tests.helpers.language_texts import canonical_documents, texts

CAUSES = '<promise topic="causes" tokens="60"/>'


def test_segments_are_tag_tokens_and_the_text_between_them() -> None:
    assert segments(CAUSES) == (
        Segment('<promise topic="', is_tag=True),
        Segment("causes"),
        Segment('" tokens="', is_tag=True),
        Segment("60"),
        Segment('"/>', is_tag=True),
    )
    assert segments(Promise("a", None).source) == (
        Segment('<promise topic="', is_tag=True),
        Segment("a"),
        Segment('"/>', is_tag=True),
    )
    assert segments('<promise topic="" tokens=""/>') == (
        Segment('<promise topic="', is_tag=True),
        Segment('" tokens="', is_tag=True),
        Segment('"/>', is_tag=True),
    )
    assert segments(ASYNC_OPEN) == (Segment(ASYNC_OPEN, is_tag=True),)
    assert segments("<sync />") == (Segment("<sync />"),)
    assert segments("") == ()


class Atom(NamedTuple):
    """A segment of the written form, with who wrote it when."""

    segment: Segment
    thread: int
    round: int
    generated: bool


def atoms(document: Document) -> Iterator[Atom]:
    """The whole written form; each chunk's tags belong to its thread."""
    thread = joins = 0
    for node in document.nodes:
        source = (Segment(node.text),) if isinstance(node, Text) else segments(node.source)
        yield from (Atom(part, 0, joins, True) for part in source)
        if isinstance(node, Promise):
            thread += 1
            if node.chunk:
                yield Atom(Segment(ASYNC_OPEN, is_tag=True), thread, joins, False)
                for inner in node.chunk.nodes:
                    source = (Segment(inner.text),) if isinstance(inner, Text) else segments(inner.source)
                    yield from (Atom(part, thread, joins, True) for part in source)
                closed = Segment(ASYNC_CLOSE, is_tag=True)
                yield Atom(closed, thread, joins, node.chunk.closed_by == "writer")
        joins += isinstance(node, Sync)


def check_views(document: Document) -> None:
    everything = list(atoms(document))
    unrolled = views(document)
    for view in unrolled:
        for part in (*view.context, *view.target):
            assert part.start < 0 or document.text.startswith(part.text, part.start)
    for thread in {view.thread for view in unrolled}:
        targets = [part for view in unrolled if view.thread == thread for part in view.target]
        assert targets == [atom.segment for atom in everything if atom.thread == thread and atom.generated]
    mains = [view for view in unrolled if view.thread == 0]
    assert len(mains) == 1 + sum(isinstance(node, Sync) for node in document.nodes)
    for joins, view in enumerate(mains):
        assert list(view.context) == [atom.segment for atom in everything if atom.round < joins]
    for view in unrolled:
        if view.thread:
            indexes = [index for index, atom in enumerate(everything) if atom.thread == view.thread]
            joins = everything[indexes[0]].round
            seen = [
                atom.segment
                for index, atom in enumerate(everything)
                if atom.round < joins
                or (index < indexes[0] and atom.thread == 0)
                or (index in indexes and index < indexes[-1] and not atom.generated)
            ]
            assert list(view.context) == seen


@given(canonical_documents())
def test_views_cover_what_was_generated_once_and_nothing_that_was_forced(document: Document) -> None:
    check_views(document)


@given(texts)
def test_views_of_whatever_was_read(text: str) -> None:
    check_views(parse(text))
