"""A virtual clock: its time moves when no task can run."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextvars import Context
from typing import Any


class VirtualClock:
    """A clock for tests: time stands still while any task can run, then jumps to the next sleeper.

    A minute of waiting costs no time at all, and every run is the same: sleepers that are due at one moment
    wake together, in the order in which they fell asleep. Only sleeps on this clock are virtual: a task that
    waits for something else (a socket, a worker thread, `asyncio.sleep` with a positive time) counts as
    blocked, so time goes on without it.

    It has no task of its own and works on any event loop, one at a time. Times are kept to a nanosecond.
    """

    def __init__(self) -> None:
        self._now = 0.0
        # The time at which each sleeper wakes, in their order.
        self._due: dict[asyncio.Future[None], float] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watching = False  # `_look` is scheduled
        self._seen = 0  # callbacks that the loop had been given by the last look
        self._quiet = 0  # number of looks in a row without a new callback

    def time(self) -> float:
        """Seconds on this clock."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock has moved on by `seconds`, rounded to a nanosecond.

        Cancelling it ends the wait at once and forgets the sleeper; time does not move for it.
        """
        if not seconds > 0:
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        if seconds < math.inf:
            self._watch(loop)
            self._due[future] = round(self._now + seconds, 9)
        try:
            await future
        finally:
            self._due.pop(future, None)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop is not self._loop:  # sleepers on an earlier loop have ended with it
            self._loop = loop
            self._watching = False
            self._due.clear()
        if not self._watching:
            activity = _Activity.of(loop)
            self._watching = True
            self._quiet = 0
            self._seen = activity.count
            activity.call_soon(self._look, loop, activity)

    def _look(self, loop: asyncio.AbstractEventLoop, activity: _Activity) -> None:
        """Move the time if no task can run; called in each iteration of the loop while tasks sleep.

        Callbacks run in the order in which they were given to the loop. So if the loop got none between two
        looks, all earlier ones have run, and no task can run before time moves. Time moves one look later,
        since a loop that is being stopped runs once more.
        """
        if loop is not self._loop:
            return
        self._quiet = self._quiet + 1 if activity.count == self._seen else 0
        if self._due and self._quiet == 2:
            self._quiet = 0
            self._advance()
        self._seen = activity.count
        self._watching = bool(self._due)
        if self._watching:
            activity.call_soon(self._look, loop, activity)

    def _advance(self) -> None:
        """Jump to the next sleeper and wake all that are due then."""
        self._now = min(self._due.values())
        for future in [future for future, due in self._due.items() if due == self._now]:
            del self._due[future]
            future.set_result(None)


class _Activity:
    """Counts the callbacks that a loop is given, by standing in for its `call_soon`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.count = 0
        self.call_soon = loop.call_soon
        """The loop's own method: callbacks that are given to it are not counted."""
        setattr(loop, "call_soon", self._count)  # noqa: B010 - its type is that of a method

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> _Activity:
        """The activity of a loop, whose callbacks are counted from now on."""
        owner = getattr(loop.call_soon, "__self__", None)
        return owner if isinstance(owner, cls) else cls(loop)

    def _count(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        self.count += 1
        return self.call_soon(callback, *args, context=context)
