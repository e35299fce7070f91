"""The number of threads that an engine has room for, by what it says of itself."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_async.engine_load import LIGHT_THREADS, EngineLoad, StepTimes, room


def measured(fixed: float, per_request: float, *, steps: int = 100, sizes: int = 16) -> StepTimes:
    """Steps that take `fixed` seconds, and more for each of their 1 to `sizes` requests."""
    times = StepTimes()
    for step in range(steps):
        requests = 1 + step % sizes
        seconds = fixed + per_request * requests
        times.add(1, requests, seconds, requests**2, requests * seconds)
    return times


def test_the_batch_size_that_doubles_a_step_comes_from_its_times() -> None:
    assert measured(0.010, 0.0005).doubles_at == pytest.approx(20)
    assert measured(0.010, 0.0).doubles_at == inf
    assert measured(0.0, 0.001).doubles_at == pytest.approx(0, abs=1e-9)


def test_few_steps_or_batches_of_one_size_say_nothing() -> None:
    for times in (measured(0.01, 0.001, steps=20), measured(0.01, 0.001, sizes=1), StepTimes()):
        assert times.doubles_at == 0


def test_steps_of_long_ago_are_forgotten() -> None:
    times = measured(0.010, 0.001, steps=40_000)
    for step in range(60_000):
        requests = 1 + step % 16
        seconds = 0.030 + 0.001 * requests
        times.add(1, requests, seconds, requests**2, requests * seconds)
    assert times.doubles_at == pytest.approx(30, rel=0.02)


def test_the_room_is_a_multiple_of_what_doubles_a_step_within_what_the_engine_takes() -> None:
    load = EngineLoad(capacity=1000, step_doubles_at=20.0)
    assert room(load) == 100
    assert room(replace(load, step_doubles_at=1.0)) == LIGHT_THREADS
    assert room(replace(load, step_doubles_at=0)) == LIGHT_THREADS
    assert room(replace(load, step_doubles_at=inf)) == 1000
    assert room(replace(load, capacity=4)) == 4
    assert room(replace(load, kv_use=0.95)) == 0


LOADS = st.builds(
    EngineLoad,
    capacity=st.integers(1, 4096),
    kv_use=st.floats(0, 1),
    step_doubles_at=st.floats(0, 1000),
)


@given(LOADS, st.integers(0, 500))
def test_a_fuller_or_slower_engine_never_has_more_room(load: EngineLoad, more: int) -> None:
    assert room(replace(load, kv_use=min(1, load.kv_use + more / 500))) <= room(load)
    assert room(replace(load, capacity=max(1, load.capacity - more))) <= room(load)
    assert room(replace(load, step_doubles_at=max(0, load.step_doubles_at - more))) <= room(load)
