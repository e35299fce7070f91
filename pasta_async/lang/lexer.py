"""From a text to its tags and the text between them; and the attributes of a promise tag.

A tag is `<`, an optional `/`, `promise`, `async` or `sync`, then white space, `/` or `>`, and all up to the
first `>` that stands in no quotes behind a `=`, or ends a `/>`. It holds no second `<` and is at most
`MAX_TAG` characters long. Backslashes behind the `<` make it text, which is written with one backslash more
than is meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from pasta_async.lang.diagnostics import Code
from pasta_async.lang.document import MAX_TAG, TAG_REST, TAG_START, Promise, unquoted


class Place(NamedTuple):
    """A place in a text."""

    offset: int
    """Characters before it."""
    line: int
    """From 1."""
    column: int
    """From 1."""


class Position:
    """The place behind all text that was read."""

    def __init__(self) -> None:
        self._offset = 0
        self._line = 1
        self._line_start = 0

    @property
    def place(self) -> Place:
        """The position at which the text goes on."""
        return Place(self._offset, self._line, self._offset - self._line_start + 1)

    def advance(self, text: str) -> None:
        """Read more text."""
        if "\n" in text:
            self._line += text.count("\n")
            self._line_start = self._offset + text.rindex("\n") + 1
        self._offset += len(text)


class Tag(NamedTuple):
    """A complete tag."""

    source: str
    name: str
    closing: bool
    """True if it starts with `</`."""
    rest: str
    """Text between the name and `>`."""
    place: Place


class Broken(NamedTuple):
    """The place of a tag that is broken off, and so is text like any other; that text follows."""

    code: Code
    place: Place


Lexeme = str | Tag | Broken

_CANDIDATE = re.compile(f"{TAG_START}(>?)")
_PREFIXES = "|".join(name[:size] for name in ("promise", "async", "sync") for size in range(len(name), 0, -1))
_UNFINISHED = re.compile(rf"</?(?:(?:promise|async|sync)[\s/]{TAG_REST}|{_PREFIXES})")


def lex(text: str) -> Iterator[Lexeme]:
    """Cut a text into tags and the text between them, in time linear in its length."""
    done = walked = 0
    position = Position()
    for found in _CANDIDATE.finditer(text):
        start, end = found.span()
        escapes, slash, name, rest, complete = found.groups()
        if end == len(text) and not complete:
            break  # the text ends inside of it
        position.advance(text[walked:start])
        walked = start
        if not complete or end - start - len(escapes) > MAX_TAG:
            if not escapes:
                yield Broken(Code.TAG_BROKEN, position.place)
        elif escapes:
            yield text[done : start + 1]
            done = start + 2  # one backslash is dropped; the rest is text like any other
        else:
            if start > done:
                yield text[done:start]
            yield Tag(found[0], name, slash != "", rest, position.place)
            done = end
    last = text.rfind("<", done)
    if last >= 0 and _UNFINISHED.fullmatch(text, last):
        position.advance(text[walked:last])
        yield Broken(Code.TAG_CUT if len(text) - last < MAX_TAG else Code.TAG_BROKEN, position.place)
    if done < len(text):
        yield text[done:]


# List markers ---------------------------------------------------------------------------------------------

_MARKER = re.compile(r"\s*(?:\n[ \t]*(?:[-*+\u2022]|\d{1,3}[.)]?)[ \t]*)?\Z")
_LONGEST_MARKER = 32


def split_marker(text: str) -> tuple[str, str]:
    r"""Part a text from white space, and what begins a list's next item, at its end: `"\n\n3. "`.

    What stands before that part is in no such part of a longer text: each beginning of one is one.
    """
    found = _MARKER.search(text, max(0, len(text) - _LONGEST_MARKER))
    at = found.start() if found else len(text)
    return text[:at], text[at:]


# Promises -------------------------------------------------------------------------------------------------

MAX_ESTIMATE = 10**6
"""Estimates above this are taken for noise."""

_EXACT = re.compile(r'<promise(?: topic="[^"]*")?(?: tokens="[^"]*")?/>')
_ATTRIBUTE = re.compile(
    r"""\s*(?P<name>[A-Za-z_][\w.:-]*)\s*=\s*
    (?:"(?P<double>[^"]*)"
    |'(?P<single>[^']*)'
    |\u201c(?P<double_typographic>[^\u201d]*)\u201d
    |\u2018(?P<single_typographic>[^\u2019]*)\u2019
    |(?P<bare>[^\s"'=\u201c\u201d\u2018\u2019]+))""",
    re.VERBOSE,
)
_NAMES = frozenset({"topic", "tokens"})


def read_promise(tag: Tag) -> tuple[Promise | None, list[Code]]:
    """Read a promise tag leniently, and say what is wrong with it; None if the tag is to be ignored."""
    attributes = read_attributes(tag.rest)
    if isinstance(attributes, Code):
        return None, [attributes]
    promise, codes = make_promise(tag.source, attributes)
    return promise, codes if _EXACT.fullmatch(tag.source) else [Code.TAG_FORM, *codes]


def make_promise(source: str, attributes: dict[str, str]) -> tuple[Promise, list[Code]]:
    """A promise with these attributes, and what is wrong with them."""
    codes: list[Code] = []
    topic = attributes.get("topic", "")
    words = len(topic.split())
    if words == 0 or words > 3:
        codes.append(Code.TOPIC_LONG if words else Code.TOPIC_MISSING)
    tokens, wrong = _read_tokens(attributes.get("tokens"))
    if wrong:
        codes.append(wrong)
    return Promise(topic, tokens, source=source), codes


def read_attributes(rest: str) -> dict[str, str] | Code:
    """Read `name="value"` pairs, in any order and with any quotes, or say why they cannot be read."""
    rest = rest.rstrip()
    stop = len(rest.removesuffix("/").rstrip())
    values: dict[str, str] = {}
    position = 0
    while position < stop:
        found = _ATTRIBUTE.match(rest, position, stop)
        if not found or found["name"] in values:
            return Code.ATTRIBUTES_BAD
        values[found["name"]] = unquoted(found[found.lastgroup or "bare"])
        position = found.end()
    return values if values.keys() <= _NAMES else Code.ATTRIBUTE_UNKNOWN


def _read_tokens(value: str | None) -> tuple[int | None, Code | None]:
    if not value:  # left out, or empty
        return None, None
    digits = value.strip().lstrip("0")
    readable = digits.isascii() and digits.isdecimal() and len(digits) <= len(str(MAX_ESTIMATE))
    if not readable or (number := int(digits)) > MAX_ESTIMATE:
        return None, Code.TOKENS_BAD
    rounded = -(-number // 10) * 10
    return rounded, None if rounded == number else Code.TOKENS_NOT_TENS
