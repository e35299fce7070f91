"""An answer while it is decoded: the stream that users read."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Self

import anyio

from pasta_async.events import TextDelta

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from types import TracebackType

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from pasta_async.events import Event
    from pasta_async.results import Generation

    Emit = Callable[[list[Event]], Awaitable[None]]
    Watch = Callable[[Callable[[], Generation]], None]

__all__ = ["AnswerStream"]

_BUFFER = 64
"""Batches of events that may wait for the reader before the threads wait for it."""


class AnswerStream:
    """The events of one answer, as they happen. Made by `Client.stream`, used with `async with`.

    A slow reader makes the threads wait once a bounded buffer is full.
    """

    def __init__(self, run: Callable[[Emit, Watch], Awaitable[Generation]]) -> None:
        self._run = run
        self._batch: deque[Event] = deque()
        self._generation: Generation | None = None
        self._partial: Callable[[], Generation] | None = None
        self._task: asyncio.Task[Generation] | None = None
        self._send: MemoryObjectSendStream[list[Event]]
        self._receive: MemoryObjectReceiveStream[list[Event]]

    async def __aenter__(self) -> Self:
        """Start the answer."""
        self._send, self._receive = anyio.create_memory_object_stream[list["Event"]](_BUFFER)
        self._task = asyncio.create_task(self._answer(), name="pasta answer")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the answer, finished or not: when this returns, no task and no request of it is left."""
        await self._end()

    def __aiter__(self) -> Self:
        """The events, until the answer is done."""
        return self

    async def __anext__(self) -> Event:
        """The next event.

        Raises:
            PastaError: What ended the answer, after the events that came before it.

        Cancelling it leaves the answer running until the block is left.
        """
        if not self._batch:
            self._batch.extend(await self._next_batch())
        return self._batch.popleft()

    async def text_deltas(self) -> AsyncIterator[str]:
        """The visible text in document order, piece by piece. Other events are passed over."""
        async for event in self:
            if isinstance(event, TextDelta):
                yield event.delta

    async def result(self) -> Generation:
        """The finished answer; events that were not read are passed over. Raises what ended the answer."""
        async for _ in self:
            pass
        if self._generation is None:
            raise RuntimeError("the stream was left before the answer was done")
        return self._generation

    @property
    def partial(self) -> Generation | None:
        """The answer so far, at any moment, also after leaving the block; None before it has begun."""
        return self._generation or (self._partial() if self._partial else None)

    async def _answer(self) -> Generation:
        with self._send:
            return await self._run(self._emit, self._watch)

    def _watch(self, partial: Callable[[], Generation]) -> None:
        self._partial = partial

    async def _emit(self, events: list[Event]) -> None:
        try:
            self._send.send_nowait(events)
        except anyio.WouldBlock:
            await self._send.send(events)

    async def _next_batch(self) -> list[Event]:
        if self._task is None:
            raise RuntimeError("enter the stream first: async with client.stream(...) as s")
        try:
            try:
                return self._receive.receive_nowait()
            except anyio.WouldBlock:
                return await self._receive.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._generation = self._task.result()
            raise StopAsyncIteration from None

    async def _end(self) -> None:
        """Cancel the answer and wait until it is gone, even if we are cancelled meanwhile."""
        cancelled: asyncio.CancelledError | None = None
        if self._task:
            self._task.cancel()
            while not self._task.done():
                try:
                    await asyncio.wait([self._task])
                except asyncio.CancelledError as error:
                    cancelled = error
            if not self._task.cancelled() and not self._task.exception():
                self._generation = self._task.result()
        self._receive.close()
        if cancelled:
            raise cancelled
