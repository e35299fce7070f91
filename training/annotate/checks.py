"""What a reply of an annotator must be, and how tags are put into a plain answer.

A reply is read as a written form. White space is not compared: a reply only decides where its tags stand
between the other characters, and the answer keeps its own white space, so that removing the tags of what is
accepted gives the original character for character. Estimates are counted anew, and tags are put into their
exact form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

from pasta_async.lang import Chunk, Code, Document, Promise, Sync, check, parse
from pasta_async.training.tokens import CountTokens, Mark, insert_tags, recount

_REPAIRED = frozenset({Code.TOKENS_BAD, Code.TOKENS_NOT_TENS, Code.TAG_FORM, Code.ASYNC_APART})
"""What writing estimates and tags anew puts right."""
_FENCE = re.compile(r"```\w*\n(.*)\n```", re.DOTALL)
_MAX_PROBLEMS = 8


class Problem(NamedTuple):
    """Why a reply is not accepted, for the annotator and for whoever reads the rejected records."""

    code: str
    message: str
    """It starts with the code, or with a place and the code."""


def check_reply(original: str, reply: str, count: CountTokens) -> Document | Sequence[Problem]:
    """Check an annotator's reply to a plain answer: its written form, perhaps in a code fence.

    Returns:
        The well-formed document with the original's text, estimates by `count`, or why the reply is not
        accepted.
    """
    reply = reply.strip()
    if not original.lstrip().startswith("```") and (fenced := _FENCE.fullmatch(reply)):
        reply = fenced[1]
    read = parse(reply)
    problems = [Problem(one.code.value, str(one)) for one in read.diagnostics if one.code not in _REPAIRED]
    if not problems and _solid(read.text) != _solid(original):
        problems = [_text_changed(original, read.text)]
    if problems:
        return problems[:_MAX_PROBLEMS]
    document = recount(insert_tags(original, _marks(read, original)), count)
    return [*_problems(document)][:_MAX_PROBLEMS] or document


def _problems(document: Document) -> Iterator[Problem]:
    """What is wrong with a document that has the right text."""
    for number, promise in enumerate(document.promises, 1):
        if promise.chunk is None or not promise.chunk.text:
            where = f"chunk {number} ({promise.topic})"
            yield Problem("chunk-empty", f"chunk-empty: {where} is empty (put tags around text, or none)")
    yield from (Problem(one.code.value, str(one)) for one in check(document.format()))


def _solid(text: str) -> str:
    """A text without its white space."""
    return "".join(text.split())


def _places(text: str) -> list[int]:
    """Where the characters of `_solid(text)` stand in a text."""
    return [place for place, character in enumerate(text) if not character.isspace()]


def _text_changed(original: str, text: str) -> Problem:
    wanted, found = _solid(original), _solid(text)
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(wanted, found, strict=False))
    same = sum(1 for _ in alike)
    start = max(0, same - 20)
    context = original[(_places(original) or [0])[start] :][:60]
    return Problem(
        "text-changed",
        f'text-changed: without its tags the reply is not the response; they differ near "{context}", where '
        f'the reply has "{found[start : same + 20]}" (white space aside; copy every character)',
    )


def _marks(read: Document, original: str) -> Iterator[Mark]:
    """Where the tags of a document stand in a text that has the same characters, white space aside."""
    places = _places(original)
    passed = 0
    for node in read.nodes:
        length = len(_solid(node.text))
        behind = places[passed - 1] + 1 if passed else 0
        start = places[passed] if length else behind
        end = places[passed + length - 1] + 1 if length else behind
        passed += length
        if isinstance(node, Sync):
            yield Mark(start, end, Sync())
        elif isinstance(node, Promise) and node.chunk:
            yield Mark(start, end, Promise(node.topic, None, Chunk()))
