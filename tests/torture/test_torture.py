"""The campaigns of `make torture`, for a second or two each."""

from __future__ import annotations

import pytest

from tests.torture.cancellation import break_off
from tests.torture.engines import LocalEngine
from tests.torture.inputs import generate
from tests.torture.measured import Plan, slope
from tests.torture.soak import soak


async def test_answers_that_are_broken_off_leave_nothing() -> None:
    figures = await break_off(Plan(count=16), LocalEngine(), at_once=4)
    assert figures["broken off"] > 8


def test_generated_inputs() -> None:
    assert generate(Plan(count=1))["inputs"] == 4000


async def test_clients_that_come_and_go() -> None:
    figures = await soak(Plan(count=40))
    assert figures["streams that were complete"]
    assert figures["file descriptors in the end"] <= figures["file descriptors, second half"][1]


@pytest.mark.parametrize(("of", "is_"), [([], 0), ([(0, 5), (1, 9), (2, 3), (3, 5)], 2)])
def test_the_slope_is_that_of_the_second_half(of: list[tuple[float, float]], is_: float) -> None:
    assert slope(of) == is_
