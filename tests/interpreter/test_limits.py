"""Limits: how much runs at once and how much is written, whatever the timing."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pasta_async import Client, GenerationTimeoutError, Limits, Sampling
from pasta_async.interpreter import Slots, thread_seed
from pasta_async.lang import parse
from pasta_async.testing import Fault, ScriptedBackend
from tests.interpreter.support import RICH, answer, promise

if TYPE_CHECKING:
    from pasta_async import Generation

WIDE = "".join(promise(f"part {n}", "a b c d e f g h. ") for n in range(12)) + "<sync/>Done."
SLOW = dict.fromkeys(range(1, 13), 9.0)
"""Latencies of threads that main does not wait for."""


@pytest.mark.parametrize("threads", [1, 2, 5])
async def test_threads_of_an_answer_above_the_limit_queue_and_none_is_dropped(threads: int) -> None:
    backend = ScriptedBackend(WIDE, latency=1.0, thread_latency=SLOW)
    generation = await answer(backend, limits=Limits(max_threads=threads))
    assert backend.max_open == threads
    assert generation.document == parse(WIDE)
    assert generation.elapsed >= generation.critical_path


async def test_a_thread_holds_its_slot_only_while_it_decodes() -> None:
    backend = ScriptedBackend(WIDE, latency=1.0, thread_latency=SLOW)
    await answer(backend, limits=Limits(max_threads=3))
    spans = [(play.started, play.ended) for play in backend.played if play.request.thread]
    main = backend.played[0]
    assert main.ended is not None
    later = [span for span in spans if span[0] >= main.ended]
    assert (
        max(sum(begin <= at < (end or 0) for begin, end in spans) for at, _ in later) == 3
    )  # main's slot is free


async def test_threads_over_all_answers_of_a_client_are_limited() -> None:
    backend = ScriptedBackend(WIDE, latency=1.0)
    async with Client(backend, clock=backend.clock, limits=Limits(client_threads=4)) as client:
        answers = await asyncio.gather(*(client.generate(f"Why {n}?") for n in range(6)))
    assert backend.max_open == 4
    assert {generation.text for generation in answers} == {parse(WIDE).text}


@pytest.mark.loop_matrix
async def test_one_slot_and_a_hundred_answers_come_to_an_end() -> None:
    script = f"One. {promise('a', 'Alpha.')}{promise('b', 'Beta.')}<sync/> Two."
    backend = ScriptedBackend(script)
    async with Client(backend, limits=Limits(client_threads=1)) as client:
        answers = await asyncio.gather(*(client.generate(f"Why {n}?") for n in range(100)))
    assert backend.max_open == 1
    assert {generation.text for generation in answers} == {parse(script).text}


async def test_chunks_of_started_answers_go_before_new_answers() -> None:
    script = f"One. {promise('a', 'Alpha.')}{promise('b', 'Beta.')}<sync/> Two."
    backend = ScriptedBackend(script, latency=1.0)
    async with Client(backend, clock=backend.clock, limits=Limits(client_threads=1)) as client:
        await asyncio.gather(*(client.generate(f"Why {n}?") for n in range(5)))
    begun = list(dict.fromkeys(request.answer for request in backend.requests))
    for older, newer in pairwise(begun):
        first = next(n for n, request in enumerate(backend.requests) if request.answer == newer)
        earlier = [request.thread for request in backend.requests[:first] if request.answer == older]
        assert earlier == [0, 1, 2]


async def test_slots_go_to_the_lowest_priority_then_to_who_came_first() -> None:
    slots, order = Slots(1), list[str]()

    async def work(name: str, priority: int) -> None:
        async with slots.slot(priority):
            order.append(name)
            await asyncio.sleep(0)

    await asyncio.gather(*(work(f"{p}{n}", p) for n in range(3) for p in (2, 1, 0)))
    assert order == ["20", "00", "01", "02", "10", "11", "12", "21", "22"]
    assert slots.busy == 0


async def test_who_is_cancelled_in_the_queue_or_with_a_slot_in_hand_takes_none_away() -> None:
    for turns in range(5):
        slots = Slots(2)

        async def work(slots: Slots = slots) -> None:
            async with slots.slot():
                for _ in range(2):
                    await asyncio.sleep(0)

        tasks = [asyncio.create_task(work()) for _ in range(8)]
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.wait(tasks)
        assert slots.busy == 0
        assert not any(task.cancelled() for task in tasks[1::2])


async def test_the_chunk_cap_can_be_set() -> None:
    generation = await answer(ScriptedBackend(WIDE), limits=Limits(chunk_tokens=4))
    assert [thread.tokens for thread in generation.threads[1:]] == [4] * 12
    assert {thread.closed_by for thread in generation.threads[1:]} == {"budget"}
    assert generation.text == "a b c d" * 12 + "Done."


@pytest.mark.parametrize("most", [1, 3, 6, 20, 45])
@pytest.mark.parametrize("parallel", [True, False])
async def test_an_answer_has_at_most_so_many_tokens_over_all_its_threads(most: int, parallel: bool) -> None:
    backend = ScriptedBackend(WIDE)
    generation = await answer(backend, sampling=Sampling(max_tokens=most), parallel=parallel)
    assert sum(len(play.ids) for play in backend.played) == generation.usage.completion_tokens <= most
    assert generation.finish_reason == "length"
    assert generation.text == generation.document.text
    assert most < 6 or parse(WIDE).text.startswith(generation.text)  # a tag that is cut is text


async def test_a_promise_reserves_its_cap_so_that_main_stops_where_the_answers_limit_is() -> None:
    script = f"One. {promise('a', 'Alpha.')} two three four."
    limits = Limits(chunk_tokens=10)
    generation = await answer(ScriptedBackend(script), limits=limits, sampling=Sampling(max_tokens=20))
    main, chunk = generation.threads
    assert (main.tokens, main.finish_reason, chunk.tokens) == (10, "length", 3)
    assert generation.text == "One. Alpha. two three"


async def test_what_a_chunk_did_not_take_of_its_reserve_is_main_s_after_the_join() -> None:
    script = f"One. {promise('a', 'Alpha.')}<sync/> two three four."
    limits = Limits(chunk_tokens=10)
    generation = await answer(ScriptedBackend(script), limits=limits, sampling=Sampling(max_tokens=20))
    assert generation.text == parse(script).text
    assert generation.finish_reason == "stop"


def outline(generation: Generation) -> object:
    return (
        generation.document,
        generation.text,
        generation.finish_reason,
        generation.critical_path,
        generation.usage.completion_tokens,
        [(thread.tokens, thread.finish_reason, thread.closed_by) for thread in generation.threads],
    )


@given(
    latencies=st.dictionaries(st.integers(0, 5), st.sampled_from([0.1, 1.0, 3.0, 20.0])),
    most=st.integers(5, 60),
    cap=st.sampled_from([None, 3, 8]),
    threads=st.integers(1, 4),
)
@settings(max_examples=25)
async def test_results_do_not_depend_on_timing(
    latencies: dict[int, float], most: int, cap: int | None, threads: int
) -> None:
    sampling = Sampling(max_tokens=most)
    timed = ScriptedBackend(RICH, latency=1.0, thread_latency=latencies)
    generation = await answer(timed, sampling=sampling, limits=Limits(chunk_tokens=cap, max_threads=threads))
    reference = await answer(
        ScriptedBackend(RICH), sampling=sampling, limits=Limits(chunk_tokens=cap), parallel=False
    )
    assert outline(generation) == outline(reference)


async def test_the_context_of_the_model_is_a_limit_too() -> None:
    for room in range(1, 60, 4):
        probe = ScriptedBackend(RICH)
        prompt = len(await probe.encode_chat([{"role": "user", "content": "Why?"}], {}))
        backend = ScriptedBackend(RICH, context_length=prompt + room)
        generation = await answer(backend)
        assert all(len(p.request.ids) + len(p.ids) <= prompt + room for p in backend.played)
        assert generation.finish_reason == "length"
        assert not backend.aborted


async def test_time_in_a_queue_counts() -> None:
    backend = ScriptedBackend(RICH, latency=1.0, faults=[Fault(0, 1, "stall")])
    async with Client(backend, clock=backend.clock, limits=Limits(client_threads=1, timeout=5.0)) as client:
        stuck, queued = await asyncio.gather(
            client.generate("Why?"), client.generate("Why not?"), return_exceptions=True
        )
    assert isinstance(stuck, GenerationTimeoutError)
    assert isinstance(queued, GenerationTimeoutError)
    assert len(backend.requests) == 1


async def test_each_thread_has_a_seed_of_its_own_and_the_same_one_every_time() -> None:
    backend = ScriptedBackend(RICH)
    for _ in range(2):
        await answer(backend, sampling=Sampling(seed=7, temperature=1.0))
    seeds = {(request.thread, request.seed) for request in backend.requests}
    assert seeds == {(thread, thread_seed(7, thread)) for thread in range(6)}
    assert len({seed for _, seed in seeds}) == 6
    assert thread_seed(None, 3) is None


async def test_a_seed_that_the_backend_cannot_honour_is_noted() -> None:
    sampling = Sampling(seed=7, temperature=1.0)
    assert (await answer(ScriptedBackend(RICH), sampling=sampling)).notes == ()
    (note,) = (await answer(ScriptedBackend(RICH, honours_seeds=False), sampling=sampling)).notes
    assert "seed" in note
