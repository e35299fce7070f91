"""What the endpoints of a server share: a connected client, and a bounded queue for its answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import Scope

from pasta_async.client import Client
from pasta_async.errors import InvalidStateError
from pasta_async.options import Limits
from pasta_async.protocol import ModelInfo
from pasta_async.server.errors import ApiError
from pasta_async.server.settings import ServerSettings


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


def path_in_app(scope: Scope) -> str:
    """The path of a request below where the app is mounted."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


class Admission:
    """Lets a number of answers decode at once; a bounded queue, first come first served, waits for its turn.

    A request for several choices takes as many places. It takes them one by one as they become free, while
    whoever came later waits behind it.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._places = asyncio.Semaphore(settings.max_answers)
        self._head = asyncio.Lock()
        self.in_flight: int = 0
        """Answers that decode."""
        self.queued: int = 0
        """Answers that wait."""

    @asynccontextmanager
    async def enter(self, count: int) -> AsyncGenerator[None]:
        """Hold places for so many answers.

        Raises:
            ApiError: 429: the queue is full, or the wait took too long. 400: more than there are places.

        Cancelling it gives the places, or the place in the queue, back.
        """
        async with AsyncExitStack() as held:
            await self._acquire(held, count)
            self.in_flight += count
            try:
                yield
            finally:
                self.in_flight -= count

    async def _acquire(self, held: AsyncExitStack, count: int) -> None:
        settings = self._settings
        if count > settings.max_answers:
            raise ApiError(f"at most {settings.max_answers} answers decode at once here, not {count}")
        free = 0 if self.queued else settings.max_answers - self.in_flight
        if count > free and self.queued + count > settings.max_queue:
            raise self._busy("too many answers wait already")
        self.queued += count
        try:
            async with asyncio.timeout(settings.queue_timeout), self._head:
                for _ in range(count):
                    await held.enter_async_context(self._places)
        except TimeoutError:
            raise self._busy("no place became free in time") from None
        finally:
            self.queued -= count

    def _busy(self, why: str) -> ApiError:
        return ApiError(
            f"the server is busy: {why}; {self.in_flight} answers decode, {self.queued} wait",
            429,
            code="rate_limit_exceeded",
            retry_after=min(1 + self.queued / self._settings.max_answers, 60),
        )
