"""Many pieces of work, some at a time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from pasta_async.errors import PastaError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

__all__ = ["for_each"]

Item = TypeVar("Item")


async def for_each(items: Iterable[Item], work: Callable[[Item], Awaitable[None]], at_once: int) -> None:
    """Do the work for each item, in order, never more than `at_once` at the same time.

    Cancelling it cancels what is under way.

    Raises:
        PastaError: The first one that a piece of work raised; those under way are cancelled.
    """
    queue = iter(items)

    async def worker() -> None:
        for item in queue:
            await work(item)

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(at_once):
                tasks.create_task(worker())
    except* PastaError as failed:
        raise _first(failed) from None


def _first(failures: BaseExceptionGroup[PastaError]) -> PastaError:
    error = failures.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
