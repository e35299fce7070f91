"""A server's load, by its `/v1/loads`."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from odd_server import OddServer, backend

from pasta_async.errors import BackendError, BackendProtocolError, BackendStatusError
from pasta_async.load import EngineLoad

RANK: dict[str, Any] = {
    "dp_rank": 0,
    "num_running_reqs": 3,
    "num_waiting_reqs": 2,
    "max_running_requests": 64,
    "token_usage": 0.25,
    "decode_moments": [10, 20, 30_000, 50, 70_000, 20],
}
LOADS = "/v1/loads"


def counted(fixed: float, per_request: float, *, steps: int) -> list[float]:
    """The `decode_moments` of so many steps of 1 to 16 requests."""
    times = [(1 + step % 16, 1e6 * (fixed + per_request * (1 + step % 16))) for step in range(steps)]
    moments = [(1, size, micros, size**2, size * micros, size) for size, micros in times]
    return [float(sum(column)) for column in zip(*moments, strict=True)]


async def read_all(monkeypatch: pytest.MonkeyPatch, *readings: list[dict[str, Any]]) -> EngineLoad:
    """The last of several readings of a server with these ranks, each taken anew."""
    monkeypatch.setattr("pasta_async.backends.http.backend.FRESH_SECONDS", 0.0)
    server = OddServer()
    engine = backend(server)
    await engine.connect()
    load = None
    for ranks in readings:
        server.routes[LOADS] = {"loads": ranks}
        load = await engine.load()
    await engine.aclose()
    assert load is not None
    return load


async def test_what_the_server_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await read_all(monkeypatch, [RANK]) == EngineLoad(64, 3, 2, 0.25)  # ten steps say nothing yet
    load = await read_all(monkeypatch, [RANK | {"decode_moments": counted(0.01, 0.0005, steps=160)}])
    assert load.step_doubles_at == pytest.approx(20)


async def test_ranks_together_and_a_server_that_has_not_decoded_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = {"num_running_reqs": 0, "num_waiting_reqs": 0, "max_running_requests": 64, "token_usage": 0.5}
    rank = RANK | {"decode_moments": counted(0.01, 0.0005, steps=160)}
    load = await read_all(monkeypatch, [rank, {**idle, "decode_moments": None}])
    assert (load.capacity, load.running, load.queued, load.kv_use) == (128, 3, 2, 0.5)
    assert load.step_doubles_at == pytest.approx(2 * 20)


async def test_a_server_that_was_started_again_counts_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = [[RANK | {"decode_moments": counted(0.01, 0.0005, steps=steps)}] for steps in (1600, 160)]
    load = await read_all(monkeypatch, *readings)
    assert load.step_doubles_at == pytest.approx(20)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (httpx.Response(200, text="no JSON"), BackendProtocolError),
        (httpx.Response(500, text="no"), BackendStatusError),
        (httpx.ReadTimeout("late"), BackendError),
    ],
)
async def test_a_failure_serves_as_long_as_a_reading(
    monkeypatch: pytest.MonkeyPatch, answer: Any, error: type[BackendError]
) -> None:
    monkeypatch.setattr("pasta_async.backends.http.backend.FRESH_SECONDS", 60.0)
    server = OddServer({LOADS: answer})
    engine = backend(server)
    await engine.connect()
    for _ in range(3):
        with pytest.raises(error):
            await engine.load()
    assert len(server.sent(LOADS)) == 1
    await engine.aclose()


async def test_all_answers_share_a_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pasta_async.backends.http.backend.FRESH_SECONDS", 60.0)
    server = OddServer({LOADS: {"loads": [RANK]}})
    engine = backend(server)
    await engine.connect()
    await asyncio.gather(*(engine.load() for _ in range(50)))
    assert len(server.sent(LOADS)) == 1
    await engine.aclose()


async def test_a_server_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck(OddServer):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if request.url.path == LOADS:
                await asyncio.Event().wait()
            return await super().handle_async_request(request)

    engine = backend(Stuck())
    await engine.connect()
    monkeypatch.setattr("pasta_async.backends.http.backend.WAIT_SECONDS", 0.0)
    with pytest.raises(BackendError):
        await engine.load()
    await engine.aclose()
