"""A virtual clock: time moves when nothing else can."""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable
from contextvars import Context
from typing import Any


class VirtualClock:
    """A clock for tests: time stands still while any task can run, then jumps to the next sleeper.

    A minute of waiting costs no time at all, and what happens is the same on every run: sleepers that are due
    at one moment wake together, in the order in which they fell asleep. Only what sleeps on this clock is
    virtual: a task that waits for something else (a socket, a worker thread, `asyncio.sleep` with a positive
    time) counts as blocked, so time goes on without it.

    It has no task of its own and works on any event loop, one at a time. Times are kept to a nanosecond.
    """

    def __init__(self, start: float = 0.0) -> None:
        """Begin at `start` seconds."""
        self._now = start
        self._heap: list[tuple[float, int, asyncio.Future[None]]] = []
        self._sequence = 0
        self._cancelled = 0  # entries of the heap
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watching = False
        self._seen = 0  # callbacks that the loop had been given at the last look
        self._quiet = 0  # looks since then

    def time(self) -> float:
        """Seconds on this clock."""
        return self._now

    @property
    def sleepers(self) -> int:
        """How many wait for a moment that will come."""
        return sum(not future.done() for _, _, future in self._heap)

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock has moved on by `seconds`, rounded to a nanosecond.

        Cancelling it ends the wait at once and forgets the sleeper; time does not move for it.
        """
        if not seconds > 0:
            await asyncio.sleep(0)
            return
        future = self._enter(asyncio.get_running_loop()).create_future()
        if seconds < math.inf:
            self._sequence += 1
            heapq.heappush(self._heap, (round(self._now + seconds, 9), self._sequence, future))
            self._watch()
        try:
            await future
        except asyncio.CancelledError:
            if seconds < math.inf and future.cancelled():
                self._forget_one()
            raise

    def _enter(self, loop: asyncio.AbstractEventLoop) -> asyncio.AbstractEventLoop:
        """Use this loop; sleepers of an earlier one died with it."""
        if loop is not self._loop:
            self._loop, self._heap, self._cancelled, self._watching = loop, [], 0, False
        return loop

    def _forget_one(self) -> None:
        self._cancelled += 1
        if self._cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if not entry[2].done()]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def _watch(self) -> None:
        if not self._watching and self._loop is not None:
            activity = _Activity.of(self._loop)
            self._watching, self._quiet, self._seen = True, 0, activity.count
            activity.call_soon(self._look, self._loop, activity)

    def _look(self, loop: asyncio.AbstractEventLoop, activity: _Activity) -> None:
        """Once in each iteration of the loop, while somebody sleeps.

        Callbacks run in the order in which they were given to the loop. So if it was given none between two
        looks, all that came before has run, and nothing can run before time moves. One look more is waited
        for, since a loop that is being stopped runs once more.
        """
        if loop is not self._loop:
            return
        self._quiet = self._quiet + 1 if activity.count == self._seen else 0
        if self._heap and self._quiet == 2:
            self._quiet = 0
            self._advance()
        self._seen = activity.count
        self._watching = bool(self._heap)
        if self._watching:
            activity.call_soon(self._look, loop, activity)

    def _advance(self) -> None:
        """Jump to the next sleeper and wake all that are due then."""
        while self._heap and self._heap[0][2].done():
            heapq.heappop(self._heap)  # cancelled: time does not move for it
        due = self._heap[0][0] if self._heap else self._now
        while self._heap and self._heap[0][0] <= due:
            future = heapq.heappop(self._heap)[2]
            if not future.done():
                future.set_result(None)
        self._now = due


class _Activity:
    """Counts the callbacks that a loop is given, by standing in for its `call_soon`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.count = 0
        self.call_soon = loop.call_soon
        """The loop's own: what is called by it is not counted."""

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> _Activity:
        """That of a loop, which is watched from now on."""
        owner = getattr(loop.call_soon, "__self__", None)
        if isinstance(owner, cls):
            return owner
        activity = cls(loop)
        setattr(loop, "call_soon", activity._count)  # noqa: B010 - its type is that of a method
        return activity

    def _count(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        self.count += 1
        return self.call_soon(callback, *args, context=context)
