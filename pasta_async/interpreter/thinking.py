"""Thinking blocks: what a model writes between `<think>` and `</think>` is never read for tags."""

from __future__ import annotations

__all__ = ["OPEN", "ThinkingFilter"]

OPEN = "<think>"
_CLOSE = "</think>"


class ThinkingFilter:
    """Tells which pieces of a stream stand inside a thinking block, which may only open an answer.

    A piece that holds the end of a block is split there.
    """

    def __init__(self, *, inside: bool = False) -> None:
        self._inside = inside
        self._tail: str = ""
        self.passed: bool = False
        """Whether no block can come any more, so that the filter can be left out."""

    def split(self, text: str) -> tuple[str, str]:
        """The part of the text that is thinking, and the part behind it.

        Text that may yet turn out to begin a block is held back and comes out with a later piece.
        """
        if self.passed:
            return "", text
        return self._within(text) if self._inside else self._before(text)

    def flush(self) -> str:
        """What was held back when the stream ended: it began no block."""
        held = "" if self._inside else self._tail
        self._tail = ""
        return held

    def _before(self, text: str) -> tuple[str, str]:
        text, self._tail = self._tail + text, ""
        seen = text.lstrip()
        if seen.startswith(OPEN):
            self._inside = True
            begun = len(text) - len(seen) + len(OPEN)
            thinking, rest = self._within(text[begun:])
            return text[:begun] + thinking, rest
        if OPEN.startswith(seen):
            self._tail = text
            return "", ""
        self.passed = True
        return "", text

    def _within(self, text: str) -> tuple[str, str]:
        seen = self._tail + text
        end = seen.find(_CLOSE)
        if end < 0:
            self._tail = seen[-(len(_CLOSE) - 1) :]
            return text, ""
        self.passed = True
        cut = end + len(_CLOSE) - len(self._tail)
        return text[:cut], text[cut:]
