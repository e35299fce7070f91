"""What the endpoints of a server share: a connected client, and a bounded queue for its answers."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from pasta_async.server.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request

    from pasta_async.client import Client
    from pasta_async.limits import Limits
    from pasta_async.protocol import ModelInfo
    from pasta_async.server.settings import ServerSettings

__all__ = ["Admission", "Service", "service_of"]

_SMOOTHING = 0.1
"""Weight of the last answer in the running mean of their durations."""


@dataclass(frozen=True)
class Service:
    """A connected client, and who may use it when. `request.app.state.service` of a running app."""

    client: Client
    info: ModelInfo
    settings: ServerSettings
    admission: Admission

    @property
    def limits(self) -> Limits:
        """Limits of an answer that asks for none of its own."""
        own, settings = self.client.limits, self.settings
        timeout = settings.timeout
        if own.timeout is not None and "timeout" in own.model_fields_set:
            timeout = min(own.timeout, timeout)
        prompt = settings.max_prompt_tokens or own.prompt_tokens
        return own.model_copy(update={"timeout": timeout, "prompt_tokens": prompt})

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names that requests may call the model by."""
        return tuple(dict.fromkeys((self.info.name, *self.settings.model_names)))


def service_of(request: Request) -> Service:
    """The service of the app that a request came to."""
    return request.app.state.service


class Admission:
    """Lets a number of answers decode at once; a bounded queue, first come first served, waits for its turn.

    A request for several choices takes as many places, all at once.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._seconds = 1.0
        self.in_flight: int = 0
        """Answers that decode."""

    @property
    def queued(self) -> int:
        """Answers that wait."""
        return sum(count for _, count in self._waiting)

    @asynccontextmanager
    async def enter(self, count: int = 1) -> AsyncGenerator[None]:
        """Hold places for so many answers.

        Raises:
            ApiError: 429: the queue is full, or the wait took too long. 400: more than there are places.

        Cancelling it gives the places, or the place in the queue, back.
        """
        await self._acquire(count)
        began = monotonic()
        try:
            yield
        finally:
            self._seconds += _SMOOTHING * (monotonic() - began - self._seconds)
            self._release(count)

    async def _acquire(self, count: int) -> None:
        if count > self._settings.max_answers:
            raise ApiError(f"at most {self._settings.max_answers} answers decode at once here, not {count}")
        if not self._waiting and self.in_flight + count <= self._settings.max_answers:
            self.in_flight += count
            return
        if self.queued + count > self._settings.max_queue:
            raise self._busy("too many answers wait already")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, count))
        try:
            async with asyncio.timeout(self._settings.queue_timeout):
                await turn
        except BaseException as error:
            self._leave(turn, count)
            if isinstance(error, TimeoutError):
                raise self._busy("no place became free in time") from None
            raise

    def _leave(self, turn: asyncio.Future[None], count: int) -> None:
        """Go away from the queue, or give back the places that were handed over in the same moment."""
        if (turn, count) in self._waiting:
            self._waiting.remove((turn, count))
            self._admit()
        else:
            self._release(count)

    def _release(self, count: int) -> None:
        self.in_flight -= count
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self.in_flight + self._waiting[0][1] <= self._settings.max_answers:
            turn, count = self._waiting.popleft()
            self.in_flight += count
            if not turn.done():  # else whoever waited is about to leave, and gives the places back
                turn.set_result(None)

    def _busy(self, why: str) -> ApiError:
        wait = self._seconds * (1 + self.queued / self._settings.max_answers)
        return ApiError(
            f"the server is busy: {why}; {self.in_flight} answers decode, {self.queued} wait",
            status=429,
            code="rate_limit_exceeded",
            retry_after=min(wait, 60.0),
        )
