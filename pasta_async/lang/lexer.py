"""From pieces of text to tags and the text between them, however it was cut; and what a promise tag says.

A tag is `<`, an optional `/`, `promise`, `async` or `sync`, then white space, `/` or `>`, and all up to the
first `>` that stands in no quotes behind a `=`, or ends a `/>`. It holds no second `<` and is at most
`MAX_TAG` characters long. Backslashes behind the `<` make it text, which is written with one backslash more
than is meant.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pasta_async.lang.diagnostics import Code
from pasta_async.lang.document import MAX_TAG, TAG_REST, TAG_START, Promise, unquoted


class Place(NamedTuple):
    """Where something starts. Among lexemes: a tag starts there that is broken off, and so is text."""

    offset: int
    line: int
    column: int


class Tag(NamedTuple):
    """A complete tag."""

    source: str
    name: str
    closing: bool
    """Whether it starts with `</`."""
    rest: str
    """What stands between the name and `>`."""
    place: Place
    end: int
    """Offset just behind it."""
    values: tuple[str, ...] | None = None
    """What stood between a promise's tag ids: its topic, then its tokens. None for a tag read from text."""


Lexeme = str | Tag | Place

_CANDIDATE = re.compile(f"{TAG_START}(>?)")
_PREFIXES = "|".join(name[:size] for name in ("promise", "async", "sync") for size in range(len(name), 0, -1))
_UNFINISHED = re.compile(rf"<(\\*+)/?((?:promise|async|sync)[\s/]{TAG_REST}|{_PREFIXES}|)")


class Lexer:
    """Cuts what is fed into lexemes and holds back only what may still become a tag.

    At most `MAX_TAG` characters are held, so the work is linear in the text for any cut.
    """

    __slots__ = ("_line", "_line_start", "_shown", "_walked", "held", "offset")

    def __init__(self) -> None:
        self.held: str = ""
        """The beginning of what may become a tag, or an escaped one (then with one backslash)."""
        self.offset: int = 0
        """Characters fed so far."""
        self._shown = 0  # how many held characters came out as text already: 1 in an escape
        self._line = 1
        self._line_start = 0
        self._walked = 0  # index in the buffer up to which lines are counted

    @property
    def place(self) -> Place:
        """Where what is held starts; behind what was fed, if nothing is."""
        start = self.offset - len(self.held)
        return Place(start, self._line, start - self._line_start + 1)

    def skip(self, piece: str) -> None:
        """Count a piece that needs no lexing; nothing is held."""
        if "\n" in piece:
            self._line += piece.count("\n")
            self._line_start = self.offset + piece.rindex("\n") + 1
        self.offset += len(piece)

    def drop(self) -> Place:
        """Forget what is held; returns the place where it starts."""
        start, self.held = self.place, ""
        return start

    def feed(self, piece: str) -> list[Lexeme]:
        """Cut one more piece."""
        base = self.offset - len(self.held)
        buffer = self.held + piece
        self.offset += len(piece)
        self._walked = 0
        lexemes, done = self._complete(buffer, base)
        self._hold(buffer, base, done, buffer.rfind("<", done - self._shown), lexemes)
        return lexemes

    def close(self) -> tuple[str, Place | None, Place]:
        """End the text; gives what was held, where that starts if it is half a tag, and where all ends."""
        held, start = self.held, self.place
        found = _UNFINISHED.fullmatch(held)
        cut = start if found and found[2] and not found[1] else None
        text, self.held, self._shown, self._walked = held[self._shown :], "", 0, 0
        return text, cut, self._place(held, start.offset, len(held))

    def _complete(self, buffer: str, base: int) -> tuple[list[Lexeme], int]:
        """Take the tags that are complete (or broken) and the text before them; also the index behind."""
        lexemes: list[Lexeme] = []
        done = self._shown
        for found in _CANDIDATE.finditer(buffer):
            start, end = found.span()
            escapes, slash, name, rest, complete = found.groups()
            if end == len(buffer) and not complete:
                break
            if not complete or end - start - len(escapes) > MAX_TAG:
                if not escapes:
                    lexemes.append(self._place(buffer, base, start))
            elif escapes:
                if start >= done:
                    lexemes.append(buffer[done : start + 1])
                done = start + 2  # one backslash is dropped; the rest is text like any other
            else:
                if start > done:
                    lexemes.append(buffer[done:start])
                place = self._place(buffer, base, start)
                lexemes.append(Tag(found[0], name, slash != "", rest, place, base + end))
                done = end
        return lexemes, done

    def _hold(self, buffer: str, base: int, done: int, last: int, lexemes: list[Lexeme]) -> None:
        """Hold the end of the buffer from its last `<` if it may become a tag; what comes before is text."""
        unfinished = _UNFINISHED.fullmatch(buffer, last) if last >= 0 else None
        escapes = len(unfinished[1]) if unfinished else 0
        if unfinished and len(buffer) - last - escapes >= MAX_TAG:
            if not escapes:
                lexemes.append(self._place(buffer, base, last))
            unfinished = None
        if unfinished is None:
            self.held, text, self._shown = "", buffer[done:], 0
        elif escapes:  # whatever follows, `<` and all backslashes but one are text
            self.held = "<\\" + buffer[last + escapes + 1 :]
            text, self._shown = buffer[done : last + escapes], 1
        else:
            self.held, text, self._shown = buffer[last:], buffer[done:last], 0
        self._place(buffer, base, len(buffer) - len(self.held))
        if text:
            lexemes.append(text)

    def _place(self, buffer: str, base: int, index: int) -> Place:
        """The place of an index in the buffer; indexes only grow within one buffer."""
        lines = buffer.count("\n", self._walked, index)
        if lines:
            self._line += lines
            self._line_start = base + buffer.rindex("\n", self._walked, index) + 1
        self._walked = index
        return Place(base + index, self._line, base + index - self._line_start + 1)


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
    """Read a promise tag, leniently where it was written as text, and say what is wrong with it.

    There is no promise if the tag is to be ignored.
    """
    attributes = read_attributes(tag.rest) if tag.values is None else _named(tag.values)
    if isinstance(attributes, Code):
        return None, [attributes]
    codes: list[Code] = [] if _EXACT.fullmatch(tag.source) else [Code.TAG_FORM]
    topic = attributes.get("topic", "")
    words = len(topic.split())
    if words == 0 or words > 3:
        codes.append(Code.TOPIC_LONG if words else Code.TOPIC_MISSING)
    tokens, wrong = _read_tokens(attributes.get("tokens"))
    if wrong:
        codes.append(wrong)
    return Promise(topic, tokens, source=tag.source), codes


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


def _named(values: tuple[str, ...]) -> dict[str, str] | Code:
    return dict(zip(("topic", "tokens"), values, strict=False)) if len(values) < 3 else Code.ATTRIBUTES_BAD


def _read_tokens(value: str | None) -> tuple[int | None, Code | None]:
    if not value:  # left out, or empty
        return None, None
    digits = value.strip().lstrip("0")
    readable = digits.isascii() and digits.isdecimal() and len(digits) <= len(str(MAX_ESTIMATE))
    if not readable or (number := int(digits)) > MAX_ESTIMATE:
        return None, Code.TOKENS_BAD
    rounded = -(-number // 10) * 10
    return rounded, None if rounded == number else Code.TOKENS_NOT_TENS
