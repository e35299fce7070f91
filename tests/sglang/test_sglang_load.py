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


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"loads": []}, BackendProtocolError),
        ({"loads": [{**RANK, "num_running_reqs": "many"}]}, BackendProtocolError),
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
