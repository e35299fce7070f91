"""The visible text in document order, whatever the order in which the threads write it."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from pasta_async.interpreter.reading import overlap


@dataclass(slots=True)
class Lane:
    """A place in the document that one thread writes to."""

    pending: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """Text, and how many tokens stand before its end if those of chunks before it are not counted."""
    done: bool = False
    tokens: int = 0
    """Of a chunk that is done."""


class Visible:
    """Lanes in document order; what is in front is shown, the rest waits its turn.

    Main's text before, between and behind its promises goes to `tail`. A stop text ends the visible text
    where it first appears, and with it the answer; so does its last token.
    """

    def __init__(self, stop: Sequence[str] = (), max_tokens: int | None = None) -> None:
        self.shown: list[str] = []
        self.length: int = 0
        """Characters shown."""
        self.matched_stop: str | None = None
        """The stop text that was found."""
        self.tail: Lane = Lane()
        self._lanes = deque((self.tail,))
        self._chunk_tokens = 0  # of the lanes that are over
        self._stop, self._max_tokens = tuple(stop), max_tokens
        self._back: str = ""  # withheld: the beginning of a stop text, perhaps

    @property
    def stopped(self) -> bool:
        """Whether a stop text was found."""
        return self.matched_stop is not None

    def open(self) -> Lane:
        """A lane for a chunk where main stands now; main goes on behind it."""
        lane = Lane()
        self.tail.done = True
        self.tail = Lane()
        self._lanes += (lane, self.tail)
        return lane

    @property
    def ready(self) -> bool:
        """Whether there may be something to take."""
        front = self._lanes[0]
        return front.done or bool(front.pending)

    def take(self) -> str:
        """What can be shown now, and has not been."""
        text = ""
        while True:
            front = self._lanes[0]
            if front.pending:
                text += self._certain(front.pending)
            if front.pending or not front.done or len(self._lanes) == 1:
                break
            self._chunk_tokens += front.tokens
            self._lanes.popleft()
        return self._show(text)

    def close(self, whole: str | None = None) -> str:
        """What is left, finished or not; the answer is over. `whole` is its text where a token cuts it."""
        if whole is None:
            for lane in self._lanes:
                lane.done = True
            self._max_tokens = None
            text = self.take()
        else:
            text = self._show(whole[self.length + len(self._back) :])
        if not self.stopped and self._back:
            text, self._back = text + self._record(self._back), ""
        return text

    def _certain(self, pending: list[tuple[int, str]]) -> str:
        """Take out what stands before the answer's last token, whatever comes."""
        count = len(pending)
        if self._max_tokens is not None:
            count = bisect_right(pending, self._max_tokens - self._chunk_tokens, key=itemgetter(0))
        text = "".join(part for _, part in pending[:count])
        del pending[:count]
        return text

    def _show(self, text: str) -> str:
        if self.stopped or not text:
            return ""
        if not self._stop:
            return self._record(text)
        text = self._back + text
        self._back = ""
        if found := [(at + len(stop), at, stop) for stop in self._stop if (at := text.find(stop)) >= 0]:
            _, start, self.matched_stop = min(found)  # the one that was complete first
            return self._record(text[:start])
        keep = max(overlap(text, stop) for stop in self._stop)
        if keep:
            text, self._back = text[:-keep], text[-keep:]
        return self._record(text)

    def _record(self, text: str) -> str:
        if text:
            self.shown.append(text)
            self.length += len(text)
        return text
