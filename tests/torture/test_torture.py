"""The parts of `make torture`, for a second or two each, and what they found before."""

from __future__ import annotations

import httpx
import pytest

from pasta_async.server import create_app
from pasta_async.testing import ScriptedBackend
from tests.torture.cancellation import LocalEngine, break_off
from tests.torture.inputs import generate, send
from tests.torture.soak import soak
from tests.torture.trials import Trials


async def test_answers_that_are_broken_off_leave_nothing() -> None:
    outcomes = await break_off(Trials(count=16), LocalEngine(), at_once=4)
    assert sum(count for way, count in outcomes.items() if way != "ended before") > 8


async def test_generated_inputs() -> None:
    assert await generate(Trials(count=5)) == {"typed": 500, "written": 2000, "bodies": 5}


async def test_clients_that_come_and_go() -> None:
    assert (await soak(Trials(count=12)))["whole streams"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "scripted", "prompt": %b}' % (b"1" * 100_000),
        b'{"model": "\\ud800", "messages": [{"role": "user", "content": "\\udfff\xff"}]}',
        b'{"model": "scripted", "prompt": "x", "prompt": [], "__class__": 1}',
        b"\xef\xbb\xbf{}",
    ],
    ids=range(4),
)
async def test_bodies_that_once_were_errors_of_the_server(body: bytes) -> None:
    app = create_app(ScriptedBackend("Fine."))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            await send(http, body)
