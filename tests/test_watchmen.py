"""The watchmen of conftest.py: a test that blocks the loop or leaves something behind fails, and says why."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CARELESS = """
import asyncio, os, time
import pytest

async def test_leaves_a_task():
    asyncio.get_running_loop().keep = asyncio.create_task(asyncio.Event().wait(), name="forgotten")

async def test_blocks():
    time.sleep(0.001)

async def test_loses_an_exception():
    async def fail():
        raise ValueError("nobody asked")
    task = asyncio.create_task(fail())
    await asyncio.sleep(0)
    await asyncio.sleep(0)

@pytest.fixture
async def worker():
    task = asyncio.create_task(asyncio.Event().wait())
    yield task
    task.cancel()

async def test_uses_a_fixture_with_a_task(worker):
    assert not worker.done()

@pytest.mark.loop_matrix
async def test_runs_on_every_loop():
    loop = asyncio.get_running_loop()
    print("ran on", type(loop).__module__, loop.get_debug())

def test_may_block_without_a_loop():
    time.sleep(0.001)
"""


def test_they_catch_what_they_watch_for(pytester: pytest.Pytester) -> None:
    pytester.makeconftest((Path(__file__).parent / "conftest.py").read_text())
    pytester.makepyfile(**{"interpreter/test_careless": CARELESS})  # where no call may block
    scope = "asyncio_default_fixture_loop_scope=function"
    result = pytester.runpytest_inprocess("--asyncio-mode=auto", "-p", "no:anyio", "-o", scope, "-rA")
    result.assert_outcomes(failed=3, passed=5)
    result.stdout.fnmatch_lines_random(
        [
            "*left tasks behind:*",
            "*name='forgotten'*",
            "*BlockingError: Blocking call to time.sleep*",
            "*the loop reported:*",
            "*nobody asked*",
            "ran on uvloop False",
            "ran on asyncio.unix_events False",
            "ran on conftest True",
        ]
    )
