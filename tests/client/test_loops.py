"""One client and several event loops: one after another, never two at once."""

from __future__ import annotations

import asyncio

import pytest

from pasta_async import Client, Generation, InvalidStateError
from pasta_async.testing import ScriptedBackend
from tests.interpreter.support import RICH


def test_a_client_may_be_used_in_one_loop_after_another() -> None:
    client = Client(ScriptedBackend(RICH))
    first, second = (asyncio.run(client.generate("Why?")) for _ in range(2))
    assert first.text == second.text
    asyncio.run(client.aclose())


async def test_a_second_loop_at_the_same_time_is_refused() -> None:
    async def ask() -> Generation:
        return await client.generate("Why?")

    async with Client(ScriptedBackend(RICH)) as client:
        await ask()
        with pytest.raises(InvalidStateError):
            await asyncio.to_thread(asyncio.run, ask())
        assert (await ask()).finish_reason == "stop"
