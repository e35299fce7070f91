"""One attempt at something that many want at the same time: connecting, or encoding one prompt."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class SingleFlight(Generic[_T]):
    """Callers share one attempt, and its failure; behind a lock each would wait for a silent server anew."""

    def __init__(self) -> None:
        self._tasks: dict[Hashable, asyncio.Task[_T]] = {}
        self._waiting: Counter[asyncio.Task[_T]] = Counter()

    async def run(self, work: Callable[[], Coroutine[None, None, _T]], key: Hashable = None) -> _T:
        """Join the attempt under way that has this key, or begin one.

        Cancelling it leaves the attempt to the others; with the last of them the attempt is cancelled.
        """
        task = self._tasks.get(key)
        if task is None or task.done():
            task = self._tasks[key] = asyncio.create_task(work())
        self._waiting[task] += 1
        try:
            return await asyncio.shield(task)
        except Exception as error:
            raise _copy(error) from error  # each caller's own: it may be given a partial answer
        finally:
            self._waiting[task] -= 1
            if not self._waiting[task]:
                del self._waiting[task]
                if self._tasks.get(key) is task:
                    del self._tasks[key]
                if not task.done():
                    task.cancel()
                    await asyncio.wait([task])


def _copy(error: Exception) -> Exception:
    made = type(error).__new__(type(error), *error.args)
    made.__dict__.update(error.__dict__)
    return made
