"""Shared state of the endpoints: a connected client, and a bounded queue for its answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.requests import Request

from pasta_async.client import Client
from pasta_async.errors import GenerationTimeoutError
from pasta_async.protocol import Model
from pasta_async.server.errors import ApiError
from pasta_async.server.settings import ServerSettings


@dataclass(frozen=True)
class Service:
    """A connected client and its queue: `request.app.state.service` of a running app."""

    client: Client
    model: Model
    settings: ServerSettings
    queue: RequestQueue

    @property
    def model_names(self) -> tuple[str, ...]:
        """The model's own name, and those that the settings give it."""
        return tuple(dict.fromkeys((self.model.name, *self.settings.model_names)))


def service_of(request: Request) -> Service:
    """The service of the app that handles a request. The app's lifespan has to run."""
    return request.app.state.service


class RequestQueue:
    """Lets some requests decode at once; others wait in a bounded queue, first come first served."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._places = asyncio.Semaphore(settings.max_answers)
        self.in_flight: int = 0
        """Requests that decode."""
        self.queued: int = 0
        """Requests that wait."""

    @asynccontextmanager
    async def enter(self, seconds: float | None) -> AsyncGenerator[float | None]:
        """Hold a place for a request that may take so many seconds in all (None: no limit).

        Yields:
            The seconds that are left after the wait; None: no limit.

        Raises:
            ApiError: 429: the queue is full.
            GenerationTimeoutError: The request's time was up before its turn came.

        Cancelling it gives the place, or the place in the queue, back.
        """
        if self._places.locked() and self.queued >= self._settings.max_queue:
            raise ApiError(
                f"the server is busy: {self.in_flight} requests decode, {self.queued} wait",
                429,
                code="rate_limit_exceeded",
                retry_after=min(1 + self.queued / self._settings.max_answers, 60),
            )
        start = time.monotonic()
        self.queued += 1
        try:
            async with asyncio.timeout(seconds):
                await self._places.acquire()
        except TimeoutError:
            raise GenerationTimeoutError(f"no place became free within {seconds:g} s") from None
        finally:
            self.queued -= 1
        self.in_flight += 1
        try:
            yield None if seconds is None else max(seconds - (time.monotonic() - start), 1e-3)
        finally:
            self.in_flight -= 1
            self._places.release()
