"""The visible text in document order, whatever the order in which the threads write it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Lane", "Visible"]


@dataclass(slots=True)
class Lane:
    """A place in the document that one thread writes to."""

    pending: list[str] = field(default_factory=list[str])
    done: bool = False
    held: bool = False
    """Nothing is shown yet, because main may still write this chunk itself."""


class Visible:
    """Lanes in document order; what is in front is shown, the rest waits its turn.

    Main's text before, between and behind its promises goes to `tail`. A stop text ends the visible text
    where it first appears, and with it the answer.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self.shown: list[str] = []
        self.length: int = 0
        """Characters shown."""
        self.stopped: bool = False
        self.matched_stop: str | None = None
        """The stop text that was found."""
        self.tail: Lane = Lane()
        self._lanes = deque((self.tail,))
        self._stop = tuple(stop)
        self._back: str = ""  # withheld: the beginning of a stop text, perhaps

    def open(self) -> Lane:
        """A lane for a chunk where main stands now; main goes on behind it."""
        lane = Lane(held=True)
        self.tail.done = True
        self.tail = Lane()
        self._lanes += (lane, self.tail)
        return lane

    def take(self) -> str:
        """What can be shown now, and has not been."""
        text = ""
        while True:
            front = self._lanes[0]
            if front.held:
                break
            if front.pending:
                text += "".join(front.pending)
                front.pending.clear()
            if not front.done or len(self._lanes) == 1:
                break
            self._lanes.popleft()
        return self._show(text) if text else ""

    def close(self) -> str:
        """Everything that is left, finished or not: the answer is over."""
        for lane in self._lanes:
            lane.done, lane.held = True, False
        text = self.take()
        if not self.stopped and self._back:
            text, self._back = text + self._record(self._back), ""
        return text

    def _show(self, text: str) -> str:
        if self.stopped:
            return ""
        if not self._stop:
            return self._record(text)
        text = self._back + text
        self._back = ""
        if found := [(at + len(stop), at, stop) for stop in self._stop if (at := text.find(stop)) >= 0]:
            self.stopped = True  # by the one that was complete first, however the text came in
            _, start, self.matched_stop = min(found)
            return self._record(text[:start])
        keep = max(_overlap(text, stop) for stop in self._stop)
        if keep:
            text, self._back = text[:-keep], text[-keep:]
        return self._record(text)

    def _record(self, text: str) -> str:
        if text:
            self.shown.append(text)
            self.length += len(text)
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
