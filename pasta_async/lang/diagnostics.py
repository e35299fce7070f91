"""Diagnostics of PASTA-LANG: stable codes, places in the text, hints."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

__all__ = ["MAX_DIAGNOSTICS", "STYLE_CODES", "Code", "Diagnostic"]

MAX_DIAGNOSTICS = 1000
"""Diagnostics that a reader records at most, so that a hostile text cannot fill the memory."""


class Code(StrEnum):
    """Stable names of what can be wrong. docs/language.md lists them with examples."""

    message: str
    """The fault, in words."""
    hint: str
    """The way to mend it."""

    def __new__(cls, name: str, message: str, hint: str) -> Self:
        """A name with its message and its hint."""
        code = str.__new__(cls, name)
        code._value_ = name
        code.message = message
        code.hint = hint
        return code

    TOKENS_BAD = "tokens-bad", "tokens is no whole number from 1 to 1,000,000", "write tens; it is ignored"
    TOKENS_NOT_TENS = "tokens-not-tens", "tokens is not a multiple of ten", "round the estimate up to tens"
    TOPIC_MISSING = "topic-missing", "promise without a topic", 'write topic="at most three words"'
    TOPIC_LONG = "topic-long", "topic has more than three words", "shorten it"
    ATTRIBUTE_UNKNOWN = "attribute-unknown", "unknown attribute; the tag is ignored", "use topic and tokens"
    ATTRIBUTES_BAD = "attributes-bad", "unreadable attributes; the tag is ignored", 'write name="value" pairs'
    TAG_FORM = "tag-form", "the tag is not in its exact form", "it is read all the same"
    TAG_CUT = "tag-cut", "the text ends inside a tag, which is kept as text", "complete the tag"
    TAG_BROKEN = "tag-broken", "a tag with another one inside, or that is too long, is text", "close it first"
    PROMISE_NESTED = "promise-nested", "promise inside a chunk; it has no thread", "write </async> before it"
    PROMISE_OPEN = "promise-open", "no chunk keeps this promise", "write <async>...</async> right behind it"
    ASYNC_STRAY = "async-stray", "<async> without a promise; it is ignored", "put a promise right before it"
    ASYNC_APART = "async-apart", "white space between a promise and its <async>", "write them without a gap"
    ASYNC_STRAY_CLOSE = "async-stray-close", "</async> without <async>; it is ignored", "remove it"
    ASYNC_UNCLOSED = "async-unclosed", "the text ends inside a chunk, which it closes", "write </async>"
    SYNC_IDLE = "sync-idle", "<sync/> with no open promise; it is ignored", "remove it"
    SYNC_NESTED = "sync-nested", "<sync/> inside a chunk; it joins nothing", "write </async> before it"
    TAG_STRAY_CLOSE = "tag-stray-close", "closing tag of an empty tag; it is ignored", "remove it"


STYLE_CODES = frozenset({Code.TOKENS_NOT_TENS, Code.TOPIC_LONG})
"""Advice about style: nothing was ignored, guessed or repaired, so strict reading lets it pass."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding, with its place in the text that was read."""

    code: Code
    offset: int
    """Number of characters before it; while a thread is decoded, in the thread's own text."""
    line: int
    """Number of the line, counted from 1."""
    column: int
    """Place in the line in characters, counted from 1."""
    thread: int = 0
    """The thread it was found in; 0 when a whole document was read."""

    @property
    def message(self) -> str:
        """The fault, in words."""
        return self.code.message

    @property
    def hint(self) -> str:
        """The way to mend it."""
        return self.code.hint

    def __str__(self) -> str:
        return f"{self.line}:{self.column}: {self.code}: {self.message} ({self.hint})"
