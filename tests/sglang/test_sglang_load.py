"""How busy a server is, by what it says in `/v1/loads`."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from odd_server import OddServer, backend

from pasta_async.errors import BackendError, BackendProtocolError, BackendStatusError
from pasta_async.load import EngineLoad, StepTimes

RANK: dict[str, Any] = {
    "dp_rank": 0,
    "num_running_reqs": 3,
    "num_waiting_reqs": 2,
    "max_running_requests": 64,
    "token_usage": 0.25,
    "decode_moments": [10, 20, 30_000, 50, 70_000, 20],
    "total_prefill_uncached_tokens": 1000,
    "total_prefill_busy_us": 50_000,
}
LOADS = "/v1/loads"


def serving(answer: Any) -> OddServer:
    return OddServer({LOADS: answer})


async def test_what_the_server_says() -> None:
    made = backend(serving({"loads": [RANK]}))
    await made.connect()
    expected = EngineLoad(64, 3, 2, 0.25, StepTimes(10, 20, 0.03, 50, 0.07), prefill=5e-5)
    assert await made.load("a") == expected
    await made.aclose()


async def test_ranks_together_and_a_server_that_has_not_decoded_yet() -> None:
    idle = {"num_running_reqs": 0, "num_waiting_reqs": 0, "max_running_requests": 64, "token_usage": 0.5}
    made = backend(serving({"loads": [RANK, {**idle, "decode_moments": None}]}))
    await made.connect()
    found = await made.load("a")
    assert found == EngineLoad(128, 3, 2, 0.5, StepTimes(10, 20, 0.03, 50, 0.07), prefill=5e-5, replicas=2)
    await made.aclose()


async def read_all(readings: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> EngineLoad:
    """The last of several readings of a server with one rank, each taken anew."""
    monkeypatch.setattr("pasta_async.backends.sglang.load.FRESH_SECONDS", 0.0)
    server = serving({"loads": [RANK]})
    made = backend(server)
    await made.connect()
    found = None
    for reading in readings:
        server.routes[LOADS] = {"loads": [RANK | reading]}
        found = await made.load("a")
    await made.aclose()
    assert found is not None
    return found


def counted(fixed: float, per_request: float, prefill: float, *, steps: int) -> list[float]:
    """What a server counts in so many steps of 1 to 16 requests, and as many prompts of 100 tokens."""
    each = [(1 + step % 16, fixed + per_request * (1 + step % 16)) for step in range(steps)]
    pairs = [(1, n, 1e6 * t, n * n, n * 1e6 * t, n) for n, t in each]
    return [*map(sum, zip(*pairs, strict=True)), 100 * steps, 100 * steps * 1e6 * prefill]


def told(counts: list[float]) -> dict[str, Any]:
    *moments, tokens, busy = counts
    return {
        "decode_moments": moments,
        "total_prefill_uncached_tokens": round(tokens),
        "total_prefill_busy_us": round(busy),
    }


async def test_what_steps_took_long_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    early = [1000.0 * one for one in counted(0.010, 0.0005, 1e-4, steps=1600)]
    late = counted(0.040, 0.0, 4e-4, steps=800)
    readings = [told([e + n * x for e, x in zip(early, late, strict=True)]) for n in range(60)]
    found = await read_all(readings, monkeypatch)
    assert found.steps is not None
    assert found.steps.fit() == pytest.approx((0.040, 0.0, 0.0), rel=0.02, abs=2e-5)
    assert found.prefill == pytest.approx(4e-4, rel=0.02)


async def test_a_server_that_was_started_again_counts_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = (counted(0.01, 0.0005, 1e-4, steps=steps) for steps in (1600, 160))
    found = await read_all([told(before), told(after)], monkeypatch)
    assert found.steps is not None and found.steps.steps == 1760
    assert found.steps.fit() == pytest.approx((0.01, 0.0005, 0.0))


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"loads": []}, BackendProtocolError),
        ({"loads": [{**RANK, "num_running_reqs": "many"}]}, BackendProtocolError),
        ({"loads": [{**RANK, "decode_moments": [10, 1e300, 1, 1, 1, 1]}]}, BackendProtocolError),
        (httpx.Response(500, text="no"), BackendStatusError),
        (httpx.ReadTimeout("late"), BackendError),
    ],
)
async def test_what_cannot_be_read_is_asked_for_once_in_a_while(
    answer: Any, error: type[BackendError]
) -> None:
    server = serving(answer)
    made = backend(server)
    await made.connect()
    for _ in range(3):
        with pytest.raises(error):
            await made.load("a")
    assert len(server.sent(LOADS)) == 1
    await made.aclose()


async def test_a_server_without_the_endpoint_says_nothing() -> None:
    made = backend(OddServer())
    await made.connect()
    assert await made.load("a") is None
    await made.aclose()


async def test_all_answers_share_a_reading() -> None:
    server = serving({"loads": [RANK]})
    made = backend(server)
    await made.connect()
    await asyncio.gather(*(made.load(f"answer {n}") for n in range(50)))
    assert len(server.sent(LOADS)) == 1
    await made.aclose()


async def test_who_no_longer_waits_leaves_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = asyncio.Event()

    class Stuck(OddServer):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if request.url.path == LOADS:
                stuck.set()
                await asyncio.Event().wait()
            return await super().handle_async_request(request)

    made = backend(Stuck())
    await made.connect()
    before = asyncio.all_tasks()
    asking = asyncio.create_task(made.load("a"))
    await stuck.wait()
    asking.cancel()
    await asyncio.wait([asking])
    assert asyncio.all_tasks() - {asking} == before
    monkeypatch.setattr("pasta_async.backends.sglang.load.WAIT_SECONDS", 0.0)
    with pytest.raises(BackendError):
        await made.load("a")
    await made.aclose()
