"""Shared state of the endpoints: a connected client, and a bounded queue for its answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
from starlette.requests import Request

from pasta_async.client import Client
from pasta_async.errors import GenerationTimeoutError
from pasta_async.options import Limits
from pasta_async.protocol import Model
from pasta_async.server.errors import ApiError
from pasta_async.server.settings import ServerSettings


@dataclass(frozen=True)
class Service:
    """A connected client and its queue: `request.app.state.service` of a running app."""

    client: Client
    info: Model
    settings: ServerSettings
    admission: Admission
    http: httpx.AsyncClient
    """For the engine's own endpoint."""

    @property
    def limits(self) -> Limits:
        """Limits of an answer that asks for none of its own."""
        client, settings = self.client.limits, self.settings
        timeout = settings.timeout
        if client.timeout is not None and "timeout" in client.model_fields_set:
            timeout = min(client.timeout, timeout)
        prompt_tokens = settings.max_prompt_tokens or client.prompt_tokens
        return client.model_copy(update={"timeout": timeout, "prompt_tokens": prompt_tokens})

    @property
    def model_names(self) -> tuple[str, ...]:
        """The model's own name, and those that the settings give it."""
        return tuple(dict.fromkeys((self.info.name, *self.settings.model_names)))


def service_of(request: Request) -> Service:
    """The service of the app that a request came to, whose lifespan has to run."""
    return request.app.state.service


_READER_SECONDS = 1.0
"""A stream whose reader takes nothing for so long lets others have its place."""


class Admission:
    """Lets some requests decode at once; others wait in a bounded queue, first come first served."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._places = asyncio.Semaphore(settings.max_answers)
        self._stalled = 0  # requests that wait for their readers, without a place
        self.in_flight: int = 0
        """Requests that decode."""
        self.queued: int = 0
        """Requests that wait."""

    @asynccontextmanager
    async def enter(self, seconds: float | None) -> AsyncGenerator[Place]:
        """Hold a place for a request that may take so many seconds in all (None: no limit).

        Yields:
            The place, with the seconds that are left after the wait.

        Raises:
            ApiError: 429: the queue is full, or the wait took too long.
            GenerationTimeoutError: The request's own time was up before its turn came.

        Cancelling it gives the place, or the place in the queue, back.
        """
        settings, start = self._settings, time.monotonic()
        if self._places.locked() and self.queued >= settings.max_queue:
            raise self._busy("too many requests wait already")
        own_time = seconds is not None and seconds <= settings.queue_timeout
        self.queued += 1
        try:
            async with asyncio.timeout(seconds if own_time else settings.queue_timeout):
                await self._places.acquire()
        except TimeoutError:
            if own_time:
                raise GenerationTimeoutError(f"no place became free within {seconds:g} s") from None
            raise self._busy("no place became free in time") from None
        finally:
            self.queued -= 1
        self.in_flight += 1
        place = Place(self, None if seconds is None else max(seconds - (time.monotonic() - start), 1e-3))
        try:
            yield place
        finally:
            if place.held:
                self._free()
            else:
                self._stalled -= 1

    def lend(self, place: Place) -> None:
        """Let others have the place of a request that waits for its reader.

        There are as many such requests as may wait in the queue, so that open requests are bounded.
        """
        if self._stalled < self._settings.max_queue:
            self._stalled += 1
            place.held = False
            self._free()

    async def take_again(self, place: Place) -> None:
        """Wait for a place for a request whose reader goes on. Cancelling it is safe.

        Raises:
            GenerationTimeoutError: The request's own time was up before.
        """
        self.queued += 1
        try:
            async with asyncio.timeout_at(place.ends):
                await self._places.acquire()
        except TimeoutError:
            raise GenerationTimeoutError("the time was up before a place became free again") from None
        finally:
            self.queued -= 1
        self._stalled -= 1
        self.in_flight += 1
        place.held = True

    def _free(self) -> None:
        self.in_flight -= 1
        self._places.release()

    def _busy(self, reason: str) -> ApiError:
        return ApiError(
            f"the server is busy: {reason}; {self.in_flight} requests decode, {self.queued} wait",
            429,
            code="rate_limit_exceeded",
            retry_after=min(1 + self.queued / self._settings.max_answers, 60),
        )


class Place:
    """The place of one request.

    Attributes:
        seconds: Time that the request has left as it gets the place; None: no limit.
        ends: The loop's time when that is over.
        held: False while others may have it.
    """

    def __init__(self, admission: Admission, seconds: float | None) -> None:
        self._admission = admission
        self.seconds: float | None = seconds
        self.ends: float | None = None if seconds is None else asyncio.get_running_loop().time() + seconds
        self.held: bool = True

    @asynccontextmanager
    async def while_read(self) -> AsyncGenerator[None]:
        """Around the `yield` of a part of a stream: a reader that is slow to take it lets others in.

        The request then goes on once there is a place again, or fails with `GenerationTimeoutError` if its
        time is up before. Cancelling it is safe.
        """
        timer = asyncio.get_running_loop().call_later(_READER_SECONDS, self._admission.lend, self)
        try:
            yield
        finally:
            timer.cancel()
        if not self.held:
            await self._admission.take_again(self)
