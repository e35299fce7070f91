"""Time as something that is passed in: the loop's own, or a virtual one for tests (`pasta_async.testing`).

Whatever waits in pasta_async (time-outs, retries, a scripted backend's latencies) asks a `Clock`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Protocol, runtime_checkable

from anyio import CancelScope


@runtime_checkable
class Clock(Protocol):
    """A way to read the time and to wait."""

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
async def time_limit(clock: Clock, seconds: float | None) -> AsyncGenerator[None]:
    """Do what stands in the block in so many seconds of a clock, as `asyncio.timeout` does on the loop's.

    None is no limit.

    Raises:
        TimeoutError: It took longer, and was cancelled.
    """
    if seconds is None:
        yield
        return
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


async def wait_out(
    over: Callable[[], bool], wait: Callable[[], Awaitable[object]]
) -> asyncio.CancelledError | None:
    """Wait for what comes to its end whatever happens; return a cancellation that came meanwhile.

    Args:
        over: Whether it has ended.
        wait: Waits for that; called anew behind each cancellation.
    """
    cancelled: asyncio.CancelledError | None = None
    while not over():
        try:
            with CancelScope(shield=True):  # a cancelled scope of anyio cancels again and again
                await wait()
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled
