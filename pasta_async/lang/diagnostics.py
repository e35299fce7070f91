"""What a reader of PASTA-LANG has to say about a text: stable codes, places, hints."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pasta_async.errors import PastaError

__all__ = ["MAX_DIAGNOSTICS", "MESSAGES", "STYLE_CODES", "Code", "Diagnostic", "ParseError", "DiagnosticLog"]

MAX_DIAGNOSTICS = 1000
"""A reader records no more than this, so that a hostile text costs in proportion to its length."""


class Code(StrEnum):
    """Stable names of what can be wrong. docs/language.md lists them with examples."""

    TOKENS_MISSING = "tokens-missing"
    TOKENS_BAD = "tokens-bad"
    TOKENS_NOT_TENS = "tokens-not-tens"
    TOPIC_MISSING = "topic-missing"
    TOPIC_LONG = "topic-long"
    ATTRIBUTE_UNKNOWN = "attribute-unknown"
    ATTRIBUTES_BAD = "attributes-bad"
    TAG_FORM = "tag-form"
    TAG_CUT = "tag-cut"
    TAG_BROKEN = "tag-broken"
    PROMISE_NESTED = "promise-nested"
    PROMISE_OPEN = "promise-open"
    ASYNC_STRAY = "async-stray"
    ASYNC_APART = "async-apart"
    ASYNC_STRAY_CLOSE = "async-stray-close"
    ASYNC_UNCLOSED = "async-unclosed"
    SYNC_IDLE = "sync-idle"
    SYNC_NESTED = "sync-nested"
    TAG_STRAY_CLOSE = "tag-stray-close"


MESSAGES: dict[Code, tuple[str, str]] = {
    Code.TOKENS_MISSING: ("promise without a tokens attribute", 'write tokens="60"; the default cap is used'),
    Code.TOKENS_BAD: (
        "tokens is not a positive whole number",
        "write a multiple of ten; the default cap is used",
    ),
    Code.TOKENS_NOT_TENS: ("tokens is not a multiple of ten", "round the estimate up to tens"),
    Code.TOPIC_MISSING: ("promise without a topic", 'write topic="at most three words"'),
    Code.TOPIC_LONG: ("topic has more than three words", "shorten it"),
    Code.ATTRIBUTE_UNKNOWN: ("unknown attribute; the tag is ignored", "a promise has topic and tokens"),
    Code.ATTRIBUTES_BAD: ("the attributes cannot be read; the tag is ignored", 'write name="value" pairs'),
    Code.TAG_FORM: ("the tag is not in its exact form", "it is read all the same"),
    Code.TAG_CUT: ("the text ends inside a tag, which is kept as text", "complete the tag"),
    Code.TAG_BROKEN: (
        'a tag that "<" or its length breaks off is kept as text',
        "end it with > in good time",
    ),
    Code.PROMISE_NESTED: ("promise inside a chunk; it is ignored", "promises belong to the main thread"),
    Code.PROMISE_OPEN: ("no chunk keeps this promise", "write <async>...</async> right behind it"),
    Code.ASYNC_STRAY: ("<async> that follows no promise; it is ignored", "put a promise right before it"),
    Code.ASYNC_APART: ("white space between a promise and its <async>", "write them without a gap"),
    Code.ASYNC_STRAY_CLOSE: ("</async> without <async>; it is ignored", "remove it"),
    Code.ASYNC_UNCLOSED: ("the text ends inside a chunk, which it closes", "write </async>"),
    Code.SYNC_IDLE: ("<sync/> with no open promise; it is ignored", "remove it"),
    Code.SYNC_NESTED: ("<sync/> inside a chunk; it is ignored", "only the main thread joins"),
    Code.TAG_STRAY_CLOSE: ("closing tag of a tag that has no content; it is ignored", "remove it"),
}
"""Message and hint of each code."""

STYLE_CODES = frozenset({Code.TOKENS_NOT_TENS, Code.TOPIC_LONG})
"""Advice about style: nothing was ignored, guessed or repaired, so strict reading lets it pass."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding, with its place in the text that was read."""

    code: Code
    offset: int
    """Characters before it, from 0. At run time: within the thread's own text."""
    line: int
    """From 1."""
    column: int
    """From 1, in characters."""
    thread: int = 0
    """The thread it was found in; 0 when a whole document was read."""

    @property
    def message(self) -> str:
        """What is wrong."""
        return MESSAGES[self.code][0]

    @property
    def hint(self) -> str:
        """What to do about it."""
        return MESSAGES[self.code][1]

    def __str__(self) -> str:
        return f"{self.line}:{self.column}: {self.code}: {self.message} ({self.hint})"


class ParseError(PastaError):
    """Strict reading met a malformed document."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(str(diagnostic))
        self.diagnostic = diagnostic


class DiagnosticLog:
    """Records what one reader finds, or in strict reading raises it."""

    __slots__ = ("_strict", "_thread", "found")

    def __init__(self, *, strict: bool, thread: int) -> None:
        self.found: list[Diagnostic] = []
        """In the order it was found; at most `MAX_DIAGNOSTICS`."""
        self._strict = strict
        self._thread = thread

    def add(self, code: Code, offset: int, line: int, column: int) -> None:
        """Record one finding.

        Raises:
            ParseError: In strict reading, unless its code is about style.
        """
        full = len(self.found) >= MAX_DIAGNOSTICS
        if full and not self._strict:
            return
        diagnostic = Diagnostic(code, offset, line, column, self._thread)
        if self._strict and code not in STYLE_CODES:
            raise ParseError(diagnostic)
        if not full:
            self.found.append(diagnostic)
