"""Short forms of what `make torture` does to the real server and to the connection with it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from pasta_async import Client, Generation
from pasta_async.backends.sglang import SGLangBackend
from pasta_async.errors import BackendConnectError, BackendProtocolError, BackendTransportError
from tests.helpers.real_server import SGLangServer, free_port
from tests.torture.cancellation import ServerEngine, break_off
from tests.torture.faults import Accident, FaultProxy, check_error, through_proxy
from tests.torture.trials import Trials, draw_prompt

pytestmark = pytest.mark.timeout(600)  # the first test waits for the server to start

PROMPTS = [draw_prompt(Trials().random(number)) for number in range(2)]


async def test_a_fault_ends_its_own_answer_by_name_and_no_other(server: SGLangServer) -> None:
    faults = {
        Accident("dropped", 2): "right",  # sent again
        Accident("status 503", 1): "right",
        Accident("html", 1): "right",
        Accident("cut", 0, 3100): "right",  # sent again, behind what had come
        Accident("reset", 0, 3100): "right",
        Accident("garbage", 0, 3100): "right",
        Accident("status 400", 2): "BackendStatusError",
        Accident("stalled", 0, 3100): "BackendTimeoutError",
    }
    async with through_proxy(server.url, PROMPTS) as trials:
        for fault, expected in faults.items():
            assert await trials.trial(fault) == expected, fault


async def test_answers_end_by_name_when_their_server_is_lost_and_the_client_goes_on(
    server: SGLangServer,
) -> None:
    port = free_port()
    backend = SGLangBackend(f"http://127.0.0.1:{port}")
    async with Client(backend) as client:

        async def ask() -> list[Generation | BaseException]:
            answers = (client.generate(prompt, parallel="always") for prompt in PROMPTS)
            return await asyncio.gather(*answers, return_exceptions=True)

        async with AsyncExitStack() as lost:
            proxy = FaultProxy(server.url)
            await lost.enter_async_context(proxy.listening(port))
            expected = await ask()
            fault = Accident("stalled", at=1200)
            proxy.expect(fault)
            answering = asyncio.create_task(ask())
            await fault.struck.wait()
        for result, whole in zip(await answering, expected, strict=True):
            assert isinstance(whole, Generation)
            if isinstance(result, BaseException):
                assert isinstance(check_error(result, whole), BackendTransportError | BackendProtocolError)
        assert any(isinstance(result, BaseException) for result in answering.result())
        for error in await ask():
            assert isinstance(error, BaseException)
            assert isinstance(error.__cause__ or error, BackendConnectError)
        async with FaultProxy(server.url).listening(port):
            assert [str(answer) for answer in await ask()] == [str(answer) for answer in expected]
    await backend.aclose()


async def test_answers_that_are_broken_off_leave_nothing_on_the_server(server: SGLangServer) -> None:
    engine = ServerEngine(server, SGLangBackend(server.url))
    outcomes = await break_off(Trials(count=8), engine, at_once=4)
    assert sum(count for way, count in outcomes.items() if way != "ended before") > 3
