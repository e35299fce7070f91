"""One attempt at something that many want at the same time, connecting for instance."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

__all__ = ["SingleFlight"]

_T = TypeVar("_T")


class SingleFlight(Generic[_T]):
    """Callers share one attempt, and its failure; behind a lock each would wait for a silent server anew."""

    def __init__(self) -> None:
        self._task: asyncio.Task[_T] | None = None
        self._waiting = 0

    async def run(self, work: Callable[[], Coroutine[None, None, _T]]) -> _T:
        """Join the attempt under way, or begin one.

        Cancelling it leaves the attempt to the others; with the last of them the attempt is cancelled.
        """
        if self._task is None or self._task.done():
            self._task, self._waiting = asyncio.create_task(work()), 0
        task = self._task
        self._waiting += 1
        try:
            return await asyncio.shield(task)
        except Exception as error:
            raise _copy(error) from error  # each caller's own: it may be given a partial answer
        finally:
            if task is self._task:
                self._waiting -= 1
                if not self._waiting and not task.done():
                    self._task = None
                    task.cancel()
                    await asyncio.wait([task])


def _copy(error: Exception) -> Exception:
    made = type(error).__new__(type(error), *error.args)
    made.__dict__.update(error.__dict__)
    return made
