"""Doing again what failed, as `Limits.retries` allows: a request, or an answer whose server was lost.

The one place where that is decided; backends never do it.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from itertools import takewhile
from typing import TypeVar

from pasta_async.clock import Clock
from pasta_async.errors import (
    BackendError,
    BackendLostError,
    BackendStatusError,
    PastaError,
    ThreadFailedError,
)
from pasta_async.events import Emit, Event, ThreadDone, ThreadFailed, ThreadStarted
from pasta_async.results import Generation

_T = TypeVar("_T")

FIRST_DELAY = 0.25
"""Seconds before the first retry; doubles with each further one."""

MAX_DELAY = 60.0
"""Seconds between two requests at most, whatever a server's Retry-After says."""


def retry_delay(attempt: int, error: BackendError) -> float:
    """Seconds to wait after failure `attempt` (from 0): the server's Retry-After, or backoff with jitter."""
    if isinstance(error, BackendLostError):
        return 0.0  # another server takes it
    if isinstance(error, BackendStatusError) and error.retry_after is not None:
        return min(error.retry_after, MAX_DELAY)
    return min(FIRST_DELAY * 2**attempt, MAX_DELAY) * random.uniform(0.5, 1.0)


async def with_retries(work: Callable[[], Awaitable[_T]], retries: int, clock: Clock) -> _T:
    """Do something that may be repeated (connect, encode), again after each error that is `retryable`.

    Raises:
        BackendError: What the last try ended with.

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


async def run_restarting(
    attempt: Callable[[Emit | None, tuple[str, ...], int], Awaitable[Generation]],
    emit: Emit | None,
    retries: int,
) -> Generation:
    """Run an answer; if its server is lost while nothing of it was shown, run it again from the beginning.

    Args:
        attempt: Runs the answer, shows its events here, gives it these notes, and takes so many of the
            retries of each request as spent.
        emit: Where events are shown. None: nobody watches, so nothing is shown before the end.
        retries: Of a request, restarts included: a prompt that kills its server must not kill them all.

    Raises:
        PastaError: What the last attempt ended with.

    Cancelling it cancels the run that is under way, which ends every thread and request of it.
    """
    screen = _Screen(emit)
    notes: tuple[str, ...] = ()
    spent = 0
    while True:
        try:
            return await attempt(screen.show if emit else None, notes, spent)
        except PastaError as error:
            sent = _sent_until_lost(error)
            spent += sent
            if screen.begun or not sent or spent > retries:
                await screen.end()
                raise
            await screen.restart()
            notes = (*notes, f"started again elsewhere: {error.__cause__}")


def _sent_until_lost(error: PastaError) -> int:
    """How often the request was sent with which a server was lost; 0 for any other error."""
    if not isinstance(error, ThreadFailedError) or not isinstance(error.__cause__, BackendLostError):
        return 0
    requests = error.partial.threads[error.thread].requests if error.partial else ()
    return sum(1 for _ in takewhile(lambda request: request.finish_reason == "error", reversed(requests)))


class _Screen:
    """Hands events on, but holds back how an attempt ended until it is known whether another follows."""

    def __init__(self, emit: Emit | None) -> None:
        self._emit = emit
        self._held: list[Event] = []
        self.begun = False
        """Whether something was shown that cannot be taken back."""

    def show(self, events: list[Event]) -> Awaitable[None] | None:
        if not self.begun:
            self.begun = not all(isinstance(event, _QUIET) for event in events)
            held, self._held = self._held, []
            if self.begun:
                events = [*held, *events]
            else:
                self._held = [*held, *filter(_is_end, events)]
                events = [event for event in events if not _is_end(event)]
        return self._emit(events) if events and self._emit else None

    async def restart(self) -> None:
        failures = [event for event in self._held if isinstance(event, ThreadFailed)]
        await self._instead([ThreadFailed(event.thread, event.error, "restart") for event in failures])

    async def end(self) -> None:
        self.begun = True
        await self._instead(self._held)

    async def _instead(self, events: list[Event]) -> None:
        """Show these in place of what was held."""
        self._held = []
        if wait := self.show(events):
            await wait


_QUIET = (ThreadStarted, ThreadFailed, ThreadDone)


def _is_end(event: Event) -> bool:
    return isinstance(event, ThreadDone) or (isinstance(event, ThreadFailed) and event.action == "fail")
