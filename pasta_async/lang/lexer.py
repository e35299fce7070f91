"""Cuts a text into its tags and the text between them, and reads the attributes of a promise tag.

A tag is `<`, an optional `/`, `promise`, `async` or `sync`, then white space, `/` or `>`, and all up to its
end: the first `/>`, or the first `>` outside of quotes that follow a `=`. It holds no second `<` and is at
most `MAX_TAG` characters long. With backslashes behind the `<` it is text, which is read without one of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from pasta_async.lang.diagnostics import Code
from pasta_async.lang.document import MAX_TAG, TAG_REST, TAG_START, Promise, rounded_estimate, unquoted


class Tag(NamedTuple):
    """A complete tag."""

    source: str
    name: str
    closing: bool
    """True if it starts with `</`."""
    rest: str
    """Text between the name and `>`."""
    offset: int
    """Number of characters before it."""


class Broken(NamedTuple):
    """The place of a broken tag. A broken tag is text, which follows as a lexeme of its own."""

    code: Code
    offset: int


Lexeme = str | Tag | Broken

_CANDIDATE = re.compile(f"{TAG_START}(>?)")
_PREFIXES = "|".join(name[:size] for name in ("promise", "async", "sync") for size in range(len(name), 0, -1))
_UNFINISHED = re.compile(rf"</?(?:(?:promise|async|sync)[\s/]{TAG_REST}|{_PREFIXES})")


def lex(text: str) -> Iterator[Lexeme]:
    """Cut a text into tags and the text between them, in time linear in its length."""
    done = 0  # characters that have come out
    for candidate in _CANDIDATE.finditer(text):
        start, end = candidate.span()
        escapes, slash, name, rest, complete = candidate.groups()
        if end == len(text) and not complete:
            break  # the text ends inside of the tag
        # A candidate that a `<` or its length breaks off, and one with backslashes, is text.
        if not complete or end - start - len(escapes) > MAX_TAG:
            if not escapes:
                yield Broken(Code.TAG_BROKEN, start)
        elif escapes:
            yield text[done : start + 1]
            done = start + 2  # one backslash is dropped; the rest comes out with the text behind it
        else:
            if start > done:
                yield text[done:start]
            yield Tag(candidate[0], name, slash != "", rest, start)
            done = end
    # The text may end inside of a tag, maybe inside of its name.
    last = text.rfind("<", done)
    if last >= 0 and _UNFINISHED.fullmatch(text, last):
        yield Broken(Code.TAG_CUT if len(text) - last < MAX_TAG else Code.TAG_BROKEN, last)
    if done < len(text):
        yield text[done:]


# List markers ---------------------------------------------------------------------------------------------

_MARKER_AT_END = re.compile(r"\s*(?:\n[ \t]*(?:[-*+\u2022]|\d{1,3}[.)]?)[ \t]*)?\Z")
_LONGEST_MARKER = 32


def split_marker(text: str) -> tuple[str, str]:
    r"""Part a text from the white space and the list marker at its end: `"\n\n3. "`.

    Every prefix of a marker is itself held back, so the text before it can be released.
    """
    marker = _MARKER_AT_END.search(text, max(0, len(text) - _LONGEST_MARKER))
    start = marker.start() if marker else len(text)
    return text[:start], text[start:]


# Promises -------------------------------------------------------------------------------------------------

MAX_ESTIMATE = 10**6
"""Largest estimate, in tokens, that is taken as one."""

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
    """Read a promise tag leniently; the codes say what is wrong with it. None: the tag is to be ignored."""
    attributes = read_attributes(tag.rest)
    if isinstance(attributes, Code):
        return None, [attributes]
    promise, codes = make_promise(tag.source, attributes)
    return promise, codes if _EXACT.fullmatch(tag.source) else [Code.TAG_FORM, *codes]


def make_promise(source: str, attributes: dict[str, str]) -> tuple[Promise, list[Code]]:
    """A promise with these attributes, and the codes of what is wrong with them."""
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
    """Read `name="value"` pairs, in any order and with any quotes; a code says why they cannot be read."""
    rest = rest.rstrip()
    stop = len(rest.removesuffix("/").rstrip())  # the slash of an empty tag is no attribute
    values: dict[str, str] = {}
    position = 0
    while position < stop:
        attribute = _ATTRIBUTE.match(rest, position, stop)
        if not attribute or attribute["name"] in values:
            return Code.ATTRIBUTES_BAD
        # The last group that matched is the value, named by its kind of quotes.
        values[attribute["name"]] = unquoted(attribute[attribute.lastgroup or "bare"])
        position = attribute.end()
    return values if values.keys() <= _NAMES else Code.ATTRIBUTE_UNKNOWN


def _read_tokens(value: str | None) -> tuple[int | None, Code | None]:
    if not value:  # left out, or empty
        return None, None
    digits = value.strip().lstrip("0")
    readable = digits.isascii() and digits.isdecimal() and len(digits) <= len(str(MAX_ESTIMATE))
    if not readable or (number := int(digits)) > MAX_ESTIMATE:
        return None, Code.TOKENS_BAD
    rounded = rounded_estimate(number)
    return rounded, None if rounded == number else Code.TOKENS_NOT_TENS
