"""Putting tags into a text at given places, without touching its characters."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pasta_async.lang import Chunk, Document, Promise, Sync, Text
from pasta_async.training.corpus.tokens import in_tens

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pasta_async.lang import Node
    from pasta_async.training.corpus.tokens import CountTokens

__all__ = ["Piece", "place_tags"]


class Piece(NamedTuple):
    """A piece of a text that becomes a chunk: its characters from `start` to before `end`."""

    start: int
    end: int
    topic: str


def place_tags(text: str, pieces: Iterable[Piece], joins: Iterable[int], count: CountTokens) -> Document:
    """The text as a document: pieces (which do not overlap) as chunks, and a sync at each join.

    Estimates are the chunks' lengths by `count`, in tens. A join stands before a piece that starts at its
    place.
    """
    marks: list[tuple[int, Piece | None]] = [(piece.start, piece) for piece in pieces]
    marks += [(join, None) for join in joins]
    marks.sort(key=lambda mark: (mark[0], mark[1] is not None))
    return Document(tuple(_nodes(text, marks, count)))


def _nodes(text: str, marks: Iterable[tuple[int, Piece | None]], count: CountTokens) -> Iterator[Node]:
    done = 0
    for place, piece in marks:
        if text[done:place]:
            yield Text(text[done:place])
        done = place
        if piece is None:
            yield Sync()
        else:
            chunk, done = text[piece.start : piece.end], piece.end
            yield Promise(piece.topic, in_tens(count(chunk)), Chunk((Text(chunk),)))
    if text[done:]:
        yield Text(text[done:])
