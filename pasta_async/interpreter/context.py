"""Contexts in token ids, cut where a tag ends.

A fork must be a token prefix of its parent, so contexts are made of the ids that were recorded. Where the tag
of a prompted model ends inside a token, the context is cut before that token and the rest of its text is
encoded again. The shell resolves such a part through the backend's `encode` and `detokenize`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Cut", "Part", "Stretch", "whole_ids"]


class Cut(NamedTuple):
    """A part of what several ids say together, of which some may be cut in two."""

    ids: tuple[int, ...]
    text: str
    start: int
    """Index in the text where the part begins."""
    end: int


Part = tuple[int, ...] | str | Cut
"""Recorded ids, a text to be encoded, or both."""


def whole_ids(cut: Cut, texts: Sequence[str]) -> tuple[str, tuple[int, ...], str]:
    """The ids that stand whole in a cut, and the text to be encoded before and behind them.

    `texts`: what the first id says, the first two, and so on.
    """
    ends = {0: 0} | {n: len(text) for n, text in enumerate(texts, 1) if cut.text.startswith(text)}
    inside = [n for n, end in ends.items() if cut.start <= end <= cut.end]
    if len(inside) < 2:
        return cut.text[cut.start : cut.end], (), ""
    first, last = inside[0], inside[-1]
    return cut.text[cut.start : ends[first]], cut.ids[first:last], cut.text[ends[last] : cut.end]


class Stretch:
    """What a thread wrote since its context began, with the places of its promises.

    `add` takes what was fed to the parser as one unit; `cut` and `mark` say where in it tags ended.
    """

    __slots__ = ("_before", "_marks", "_parts", "_placed", "_text", "_unit", "raw")

    def __init__(self) -> None:
        self.raw: list[int] = []
        """The ids as they were generated: what the thread itself has behind its context."""
        self._parts: list[list[int] | str | Cut] = []
        self._marks: list[tuple[int, int]] = []  # (number of parts before it, thread)
        self._before: dict[int, tuple[int, Part | None]] = {}  # by thread: ids before it, and what is cut
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
        end = len(self._text) - left
        start = len(self.raw) - len(self._unit)
        self._before[thread] = (start, self._cut_out(0, end)) if left else (len(self.raw), None)
        self.cut(left)
        self._marks.append((len(self._parts), thread))

    def cut(self, left: int) -> None:
        """Place what was added, up to `left` characters before its end."""
        if left == 0 and self._placed == 0:
            self._place_rest()
            return
        end = len(self._text) - left
        if end > self._placed:
            self._parts.append(self._cut_out(self._placed, end))
            self._placed = end

    def drop_rest(self) -> None:
        """Forget what was added behind the last cut: it was written without what comes before it."""
        if self._placed:
            self._unit, self._text, self._placed = [], "", 0

    def before(self, thread: int) -> list[Part]:
        """What stands up to the promise of `thread`: the recorded ids, cut nowhere but there."""
        count, rest = self._before[thread]
        ids = tuple(self.raw[:count])
        return [ids] if rest is None else [ids, rest]

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
                self._parts.append(self._cut_out(self._placed, len(self._text)))
        elif self._unit:
            self._append(self._unit)
        self._unit, self._text, self._placed = [], "", 0

    def _cut_out(self, start: int, end: int) -> str | Cut:
        """A part of what was added last."""
        if len(self._unit) > 1:
            return Cut(tuple(self._unit), self._text, start, end)
        return self._text[start:end]

    def _append(self, ids: list[int]) -> None:
        boundary = self._marks[-1][0] if self._marks else -1
        last = self._parts[-1] if self._parts and boundary != len(self._parts) else None
        if isinstance(last, list):
            last += ids
        else:
            self._parts.append(list(ids))


def _frozen(parts: Iterable[list[int] | str | Cut]) -> list[Part]:
    return [tuple(part) if isinstance(part, list) else part for part in parts]
