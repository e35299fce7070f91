"""What an annotator's reply must be, and what is made of it.

The reply is read as a written form. White space is not compared: a reply's only say is where its tags stand
between the other characters, and the answer keeps its own white space, so that removing the tags of what is
accepted gives the original character for character. Estimates are counted anew, and tags are put into their
exact form.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pasta_async.lang import Code, Promise, Sync, Text, check, parse
from pasta_async.training.annotate.placing import Piece, place_tags
from pasta_async.training.annotate.siblings import sibling_references

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pasta_async.lang import Document
    from pasta_async.training.corpus.tokens import CountTokens

__all__ = ["Checked", "check_reply"]

_REPAIRED = frozenset(
    {Code.TOKENS_MISSING, Code.TOKENS_BAD, Code.TOKENS_NOT_TENS, Code.TAG_FORM, Code.ASYNC_APART}
)
"""What writing estimates and tags anew puts right."""

_FENCE = re.compile(r"```\w*\n(.*)\n```", re.DOTALL)
_MOST = 8
"""Reasons that are told; more would not help anyone."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A reply that passed, or why it did not."""

    document: Document | None
    """Well-formed, with the original's text; None if the reply failed."""
    reasons: tuple[str, ...] = ()
    """``code: words``, for the annotator and for whoever reads what was put aside."""


def check_reply(original: str, reply: str, count: CountTokens) -> Checked:
    """Check an annotator's reply to an answer.

    Args:
        original: The answer, as plain text.
        reply: What came back: the answer in written form, perhaps in a code fence.
        count: Measures chunks for their estimates.
    """
    reply = reply.strip()
    if not original.lstrip().startswith("```") and (fenced := _FENCE.fullmatch(reply)):
        reply = fenced[1]
    read = parse(reply)
    if reasons := [str(d) for d in read.diagnostics if d.code not in _REPAIRED]:
        return _failed(reasons)
    if difference := _difference(original, read.text):
        return _failed([difference])
    document = _project(read, original, count)
    return _failed(reasons) if (reasons := list(_faults(document))) else Checked(document)


def _failed(reasons: list[str]) -> Checked:
    return Checked(None, tuple(reasons[:_MOST]))


def _faults(document: Document) -> Iterator[str]:
    """What is wrong with a document that has the right text."""
    for number, promise in enumerate(document.promises, 1):
        if promise.chunk is None or not promise.chunk.text:
            yield f"chunk-empty: chunk {number} ({promise.topic}) is empty (put tags around text, or none)"
    for number, words in sibling_references(document):
        topic = document.promises[number - 1].topic
        yield (
            f'sibling-reference: chunk {number} ({topic}) says "{words}", which refers to a chunk that its '
            "writer cannot see (put both into one chunk, or leave this one bare behind a <sync/>)"
        )
    yield from map(str, check(document.format()))


def _difference(original: str, text: str) -> str:
    """Where two texts first differ in more than white space; empty if they do not."""
    wanted, found = "".join(original.split()), "".join(text.split())
    if wanted == found:
        return ""
    place = next((k for k, (a, b) in enumerate(zip(wanted, found, strict=False)) if a != b), None)
    place = min(len(wanted), len(found)) if place is None else place
    places = _places(original)
    context = original[places[max(0, place - 20)] if places else 0 :][:60]
    return (
        f'text-changed: without its tags the reply is not the response; they differ near "{context}", where '
        f'the reply has "{found[max(0, place - 20) : place + 20]}" (white space aside; copy every character)'
    )


def _places(text: str) -> list[int]:
    """Where the characters of a text stand that are not white space."""
    return [place for place, character in enumerate(text) if not character.isspace()]


def _project(read: Document, original: str, count: CountTokens) -> Document:
    """The original with the tags of a document that has the same characters, white space aside."""
    places = _places(original)
    pieces: list[Piece] = []
    joins: list[int] = []
    passed = 0
    for node in read.nodes:
        behind = places[passed - 1] + 1 if passed else 0
        if isinstance(node, Sync):
            joins.append(behind)
        elif isinstance(node, Text):
            passed += len("".join(node.text.split()))
        elif isinstance(node, Promise) and node.chunk is not None:
            length = len("".join(node.chunk.text.split()))
            start = places[passed] if length else behind
            passed += length
            pieces.append(Piece(start, places[passed - 1] + 1 if length else start, node.topic))
    return place_tags(original, pieces, joins, count)
