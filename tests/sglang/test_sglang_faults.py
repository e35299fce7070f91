"""Short forms of what `make torture` does to the real server and to the connection with it."""

from __future__ import annotations

import pytest
from real_server import RealServer

from tests.torture.cancellation import break_off
from tests.torture.engines import ServerEngine
from tests.torture.faults import lose_place, through_proxy
from tests.torture.measured import Plan
from tests.torture.spoilt import Fault

pytestmark = pytest.mark.timeout(600)  # the first test waits for the server to start

PASSING = [
    Fault("refused", 2, 0),
    Fault("status 503", 1, 0),
    Fault("reset", 0, 0, "/tokenize"),
    Fault("status 503", 0, 0, "/v1/loads", lasting=True),
]
"""Answers are right in spite of them."""

ENDING = [
    Fault("cut", 0, 3100),
    Fault("wrong id", 0, 1500),
    Fault("refused", 1, 0, lasting=True),
    Fault("status 502", 2, 0, lasting=True),
    Fault("half a body", 3, 0, lasting=True),
    Fault("html", 0, 0, "/tokenize", lasting=True, victim=1),
]
"""They end the answer that they strike."""


@pytest.fixture
def engine(server: RealServer) -> ServerEngine:
    return ServerEngine(server.url, 0)


async def test_a_fault_ends_its_own_answer_by_name_and_no_other(engine: ServerEngine) -> None:
    async with through_proxy(engine, at_once=2, patience=4) as faults:
        for fault in (*PASSING, *ENDING):
            await faults.trial(fault)
    outcomes = {fault: [*counts] for fault, counts in faults.found.items()}
    assert outcomes.keys() == {str(fault) for fault in (*PASSING, *ENDING)}
    assert not any("too late" in found for found in outcomes.values())
    right = {fault for fault, (found,) in outcomes.items() if found.startswith("right")}
    assert right == {str(fault) for fault in PASSING}


async def test_an_answer_ends_in_its_time_though_the_server_cannot_be_told(engine: ServerEngine) -> None:
    async with through_proxy(engine, at_once=2, patience=4) as faults:
        await faults.trial(Fault("dropped", 0, 0, "/abort_request", lasting=True), leaves_after=0.3)
    assert [*faults.found.values()] == [{"GenerationTimeoutError": 1}]


async def test_answers_end_by_name_when_their_server_is_lost_and_the_client_goes_on(
    engine: ServerEngine,
) -> None:
    found = await lose_place(engine, at_once=2)
    assert found["BackendTransportError"]


async def test_answers_that_are_broken_off_leave_nothing_on_the_server(engine: ServerEngine) -> None:
    figures = await break_off(Plan(count=8), engine, at_once=4)
    assert figures["broken off"] > 3
