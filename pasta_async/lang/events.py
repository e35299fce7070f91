"""What a parser reports while it reads.

Plain classes with slots, because one is made for each piece of text. The events that users see
(`pasta_async.events`) are made from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pasta_async.lang.document import Promise

__all__ = ["ChunkClosed", "ChunkOpened", "Event", "IgnoredTag", "PromiseOpened", "SyncReached", "TextDelta"]


@dataclass(slots=True)
class TextDelta:
    """Visible text: of the chunk while one is open, of main otherwise."""

    text: str


@dataclass(slots=True)
class PromiseOpened:
    """A promise that counts."""

    promise: Promise
    end: int
    """Offset in the fed characters just behind the tag (as in every event)."""


@dataclass(slots=True)
class ChunkOpened:
    """The writer itself starts to keep the promise just made."""

    end: int
    gap: str = ""
    """White space between the promise and `<async>`; it is visible, and comes in no `TextDelta`."""


@dataclass(slots=True)
class ChunkClosed:
    """The chunk ends by `</async>`."""

    end: int


@dataclass(slots=True)
class SyncReached:
    """A `<sync/>` with open promises."""

    end: int
    source: str


@dataclass(slots=True)
class IgnoredTag:
    """A tag without effect."""

    source: str
    end: int


Event = TextDelta | PromiseOpened | ChunkOpened | ChunkClosed | SyncReached | IgnoredTag
