"""What a parser reports while it reads.

Plain classes with slots, because one is made for each piece of text. The events that users see
(`pasta_async.events`) are made from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pasta_async.lang.document import Promise

__all__ = ["ChunkEnded", "ChunkBegun", "IgnoredRead", "PromiseRead", "Reading", "SyncRead", "TextRead"]


@dataclass(slots=True)
class TextRead:
    """Visible text: of the chunk while one is open, of main otherwise."""

    text: str


@dataclass(slots=True)
class PromiseRead:
    """A promise that counts."""

    promise: Promise
    end: int
    """Offset in the fed characters just behind the tag (as in every reading)."""


@dataclass(slots=True)
class ChunkBegun:
    """The writer itself starts to keep the promise just made."""

    end: int
    gap: str = ""
    """White space between the promise and `<async>`; it is visible, and comes in no `TextRead`."""


@dataclass(slots=True)
class ChunkEnded:
    """The chunk ends by `</async>`."""

    end: int


@dataclass(slots=True)
class SyncRead:
    """A `<sync/>` with open promises."""

    end: int
    source: str


@dataclass(slots=True)
class IgnoredRead:
    """A tag without effect."""

    source: str
    end: int


Reading = TextRead | PromiseRead | ChunkBegun | ChunkEnded | SyncRead | IgnoredRead
