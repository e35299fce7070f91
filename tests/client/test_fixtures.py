"""The fixtures that users' tests may ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pasta_async import GenerationTimeoutError, Limits, ThreadFailedError
from pasta_async.testing import Fault, VirtualClock

if TYPE_CHECKING:  # pytest rewrites its plug-ins as it imports them first
    from pasta_async.testing.fixtures import ScriptedClient

pytest_plugins = ["pasta_async.testing.fixtures"]

WRITTEN = 'One. <promise topic="a" tokens="10"/><async>Two.</async>'


async def test_a_scripted_client_plays_on_the_virtual_clock(
    scripted_client: ScriptedClient, virtual_clock: VirtualClock
) -> None:
    answer = await scripted_client(WRITTEN, latency=1.0, thread_latency={1: 60.0}).generate("Why?")
    assert answer.text == "One. Two."
    assert answer.elapsed == virtual_clock.time() > 60


async def test_its_faults_and_limits(scripted_client: ScriptedClient) -> None:
    with pytest.raises(ThreadFailedError):
        await scripted_client(WRITTEN, faults=[Fault(1, 1)]).generate("Why?")
    with pytest.raises(GenerationTimeoutError):
        await scripted_client(WRITTEN, latency=1.0, limits=Limits(timeout=3)).generate("Why?")
