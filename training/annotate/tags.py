"""Tags for a plain answer: at given places, or where an annotator's reply has them.

A reply is read as a written form. White space is not compared: a reply only decides where its tags stand
between the other characters, and the answer keeps its own white space, so that removing the tags of what is
accepted gives the original character for character. Estimates are counted anew, and tags are put into their
exact form.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from pasta_async.lang import Chunk, Code, Document, Promise, Sync, Text, check, parse
from pasta_async.training.annotate.siblings import sibling_references
from pasta_async.training.corpus.tokens import in_tens

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pasta_async.lang import Diagnostic, Node
    from pasta_async.training.corpus.tokens import CountTokens

__all__ = ["Piece", "Problem", "check_reply", "place_tags"]

_REPAIRED = frozenset(
    {Code.TOKENS_MISSING, Code.TOKENS_BAD, Code.TOKENS_NOT_TENS, Code.TAG_FORM, Code.ASYNC_APART}
)
"""What writing estimates and tags anew puts right."""
_FENCE = re.compile(r"```\w*\n(.*)\n```", re.DOTALL)
_MAX_PROBLEMS = 8


class Piece(NamedTuple):
    """A piece of a text that becomes a chunk: its characters from `start` to before `end`."""

    start: int
    end: int
    topic: str


class Problem(NamedTuple):
    """Why a reply is not accepted, for the annotator and for whoever reads the rejected records."""

    code: str
    message: str
    """It starts with the code, or with a place and the code."""


def place_tags(text: str, pieces: Iterable[Piece], joins: Iterable[int], count: CountTokens) -> Document:
    """The text as a document: pieces (which do not overlap) as chunks, and a sync at each join.

    Estimates are the chunks' lengths by `count`. A join stands before a piece that starts at its place.
    """
    marks: list[tuple[int, Piece | None]] = [(piece.start, piece) for piece in pieces]
    marks += [(join, None) for join in joins]
    marks.sort(key=lambda mark: (mark[0], mark[1] is not None))
    nodes: list[Node] = []
    done = 0
    for place, piece in marks:
        nodes += [Text(text[done:place])] if text[done:place] else []
        done = piece.end if piece else place
        if piece:
            chunk = text[place:done]
            nodes.append(Promise(piece.topic, in_tens(count(chunk)), Chunk((Text(chunk),))))
        else:
            nodes.append(Sync())
    nodes += [Text(text[done:])] if text[done:] else []
    return Document(tuple(nodes))


def check_reply(original: str, reply: str, count: CountTokens) -> Document | Sequence[Problem]:
    """Check an annotator's reply to an answer.

    Args:
        original: The answer, as plain text.
        reply: The answer in written form, perhaps in a code fence.
        count: Measures chunks for their estimates.

    Returns:
        The well-formed document with the original's text, or why the reply is not accepted.
    """
    reply = reply.strip()
    if not original.lstrip().startswith("```") and (fenced := _FENCE.fullmatch(reply)):
        reply = fenced[1]
    read = parse(reply)
    problems = [_problem(one) for one in read.diagnostics if one.code not in _REPAIRED]
    if not problems and "".join(read.text.split()) != "".join(original.split()):
        problems = [_text_changed(original, read.text)]
    if problems:
        return problems[:_MAX_PROBLEMS]
    document = _project(read, original, count)
    return [*_problems(document)][:_MAX_PROBLEMS] or document


def _problem(diagnostic: Diagnostic) -> Problem:
    return Problem(diagnostic.code.value, str(diagnostic))


def _problems(document: Document) -> Iterator[Problem]:
    """What is wrong with a document that has the right text."""
    for number, promise in enumerate(document.promises, 1):
        if promise.chunk is None or not promise.chunk.text:
            where = f"chunk {number} ({promise.topic})"
            yield Problem("chunk-empty", f"chunk-empty: {where} is empty (put tags around text, or none)")
    for number, phrase in sibling_references(document):
        where = f"chunk {number} ({document.promises[number - 1].topic})"
        yield Problem(
            "sibling-reference",
            f'sibling-reference: {where} says "{phrase}", which refers to a chunk that its writer cannot see '
            "(put both into one chunk, or leave this one bare behind a <sync/>)",
        )
    yield from map(_problem, check(document.format()))


def _text_changed(original: str, text: str) -> Problem:
    wanted, found = "".join(original.split()), "".join(text.split())
    shorter = min(len(wanted), len(found))
    place = next((k for k in range(shorter) if wanted[k] != found[k]), shorter)
    places = _places(original)
    context = original[places[max(0, place - 20)] if places else 0 :][:60]
    return Problem(
        "text-changed",
        f'text-changed: without its tags the reply is not the response; they differ near "{context}", where '
        f'the reply has "{found[max(0, place - 20) : place + 20]}" (white space aside; copy every character)',
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
