"""Contexts in token ids, cut where a tag ends.

A fork must be a token prefix of its parent, so contexts are made of the ids that were recorded. Where the tag
of a prompted model ends inside a token, the context is cut before that token and the rest of its text is
encoded again: such a rest is a `str` part, resolved by the shell through the backend's `encode`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Part", "Stretch"]

Part = tuple[int, ...] | str
"""Recorded ids, or a text to be encoded."""


class Stretch:
    """What a thread wrote since its context began, with the places of its promises.

    `add` takes what was fed to the parser as one unit; `cut` and `mark` say where in it tags ended.
    """

    __slots__ = ("_marks", "_parts", "_placed", "_text", "_unit", "raw")

    def __init__(self) -> None:
        self.raw: list[int] = []
        """The ids as they were generated: what the thread itself has behind its context."""
        self._parts: list[list[int] | str] = []
        self._marks: list[tuple[int, int]] = []  # (number of parts before it, thread)
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
        """The parts up to the promise of `thread`."""
        index = next(index for index, number in self._marks if number == thread)
        return _frozen(self._parts[:index])

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
            if rest := self._text[self._placed :]:
                self._parts.append(rest)
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
    return [part if isinstance(part, str) else tuple(part) for part in parts]
