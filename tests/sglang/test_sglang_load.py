"""A server's load, by its `/v1/loads`."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from pasta_async.engine_load import EngineLoad
from pasta_async.errors import BackendConnectError, BackendError, BackendProtocolError, BackendStatusError
from tests.helpers.odd_server import OddServer, backend, good, pieces_of

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


async def readings(*ranks_of: list[dict[str, Any]]) -> EngineLoad:
    """The last of several readings of a server with these ranks."""
    server = OddServer()
    engine = backend(server)
    load = None
    for ranks in ranks_of:
        server.routes[LOADS] = {"loads": ranks}
        load = await engine.load()
    assert load is not None
    return load


async def test_the_load_is_that_of_all_ranks_since_the_last_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pasta_async.backends.http.backend.FRESH_SECONDS", 0.0)  # no reading is used twice
    assert await readings([RANK]) == EngineLoad(64, 3, 2, 0.25)  # ten steps say nothing yet
    measured = RANK | {"decode_moments": counted(0.01, 0.0005, steps=160)}
    assert (await readings([measured])).step_doubles_at == pytest.approx(20)
    older = RANK | {"decode_moments": counted(0.01, 0.0005, steps=1600)}
    assert (await readings([older], [measured])).step_doubles_at == pytest.approx(20)
    idle = RANK | {"num_running_reqs": 0, "num_waiting_reqs": 0, "token_usage": 0.5, "decode_moments": None}
    load = await readings([measured, idle])
    assert (load.capacity, load.running, load.queued, load.kv_use) == (128, 3, 2, 0.5)
    assert load.step_doubles_at == pytest.approx(2 * 20)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"loads": [RANK]}, None),
        (httpx.Response(200, text="no JSON"), BackendProtocolError),
        (httpx.Response(500, text="no"), BackendStatusError),
        (httpx.ReadTimeout("late"), BackendError),
    ],
)
async def test_all_answers_share_a_reading_or_its_failure(
    monkeypatch: pytest.MonkeyPatch, answer: Any, error: type[BackendError] | None
) -> None:
    monkeypatch.setattr("pasta_async.backends.http.backend.FRESH_SECONDS", 60.0)
    server = OddServer({LOADS: answer})
    engine = backend(server)
    loads = await asyncio.gather(*(engine.load() for _ in range(9)), return_exceptions=True)
    assert len(server.sent(LOADS)) == 1
    assert all(isinstance(load, error or EngineLoad) for load in loads)


async def test_a_server_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck(OddServer):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            return await asyncio.Future()

    monkeypatch.setattr("pasta_async.backends.http.backend.WAIT_SECONDS", 0.0)
    with pytest.raises(BackendError):
        await backend(Stuck()).load()


@pytest.mark.parametrize("dies", ["before the handshake", "after it"])
async def test_a_router_answers_while_it_lists_a_worker_that_has_died(
    monkeypatch: pytest.MonkeyPatch, dies: str
) -> None:
    """Its own checks take minutes to find out; until then no answer begins with a handshake of its own."""
    monkeypatch.setattr("pasta_async.backends.http.backend.FRESH_SECONDS", 0.0)  # no reading is used twice
    healthy = [{"url": f"http://odd/{name}", "is_healthy": True} for name in ("first", "second")]
    server = OddServer({"/workers": {"workers": healthy}})
    usual = {**server.routes, LOADS: {"loads": [RANK]}}
    endpoints = ("/server_info", "/model_info", "/tokenize", LOADS)
    for endpoint in endpoints:
        server.routes[f"/first{endpoint}"] = server.routes[f"/second{endpoint}"] = usual[endpoint]
    refused = {f"/first{endpoint}": httpx.ConnectError("refused") for endpoint in endpoints}
    engine = backend(server)
    if dies == "after it":
        await engine.connect()
    server.routes |= refused
    await engine.connect()
    for _ in range(2):
        with pytest.raises(BackendConnectError):
            await engine.load()
        server.decoding = [good()]
        assert await pieces_of(engine)
    assert len(server.sent("/first/tokenize")) + len(server.sent("/second/tokenize")) == 1
    server.routes["/workers"] = {"workers": healthy[1:]}
    load = await engine.load()  # each reading asks the router which workers there are
    assert load and load.capacity == RANK["max_running_requests"]
    server.routes["/workers"] = {"workers": healthy}
    server.routes[f"/first{LOADS}"] = server.routes[f"/second{LOADS}"]
    load = await engine.load()
    assert load and load.capacity == 2 * RANK["max_running_requests"]
