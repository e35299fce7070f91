"""Documents of PASTA-LANG: the nodes of an annotated answer, its written form and its visible text.

The language is that of the paper (arXiv 2502.11517, section 2); docs/language.md describes it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pasta_async.lang.diagnostics import Diagnostic

__all__ = [
    "ASYNC_CLOSE",
    "ASYNC_OPEN",
    "MAX_TAG",
    "PROMISE_CLOSE",
    "PROMISE_OPEN",
    "PROMISE_TOKENS",
    "SYNC",
    "TAG_TOKENS",
    "Chunk",
    "ClosedBy",
    "Document",
    "Ignored",
    "Node",
    "Promise",
    "Sync",
    "Text",
    "escape",
    "rounded_estimate",
]

PROMISE_OPEN = '<promise topic="'
PROMISE_TOKENS = '" tokens="'
PROMISE_CLOSE = '"/>'
ASYNC_OPEN = "<async>"
ASYNC_CLOSE = "</async>"
SYNC = "<sync/>"
TAG_TOKENS = (PROMISE_OPEN, PROMISE_TOKENS, PROMISE_CLOSE, ASYNC_OPEN, ASYNC_CLOSE, SYNC)
"""The tokens that are added to a trained model's vocabulary, in this order."""

MAX_TAG = 512
"""Characters a tag may have from `<` to `>` (an escape's backslashes do not count); longer ones are text."""

_QUOTED = "|".join(
    rf"{opening}[^<>{closing}]*+(?:(?<!/)>[^<>{closing}]*+)*+{closing}?+"
    for opening, closing in ('""', "''", "\u201c\u201d", "\u2018\u2019")
)
TAG_REST = rf"(?:[^<>=]++|=(?:\s*+(?:{_QUOTED}))?+)*+"
"""Pattern of the text between a tag's name and its `>`. Quotes behind a `=` may hold `>`, but no `/>`."""

TAG_START = rf"<(\\*+)(/?)(promise|async|sync)(?=[\s/>])({TAG_REST})"
"""Pattern of a tag up to its `>`; its groups are the backslashes, the slash, the name and the rest."""

ClosedBy = Literal["writer", "nested", "budget", "end", "interrupted"]
"""The cause of a chunk's end.

* `writer`: its thread wrote `</async>`.
* `nested`: its thread wrote a promise, a sync, or the marker of a list's next item, even in front of
  `</async>`.
* `budget`: its token cap.
* `end`: the end of the text.
* `interrupted`: a failure or a cancellation.
"""

_TAG = re.compile(f"{TAG_START}>")
_SPECIAL = re.compile('[<>"]')
_ENTITIES = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"))


def escape(text: str) -> str:
    r"""Write text so that no tag is read in it: `<sync/>` becomes `<\sync/>`."""
    return _TAG.sub(_escaped, text)


def _escaped(tag: re.Match[str]) -> str:
    source = tag[0]
    fits = len(source) - len(tag[1]) <= MAX_TAG
    return f"<\\{source[1:]}" if fits else source


def quoted(value: str) -> str:
    """Write an attribute's value so that it ends neither the quotes nor the tag: `a > b` is `a &gt; b`.

    Any other value stays as it is, since decoded ids are the written form.
    """
    if not _SPECIAL.search(value) and unquoted(value) == value:
        return value
    for character, entity in _ENTITIES:
        value = value.replace(character, entity)
    return value


def unquoted(value: str) -> str:
    """The value of an attribute as it was written."""
    for character, entity in reversed(_ENTITIES):
        value = value.replace(entity, character)
    return value


def promise_source(values: Sequence[str]) -> str:
    """A promise tag in its exact form, with these values between its tag tokens."""
    return PROMISE_OPEN + PROMISE_TOKENS.join(map(quoted, values)) + PROMISE_CLOSE


@dataclass(frozen=True, slots=True)
class Text:
    """Plain text, with literal tags bare."""

    text: str

    def format(self) -> str:
        """The written form."""
        return escape(self.text)


@dataclass(frozen=True, slots=True)
class Ignored:
    """A tag that has no effect where it stands; later contexts keep it."""

    source: str
    text: ClassVar[str] = ""

    def format(self) -> str:
        """The tag as it was written."""
        return self.source


@dataclass(frozen=True, slots=True)
class Sync:
    """`<sync/>`: joins the promises that are open."""

    source: ClassVar[str] = SYNC
    text: ClassVar[str] = ""

    def format(self) -> str:
        """The tag in its exact form."""
        return self.source


@dataclass(frozen=True, slots=True)
class Chunk:
    """`<async>...</async>`: the text that a thread wrote to keep its promise."""

    nodes: tuple[Text | Ignored, ...] = ()
    closed_by: ClosedBy = field(default="writer", compare=False)

    @property
    def text(self) -> str:
        """The chunk without its tags."""
        return "".join(node.text for node in self.nodes)

    def format(self) -> str:
        """The written form; always closed."""
        return ASYNC_OPEN + "".join(node.format() for node in self.nodes) + ASYNC_CLOSE


def rounded_estimate(tokens: int) -> int:
    """The estimate of a promise whose chunk has so many tokens: rounded up to tens."""
    return 10 * math.ceil(tokens / 10)


@dataclass(frozen=True, slots=True)
class Promise:
    """`<promise topic= tokens=/>`, with the chunk that keeps it."""

    topic: str
    tokens: int | None
    """Estimated length of the chunk in tokens; None where it is missing or bad."""
    chunk: Chunk | None = None
    """None while nothing keeps the promise."""
    source: str = ""
    """The tag as it was written; made from topic and tokens when empty."""

    def __post_init__(self) -> None:
        if not self.source:
            tokens = () if self.tokens is None else (str(self.tokens),)
            object.__setattr__(self, "source", promise_source((self.topic, *tokens)))

    @property
    def text(self) -> str:
        """The visible text of its chunk."""
        return self.chunk.text if self.chunk else ""

    def format(self) -> str:
        """The written form: the tag, and its chunk right behind it."""
        return self.source + (self.chunk.format() if self.chunk else "")


Node = Text | Promise | Sync | Ignored


@dataclass(frozen=True, slots=True)
class Document:
    """An annotated answer: nodes in reading order."""

    nodes: tuple[Node, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = field(default=(), compare=False)

    @property
    def text(self) -> str:
        """The visible text: the written form with its tags removed."""
        return "".join(node.text for node in self.nodes)

    @property
    def promises(self) -> tuple[Promise, ...]:
        """The promises in document order; the k-th is thread k (from 1)."""
        return tuple(node for node in self.nodes if isinstance(node, Promise))

    def format(self) -> str:
        """The written form. `parse(document.format()) == document`."""
        return "".join(node.format() for node in self.nodes)
