"""The parts of `make torture` that need no real server, for a second or two each."""

from __future__ import annotations

from tests.torture.cancellation import LocalEngine, break_off
from tests.torture.soak import soak
from tests.torture.trials import Trials


async def test_answers_that_are_broken_off_leave_nothing() -> None:
    outcomes = await break_off(Trials(count=16), LocalEngine(), at_once=4)
    assert sum(count for way, count in outcomes.items() if way != "ended before") > 8


async def test_clients_that_come_and_go() -> None:
    assert (await soak(Trials(count=12)))["whole streams"]
