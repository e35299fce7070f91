"""Shared state of the endpoints: a connected client, and a bounded queue for its answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import httpx
from starlette.requests import Request

from pasta_async.client import Client
from pasta_async.errors import GenerationTimeoutError, InvalidStateError
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
    """The service of the app that a request came to.

    Raises:
        InvalidStateError: The app was mounted in another one, which does not run its lifespan.
    """
    service: Service | None = getattr(request.app.state, "service", None)
    if service is None:
        raise InvalidStateError(
            "the app's lifespan has not run: an app that mounts it enters "
            "`app.router.lifespan_context(app)` of it in its own lifespan"
        )
    return service


class Admission:
    """Lets a number of answers decode at once; a bounded queue, first come first served, waits for its turn.

    A request for several choices takes as many places. It takes them one by one as they become free, while
    later requests wait behind it.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._places = asyncio.Semaphore(settings.max_answers)
        self._head = asyncio.Lock()  # held by the request that takes places; the others queue for it
        self.in_flight: int = 0
        """Answers that decode."""
        self.queued: int = 0
        """Answers that wait."""

    @asynccontextmanager
    async def enter(self, count: int, seconds: float | None) -> AsyncGenerator[float | None]:
        """Hold places for `count` answers that may take so many seconds in all (None: no limit).

        Yields:
            The seconds that are left for the answers after the wait.

        Raises:
            ApiError: 429: the queue is full, or the wait took too long. 400: more than there are places.
            GenerationTimeoutError: The answers' own time was up before their turn came.

        Cancelling it gives the places, or the place in the queue, back.
        """
        start = time.monotonic()
        async with AsyncExitStack() as held:
            await self._acquire(held, count, seconds)
            self.in_flight += count
            try:
                yield None if seconds is None else max(seconds - (time.monotonic() - start), 1e-3)
            finally:
                self.in_flight -= count

    async def _acquire(self, held: AsyncExitStack, count: int, seconds: float | None) -> None:
        settings = self._settings
        if count > settings.max_answers:
            raise ApiError(f"at most {settings.max_answers} answers decode at once here, not {count}")
        free = 0 if self.queued else settings.max_answers - self.in_flight
        if count > free and self.queued + count > settings.max_queue:
            raise self._busy("too many answers wait already")
        self.queued += count
        own_time = seconds is not None and seconds <= settings.queue_timeout
        try:
            async with asyncio.timeout(seconds if own_time else settings.queue_timeout), self._head:
                for _ in range(count):
                    await held.enter_async_context(self._places)
        except TimeoutError:
            if own_time:
                raise GenerationTimeoutError(
                    f"no place became free within the answer's own {seconds:g} s"
                ) from None
            raise self._busy("no place became free in time") from None
        finally:
            self.queued -= count

    def _busy(self, reason: str) -> ApiError:
        return ApiError(
            f"the server is busy: {reason}; {self.in_flight} answers decode, {self.queued} wait",
            429,
            code="rate_limit_exceeded",
            retry_after=min(1 + self.queued / self._settings.max_answers, 60),
        )
