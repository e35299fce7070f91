"""What an engine has room for, by what it says of itself: pure figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_async.load import MOST_ANSWERS, UNSURE_ANSWERS, EngineLoad, Payoff, StepMeter, StepTimes, room

FIXED, REQUEST, CONTEXT, PREFILL = 0.010, 0.0005, 1e-6, 0.0001


def metered(
    fixed: float = FIXED,
    request: float = REQUEST,
    context: float = 0.0,
    *,
    batches: int = 16,
    steps: int = 100,
) -> StepMeter:
    """The meter of an engine whose steps take this; each request attends to 100 to 500 tokens."""
    meter = StepMeter()
    for step in range(steps):
        requests = 1 + step % batches
        attended = requests * (100 + 100 * (step % 5))
        seconds = fixed + request * requests + context * attended
        meter.add(requests, attended, 0, seconds)
        meter.add(requests, attended, 50, seconds + 50 * PREFILL)
    return meter


def times(**kwargs: float) -> StepTimes:
    return metered(**kwargs).steps  # pyright: ignore[reportArgumentType]


def payoff(
    saved: int = 300, added: int = 100, prefilled: int = 0, context: int = 0, answers: int = 2000
) -> Payoff:
    """What is known after many answers of one kind."""
    found = Payoff()
    for _ in range(answers):
        found.learn(saved=saved, added=added, prefilled=prefilled, context=context)
    return found


@pytest.mark.parametrize(("per_request", "context"), [(REQUEST, CONTEXT), (REQUEST, 0.0), (0.0, CONTEXT)])
def test_a_meter_finds_what_a_step_takes(per_request: float, context: float):
    meter = metered(request=per_request, context=context)
    assert meter.steps.fit() == pytest.approx((FIXED, per_request, context), abs=1e-9)
    assert meter.prefill == pytest.approx(PREFILL)


def test_where_context_goes_with_requests_it_has_no_cost_of_its_own():
    meter = StepMeter()
    for step in range(100):
        requests = 1 + step % 16
        meter.add(requests, 100 * requests, 0, FIXED + REQUEST * requests)
    assert meter.steps.fit() == pytest.approx((FIXED, REQUEST, 0))


@pytest.mark.parametrize("meter", [metered(steps=20), metered(batches=1), StepMeter()])
def test_few_steps_or_batches_of_one_size_tell_nothing(meter: StepMeter):
    assert meter.steps.fit() is None
    assert meter.prefill == 0
    assert room(EngineLoad(capacity=256, steps=meter.steps), Payoff()).answers == UNSURE_ANSWERS


def test_an_engine_that_times_no_steps_is_trusted_up_to_its_capacity():
    assert room(EngineLoad(capacity=256), Payoff()).answers == MOST_ANSWERS * 256


def test_a_meter_forgets_what_is_long_ago():
    meter = metered(steps=20_000)
    for step in range(40_000):
        meter.add(1 + step % 16, 100, 0, 3 * FIXED)
    fixed, request, _ = meter.steps.fit() or (0, 0, 0)
    assert fixed == pytest.approx(3 * FIXED, rel=0.02)
    assert request == pytest.approx(0, abs=REQUEST / 20)


def test_parallel_decoding_pays_while_the_steps_saved_outweigh_the_tokens_added():
    load = EngineLoad(capacity=1000, steps=times())
    # 300 steps of 10 ms against 100 tokens of 0.5 ms for everybody
    assert payoff().answers(load) == pytest.approx(60)
    found = room(load, payoff())
    assert found.answers == pytest.approx(60) and found.threads == pytest.approx(180)
    assert found.takes(59) and not found.takes(61)
    assert payoff(prefilled=500).answers(replace(load, prefill=PREFILL)) == pytest.approx(30)
    assert payoff().answers(replace(load, replicas=4)) == pytest.approx(240)


def test_context_that_threads_do_not_attend_to_pays_for_tokens_that_they_add():
    load = EngineLoad(capacity=1000, steps=times(context=CONTEXT))
    # 100 tokens of 0.5 ms are 50 ms; 25,000 tokens of context of 1 us give back half of it
    assert payoff().answers(load) == pytest.approx(60)
    assert payoff(context=25_000).answers(load) == pytest.approx(120)
    assert payoff(context=60_000).answers(load) == float("inf")
    assert payoff(context=25_000).answers(replace(load, steps=times())) == pytest.approx(60)


def test_answers_in_parallel_that_save_nothing_are_not_worth_it():
    load = EngineLoad(capacity=1000, steps=times())
    found = room(load, payoff(saved=-5, added=30))
    assert found.answers == 2  # but a load this low is none
    assert found.extra(1) == 15


def test_a_full_cache_has_room_for_nothing():
    found = room(EngineLoad(capacity=1000, steps=times(), kv_use=0.95), payoff())
    assert not found.takes(1) and found.extra(1) == 0


LOADS = st.builds(
    EngineLoad,
    capacity=st.integers(1, 4096),
    kv_use=st.floats(0, 1),
    steps=st.none() | st.builds(times, fixed=st.floats(0, 0.1), request=st.floats(0, 0.1)),
    prefill=st.floats(0, 0.01),
    replicas=st.integers(1, 8),
)
PAYOFFS = st.builds(
    payoff, st.integers(-50, 500), st.integers(-50, 500), st.integers(-50, 900), answers=st.just(20)
)


@given(LOADS, PAYOFFS, st.integers(1, 500), st.integers(0, 500))
def test_a_fuller_engine_never_gives_more(load: EngineLoad, payoff: Payoff, at_once: int, more: int):
    here = room(load, payoff)
    for other in (
        room(replace(load, kv_use=min(1, load.kv_use + more / 500)), payoff),
        room(replace(load, capacity=max(1, load.capacity - more)), payoff),
    ):
        assert other.answers <= here.answers and other.threads <= here.threads
    assert here.extra(at_once + more) <= here.extra(at_once)
    assert here.takes(at_once) or not here.takes(at_once + more)


@given(LOADS, PAYOFFS)
def test_an_idle_engine_takes_an_answer_at_full_width(load: EngineLoad, payoff: Payoff):
    found = room(replace(load, kv_use=0.0), payoff)
    assert found.takes(1) and found.extra(1) >= 15
