"""The virtual clock: time moves when nothing else can, in one order, on any loop."""

from __future__ import annotations

import asyncio

import pytest

from pasta_async.testing import VirtualClock


@pytest.mark.loop_matrix
async def test_sleepers_wake_in_order_of_time_then_of_arrival() -> None:
    clock = VirtualClock()
    woken: list[tuple[float, str]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((clock.time(), name))

    names = {"c": 2.0, "a": 1.0, "d": 2.0, "b": 1.5, "e": 2.0}
    await asyncio.gather(*(sleeper(name, seconds) for name, seconds in names.items()))
    assert woken == [(1.0, "a"), (1.5, "b"), (2.0, "c"), (2.0, "d"), (2.0, "e")]


@pytest.mark.loop_matrix
async def test_time_stands_still_while_a_task_can_run() -> None:
    clock = VirtualClock()
    seen: list[float] = []

    async def busy() -> None:
        for _ in range(200):
            await asyncio.sleep(0)
            seen.append(clock.time())

    await asyncio.gather(busy(), clock.sleep(5))
    assert seen == [0.0] * 200
    assert clock.time() == 5


@pytest.mark.loop_matrix
async def test_a_cancelled_sleeper_is_forgotten_and_moves_no_time() -> None:
    clock = VirtualClock()
    tasks = [asyncio.create_task(clock.sleep(n)) for n in (1, 2, 3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[2].cancel()
    await tasks[1]
    assert clock.time() == 2
    await asyncio.sleep(0)
    assert clock.time() == 2
    assert tasks[0].cancelled()
    assert tasks[2].cancelled()


@pytest.mark.loop_matrix
async def test_it_waits_beside_real_io() -> None:
    """Somebody who waits for a worker thread counts as blocked, and is still served."""
    clock = VirtualClock()
    worker = asyncio.create_task(asyncio.to_thread(sum, range(1000)))
    await clock.sleep(60)
    assert await worker == 499500
    assert clock.time() == 60


def test_one_clock_serves_loop_after_loop() -> None:
    clock = VirtualClock()

    async def leave_a_sleeper() -> None:
        sleeper = asyncio.create_task(clock.sleep(1000))
        await clock.sleep(1)
        assert not sleeper.done()

    asyncio.run(leave_a_sleeper())
    asyncio.run(clock.sleep(1))
    assert clock.time() == 2
