"""One layer sends again what failed: so often, after such a wait, and only what may pass."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from pasta_async import (
    BackendConnectError,
    BackendError,
    BackendStatusError,
    BackendTimeoutError,
    Client,
    Generation,
    GenerationTimeoutError,
    Limits,
    Model,
    PastaError,
)
from pasta_async.testing import Fault, ScriptedBackend, VirtualClock

BUSY = BackendStatusError("busy", status=429, retry_after=7.0)


class Flaky(ScriptedBackend):
    """Fails to connect, so often, or never connects."""

    def __init__(self, errors: Sequence[BaseException] = (), *, silent: bool = False) -> None:
        super().__init__("Because.", clock=VirtualClock())
        self._errors, self._silent = list(errors), silent
        self.calls = 0

    async def connect(self) -> Model:
        self.calls += 1
        if self._silent:
            await asyncio.Event().wait()
        if self._errors:
            raise self._errors.pop(0)
        return await super().connect()


async def ask(backend: ScriptedBackend, **limits: Any) -> str:
    async with Client(backend, clock=backend.clock, limits=Limits(**limits)) as client:
        return (await client.generate("Why?")).text


async def test_connecting_is_tried_again() -> None:
    backend = Flaky([BackendConnectError("reset"), BUSY])
    assert await ask(backend) == "Because."
    assert backend.calls == 3
    assert 7.125 <= backend.clock.time() <= 7.25  # half to all of 0.25 s, then what the server said


@pytest.mark.parametrize("retries", [0, 1])
async def test_and_no_oftener_than_the_limit_says(retries: int) -> None:
    backend = Flaky([BUSY] * 9)
    with pytest.raises(BackendStatusError):
        await ask(backend, retries=retries)
    assert backend.calls == retries + 1


@pytest.mark.parametrize("error", [BackendTimeoutError("silent"), BackendStatusError("no", status=400)])
async def test_a_time_out_and_a_refusal_are_final(error: BackendError) -> None:
    backend = Flaky([error])
    with pytest.raises(type(error)):
        await ask(backend)
    assert backend.calls == 1
    assert backend.clock.time() == 0


async def test_requests_are_sent_again_with_growing_waits() -> None:
    error = BackendStatusError("overloaded", status=503)
    backend = ScriptedBackend("Because.", clock=VirtualClock(), faults=[Fault(0, 0, error=error, times=4)])
    assert await ask(backend, retries=4) == "Because."
    starts = [play.started for play in backend.played]
    waits = [after - before for before, after in pairwise(starts)]
    assert len(waits) == 4
    for wait, full in zip(waits, (0.25, 0.5, 1.0, 2.0), strict=True):
        assert full / 2 <= wait <= full


async def test_retry_after_is_followed_for_a_minute_at_most() -> None:
    error = BackendStatusError("come back tomorrow", status=429, retry_after=86_400.0)
    backend = ScriptedBackend("Because.", clock=VirtualClock(), faults=[Fault(0, 0, error=error)])
    assert await ask(backend) == "Because."
    assert backend.clock.time() == 60


async def test_the_time_limit_covers_connecting() -> None:
    backend = Flaky(silent=True)
    async with Client(backend, clock=backend.clock, limits=Limits(timeout=5)) as client:
        ended = await asyncio.gather(*(client.generate("Why?") for _ in range(4)), return_exceptions=True)
    assert [type(error) for error in ended] == [GenerationTimeoutError] * 4
    assert backend.clock.time() == 5


@pytest.mark.parametrize("errors", [[], [BackendStatusError("no", status=400)]], ids=["silent", "refused"])
async def test_an_error_before_decoding_has_an_empty_partial_answer(errors: list[BaseException]) -> None:
    with pytest.raises(PastaError) as caught:
        await ask(Flaky(errors, silent=not errors), timeout=5)
    assert caught.value.partial == Generation.empty()


async def test_a_context_that_was_refused_was_not_computed() -> None:
    backend = ScriptedBackend("Because.", clock=VirtualClock(), faults=[Fault(0, 0, error=BUSY)])
    async with Client(backend, clock=backend.clock) as client:
        usage = (await client.generate("Why?")).usage
    assert usage.requests == 2
    assert usage.prefilled_tokens + usage.cached_tokens == usage.prompt_tokens
