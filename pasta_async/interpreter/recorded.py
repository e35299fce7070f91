"""What a thread wrote, as the token ids that later contexts are made of.

A fork must be a token prefix of its parent, so contexts are made of the ids that were recorded. Where the tag
of a prompted model ends inside a token, the context is cut before that token, and the token's text up to the
tag's end, and behind it, is encoded anew; the shell does that through the backend's `encode`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Part", "RecordedTokens"]

Part = tuple[int, ...] | str
"""Part of a context: recorded ids, or a text that is to be encoded."""


class RecordedTokens:
    """What a thread wrote since its context began, with the places of its promises.

    `add` takes what was read as one unit; `cut` and `mark` say where in it tags ended.
    """

    __slots__ = ("_before", "_marks", "_parts", "_placed", "_text", "_unit", "raw")

    def __init__(self) -> None:
        self.raw: list[int] = []
        """The ids as they were generated: what the thread itself has behind its context."""
        self._parts: list[list[int] | str] = []
        self._marks: list[tuple[int, int]] = []  # (number of parts before it, thread)
        self._before: dict[int, tuple[int, str]] = {}  # by thread: ids before it, and what is cut off
        self._unit: list[int] = []
        self._text = ""
        self._placed = 0

    def add(self, ids: tuple[int, ...], text: str) -> None:
        """Ids and the text that came with them; ids whose text lags wait for it."""
        self.raw += ids
        if self._text:
            self._place_rest()
        self._unit += ids
        self._text = text

    def mark(self, thread: int, left: int) -> None:
        """A promise ends `left` characters before the end of what was added last."""
        whole = len(self.raw) - len(self._unit)
        self._before[thread] = (whole, self._text[: len(self._text) - left]) if left else (len(self.raw), "")
        self.cut(left)
        self._marks.append((len(self._parts), thread))

    def cut(self, left: int) -> None:
        """Place what was added, up to `left` characters before its end."""
        if left == 0 and self._placed == 0:
            self._place_rest()
            return
        end = len(self._text) - left
        if end > self._placed:
            self._parts.append(self._text[self._placed : end])
            self._placed = end

    def drop_rest(self) -> None:
        """Forget what was added behind the last cut: it was written without what comes before it."""
        if self._placed:
            self._unit, self._text, self._placed = [], "", 0

    def before(self, thread: int) -> list[Part]:
        """What stands up to the promise of `thread`: the recorded ids, cut nowhere but there."""
        count, rest = self._before[thread]
        ids = tuple(self.raw[:count])
        return [ids, rest] if rest else [ids]

    def joined(self, chunks: dict[int, list[Part]]) -> list[Part]:
        """All parts, with the chunk of each promise right behind it (none for a promise not in `chunks`)."""
        self._place_rest()
        result: list[Part] = []
        done = 0
        for index, thread in self._marks:
            result += _frozen(self._parts[done:index])
            result += chunks.get(thread, [])
            done = index
        return result + _frozen(self._parts[done:])

    def _place_rest(self) -> None:
        if self._placed:
            if self._placed < len(self._text):
                self._parts.append(self._text[self._placed :])
        elif self._unit:
            self._append(self._unit)
        self._unit, self._text, self._placed = [], "", 0

    def _append(self, ids: list[int]) -> None:
        boundary = self._marks[-1][0] if self._marks else -1
        last = self._parts[-1] if self._parts and boundary != len(self._parts) else None
        if isinstance(last, list):
            last += ids
        else:
            self._parts.append(list(ids))


def _frozen(parts: Iterable[list[int] | str]) -> list[Part]:
    return [tuple(part) if isinstance(part, list) else part for part in parts]
