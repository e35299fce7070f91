"""Many pieces of work, some at a time."""

from __future__ import annotations

import asyncio

import pytest

from pasta_async.errors import BackendError
from pasta_async.jobs import for_each


async def test_never_more_at_once_than_asked_for_and_in_order() -> None:
    started: list[int] = []
    under_way = most = 0

    async def work(item: int) -> None:
        nonlocal under_way, most
        started.append(item)
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1

    await for_each(range(10), work, 3)
    assert started == list(range(10))
    assert most == 3


async def test_the_first_failure_is_raised_alone_and_ends_the_others() -> None:
    started: list[int] = []
    never = asyncio.Event()

    async def work(item: int) -> None:
        started.append(item)
        if item == 2:
            raise BackendError("no more") from OSError("the cause")
        await never.wait()

    with pytest.raises(BackendError) as failed:
        await for_each(range(9), work, 3)
    assert isinstance(failed.value.__cause__, OSError)
    assert started == [0, 1, 2]
