"""Sending a failed request again, as `Limits.retries` allows.

All retries are decided here; backends never send a request again.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pasta_async.clock import Clock
from pasta_async.errors import BackendError, BackendStatusError

_T = TypeVar("_T")

FIRST_DELAY = 0.25
"""Seconds before the first retry; doubles with each further one."""

MAX_DELAY = 60.0
"""Seconds between two requests at most, whatever a server's Retry-After says."""


def retry_delay(attempt: int, error: BackendError) -> float:
    """Seconds to wait after failure `attempt` (from 0): the server's Retry-After, or backoff with jitter."""
    if isinstance(error, BackendStatusError) and error.retry_after is not None:
        return min(error.retry_after, MAX_DELAY)
    return min(FIRST_DELAY * 2**attempt, MAX_DELAY) * random.uniform(0.5, 1.0)


async def with_retries(work: Callable[[], Awaitable[_T]], retries: int, clock: Clock) -> _T:
    """Call `work` (connecting, say), and again after each error that is `retryable`.

    Raises:
        BackendError: The error of the last try.

    Cancelling it cancels the try, or the wait, that is under way.
    """
    for attempt in range(retries):
        try:
            return await work()
        except BackendError as error:
            if not error.retryable:
                raise
            await clock.sleep(retry_delay(attempt, error))
    return await work()
