"""One attempt to connect, shared by all who want to connect at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


class SingleFlight(Generic[_T]):
    """Callers share an attempt and its failure. Behind a lock each would wait for a silent server in turn."""

    def __init__(self) -> None:
        self._task: asyncio.Task[_T] | None = None
        self._waiting = 0

    async def run(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Join the attempt that is under way, or begin one.

        Cancelling it leaves the attempt to the others; with the last of them the attempt is cancelled.
        """
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(work())
            self._waiting = 0
        task = self._task
        self._waiting += 1
        try:
            return await asyncio.shield(task)
        finally:
            self._waiting -= 1
            if not self._waiting and not task.done():
                task.cancel()
                await asyncio.wait([task])
