"""Clocks, which are passed in: the real time, or a virtual one for tests (`pasta_async.testing`); and waits.

All waits in pasta_async (time-outs, retries, a scripted backend's latencies) are measured by a `Clock`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Protocol

from anyio import CancelScope

from pasta_async.errors import GenerationTimeoutError


class Clock(Protocol):
    """A way to read the time and to wait."""

    def time(self) -> float:
        """Seconds since some fixed moment."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for so many seconds; if they are not positive, for one iteration of the event loop.

        Cancelling it ends the wait and leaves nothing behind.
        """
        ...


class RealClock:
    """The real time."""

    def time(self) -> float:
        """Seconds of `time.monotonic`; needs no running loop."""
        return monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait as `asyncio.sleep` does. Cancelling it ends the wait."""
        await asyncio.sleep(seconds)


REAL_CLOCK: Clock = RealClock()
"""The clock that is used where none is given."""


@asynccontextmanager
async def time_limit(clock: Clock, deadline: float | None, work: str) -> AsyncGenerator[None]:
    """Limit the block to a moment of a clock, as `asyncio.timeout_at` does by the loop's time.

    Args:
        clock: Measures the time.
        deadline: The moment; None is no limit.
        work: The name of the block's work, for the error.

    Raises:
        GenerationTimeoutError: It took longer, and was cancelled.
    """
    if deadline is None:
        yield
        return
    limit = asyncio.timeout(None)
    try:
        async with limit:

            async def alarm() -> None:
                await clock.sleep(deadline - clock.time())
                # The time is up: asyncio's own time-out now cancels the block. It can tell that from a
                # cancellation from outside.
                limit.reschedule(asyncio.get_running_loop().time())

            task = asyncio.create_task(alarm())
            try:
                yield
            finally:
                task.cancel()
                await asyncio.wait([task])
    except TimeoutError as error:
        if not limit.expired():  # the block's own
            raise
        raise GenerationTimeoutError(f"{work} took longer than Limits.timeout allows") from error


async def wait_out(
    over: Callable[[], bool], wait: Callable[[], Awaitable[object]]
) -> asyncio.CancelledError | None:
    """Wait for the end of some work even if this is cancelled; returns a cancellation that came meanwhile.

    Args:
        over: True once the work has ended.
        wait: Waits for that; called again after each cancellation.
    """
    cancelled: asyncio.CancelledError | None = None
    while not over():
        try:
            with CancelScope(shield=True):  # a cancelled scope of anyio cancels again and again
                await wait()
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled
