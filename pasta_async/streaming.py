"""An answer while it is decoded: the streams that users read."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any, Generic, Self, TypeVar

from pasta_async.clock import wait_out
from pasta_async.errors import InvalidStateError
from pasta_async.events import Emit, Event, TextDelta
from pasta_async.observers import Observation
from pasta_async.results import Generation

_E = TypeVar("_E")
_R = TypeVar("_R")

_BUFFER = 128
"""Events that may wait for the reader; a thread that adds more then waits for it."""


class ResultStream(Generic[_E, _R]):
    """The events, as they happen, of work that ends with a result. Used with `async with`.

    A slow reader makes the threads wait once a bounded buffer is full.

    Args:
        run: Does the work. It hands events to its argument, and awaits the awaitable that this may return.
        observation: The observers of the answer, which have its record so far.
    """

    def __init__(
        self,
        run: Callable[[Emit[_E]], Coroutine[Any, Any, _R]],
        observation: Observation,
    ) -> None:
        self._run = run
        self._observation = observation
        self._events: deque[_E] = deque()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._result: _R | None = None
        self._task: asyncio.Task[_R] | None = None

    async def __aenter__(self) -> Self:
        """Start the answer."""
        if self._task is not None:
            raise InvalidStateError("a stream is entered once; call `stream` again for another answer")
        self._task = asyncio.create_task(self._run(self._emit), name="pasta answer")
        self._task.add_done_callback(lambda _: self._news.set())
        return self

    async def __aexit__(self, *exc: object) -> None:
        """End the answer, finished or not: when this returns, no task and no request of it is left.

        That is so even if it is cancelled meanwhile.
        """
        cancelled: asyncio.CancelledError | None = None
        if self._task:
            self._task.cancel()
            cancelled = await wait_out(self._task.done, partial(asyncio.wait, [self._task]))
            if not self._task.cancelled() and not self._task.exception():
                self._result = self._task.result()
        if cancelled:
            raise cancelled

    def __aiter__(self) -> Self:
        """The events, until the answer is done."""
        return self

    async def __anext__(self) -> _E:
        """The next event.

        Raises:
            PastaError: The error that ended the answer, after the events that came before it.

        Cancelling it leaves the answer running until the block is left.
        """
        if self._task is None:
            raise InvalidStateError("enter the stream first: async with client.stream(...) as s")
        while not self._events:
            self._room.set()  # the reader is here, so threads that wait for room in the buffer may go on
            if self._task.done():
                if not self._task.cancelled():
                    self._result = self._task.result()
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._events.popleft()

    async def result(self) -> _R:
        """The finished answer; unread events are passed over.

        Raises:
            PastaError: The error that ended the answer.

        Cancelling it leaves the answer running until the block is left.
        """
        async for _ in self:
            pass
        if self._result is None:
            raise InvalidStateError("the stream was left before the answer was done")
        return self._result

    @property
    def partial(self) -> Generation | None:
        """The answer so far, at any moment, also after leaving the block; None before it has begun."""
        observation = self._observation
        if observation.generation or not observation.run:
            return observation.generation
        return observation.run.partial()

    def _emit(self, events: list[_E]) -> Coroutine[Any, Any, None] | None:
        self._events += events
        self._news.set()
        return self._has_room() if len(self._events) > _BUFFER else None

    async def _has_room(self) -> None:
        """Wait while too many events are unread."""
        while len(self._events) > _BUFFER:
            self._room.clear()
            await self._room.wait()


class AnswerStream(ResultStream[Event, Generation]):
    """The events of one answer. Made by `Client.stream`."""

    async def text_deltas(self) -> AsyncIterator[str]:
        """The visible text in document order, piece by piece. Other events are passed over.

        Cancelling it leaves the answer running until the block is left.
        """
        async for event in self:
            if isinstance(event, TextDelta):
                yield event.delta
