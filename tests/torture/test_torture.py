"""The campaigns of `make torture`, for a second or two each."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from pasta_smol import require_pasta_smol

from tests.torture.cancellation import break_off
from tests.torture.corpus import replay
from tests.torture.engines import LocalEngine
from tests.torture.inputs import KINDS, generate, possible
from tests.torture.lengths import scaling, steepest
from tests.torture.measured import Plan, check_flat, slope
from tests.torture.soak import soak


async def test_answers_that_are_broken_off_leave_nothing() -> None:
    figures = await break_off(Plan(count=16), LocalEngine(), at_once=4)
    assert figures["broken off"] > 8


def test_generated_inputs() -> None:
    assert generate(Plan(count=1))["inputs"] == 1000 * len(possible())


def test_typed_text_is_tried_with_the_tokenizer_of_pasta_smol_too() -> None:
    require_pasta_smol()
    assert possible() == (*KINDS,)


def test_inputs_that_are_kept_are_tried_again() -> None:
    assert replay() > 40


def test_a_character_of_a_long_input_costs_no_more_than_one_of_a_short_one() -> None:
    scaling(size=3000)


def test_what_costs_more_with_every_character_is_found() -> None:
    def square(text: str) -> None:
        for _ in range(len(text) ** 2 // 1000):
            pass

    with pytest.raises(AssertionError, match="more than its share"):
        steepest(square, {"any": ["x" * 2000, "x" * 20_000]})


async def test_clients_that_come_and_go() -> None:
    figures = await soak(Plan(count=40))
    assert figures["streams that were complete"]
    assert figures["file descriptors in the end"] <= figures["file descriptors, second half"][1]


@pytest.mark.parametrize(("of", "is_"), [([], 0), ([(0, 5), (1, 9), (2, 3), (3, 5)], 2)])
def test_the_slope_is_that_of_the_second_half(of: list[tuple[float, float]], is_: float) -> None:
    assert slope(of) == is_


@pytest.mark.parametrize(("mib_an_answer", "leaks"), [(0.0, False), (0.0005, False), (0.01, True)])
def test_memory_that_grows_with_every_answer_is_a_leak(mib_an_answer: float, leaks: bool) -> None:
    points = [(answers, 400 + mib_an_answer * answers) for answers in range(0, 4000, 200)]
    check_flat(points[:5])  # too few to tell
    with pytest.raises(AssertionError) if leaks else nullcontext():
        check_flat(points)
