"""How many threads of a client decode at once, and who goes first."""

from __future__ import annotations

import asyncio
import heapq
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

__all__ = ["PrioritySemaphore"]


class PrioritySemaphore:
    """A semaphore whose waiters are served by priority, then by arrival.

    Threads of answers that have begun go before new answers: else mains that hold every slot and wait for
    their chunks would starve them. Cancelling a waiter takes it out of the queue.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = total
        self._order = count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    @property
    def busy(self) -> int:
        """Slots in use."""
        return self.total - self._free

    @asynccontextmanager
    async def slot(self, priority: int = 0) -> AsyncGenerator[None]:
        """Hold a slot; the lowest `priority` goes first."""
        await self._acquire(priority)
        try:
            yield
        finally:
            self._release()

    async def _acquire(self, priority: int) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (priority, next(self._order), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was handed a slot in the same moment
                self._release()
            turn.cancel()
            raise

    def _release(self) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
