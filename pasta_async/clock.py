"""Time as something that is passed in: the loop's own, or a virtual one for tests.

Whatever waits in pasta_async (time-outs, retries, a scripted backend's latencies) asks a `Clock`.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import deque
from contextlib import asynccontextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable

__all__ = ["REAL_CLOCK", "Clock", "RealClock", "VirtualClock", "time_limit", "within"]

_T = TypeVar("_T")

_QUIET_ROUNDS = 5
"""Loop iterations in which no task may move before time does, where the loop's queue cannot be seen.

A future reaches its task through a callback or more (`gather`, `shield`), each in an iteration of its own.
"""


class Clock(Protocol):
    """What waits is given one of these."""

    def time(self) -> float:
        """Seconds since some fixed moment."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for so many seconds (not at all, but for one turn of the loop, if not positive).

        Cancelling it ends the wait and leaves nothing behind.
        """
        ...


class RealClock:
    """The time that really passes."""

    def time(self) -> float:
        """Seconds of `time.monotonic`; needs no running loop."""
        return monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait as `asyncio.sleep` does. Cancelling it ends the wait."""
        await asyncio.sleep(seconds)


REAL_CLOCK: Clock = RealClock()
"""The clock that is used where none is given."""


@asynccontextmanager
async def time_limit(clock: Clock, seconds: float) -> AsyncGenerator[None]:
    """Do what stands in the block in so many seconds of a clock, as `asyncio.timeout` does on the loop's.

    Raises:
        TimeoutError: It took longer, and was cancelled.
    """
    async with asyncio.timeout(None) as limit:

        async def alarm() -> None:
            await clock.sleep(seconds)
            limit.reschedule(asyncio.get_running_loop().time())

        task = asyncio.create_task(alarm())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])


async def within(clock: Clock, seconds: float, work: Awaitable[_T]) -> _T:
    """Do some work in so many seconds of a clock.

    Raises:
        TimeoutError: It took longer, and was cancelled.

    Cancelling it cancels the work, and waits until it is over.
    """
    async with time_limit(clock, seconds):
        return await work


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
        self._gone = 0  # entries of the heap that were cancelled
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watching = False
        self._quiet = 0

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
            self._loop, self._heap, self._gone, self._watching = loop, [], 0, False
        return loop

    def _forget_one(self) -> None:
        self._gone += 1
        if self._gone * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if not entry[2].done()]
            heapq.heapify(self._heap)
            self._gone = 0

    def _watch(self) -> None:
        if not self._watching and self._loop is not None:
            self._watching, self._quiet = True, 0
            self._loop.call_soon(self._look, self._loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """One callback of the chain that lives while somebody sleeps."""
        if loop is not self._loop:
            return
        if self._heap and self._settled(loop):
            self._advance()
        self._watching = bool(self._heap)
        if self._watching:
            loop.call_soon(self._look, loop)

    def _settled(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether nothing can run before time moves."""
        ready: object = getattr(loop, "_ready", None)
        if isinstance(ready, deque):  # asyncio's own loop: what can run is in its queue
            handles = cast("deque[asyncio.Handle]", ready)
            return not getattr(loop, "_stopping", False) and all(map(_is_clock, handles))
        blocked = all(map(_is_blocked, asyncio.all_tasks(loop)))
        self._quiet = self._quiet + 1 if blocked else 0
        return self._quiet == _QUIET_ROUNDS

    def _advance(self) -> None:
        """Jump to the next sleeper and wake all that are due then."""
        self._quiet = 0
        while self._heap and self._heap[0][2].done():
            heapq.heappop(self._heap)  # cancelled: time does not move for it
        due = self._heap[0][0] if self._heap else self._now
        while self._heap and self._heap[0][0] <= due:
            future = heapq.heappop(self._heap)[2]
            if not future.done():
                future.set_result(None)
        self._now = due


def _is_clock(handle: asyncio.Handle) -> bool:
    """Whether a callback is that of a virtual clock: two on one loop must not wait for each other."""
    return isinstance(getattr(getattr(handle, "_callback", None), "__self__", None), VirtualClock)


def _is_blocked(task: asyncio.Task[Any]) -> bool:
    """Whether the task waits for a future that is not done (a task about to run waits for none)."""
    waiter: asyncio.Future[Any] | None = getattr(task, "_fut_waiter", None)
    return waiter is not None and not waiter.done()
