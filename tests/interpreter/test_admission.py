"""The slots of a client, the room that an engine has, and answers on engines that say how busy they are."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_async import Client, Generation, Limits
from pasta_async.engine_load import LIGHT_THREADS, EngineLoad, StepTimes, room
from pasta_async.errors import BackendStatusError
from pasta_async.events import ThreadStarted
from pasta_async.lang import parse
from pasta_async.testing import Fault, ScriptedBackend, ScriptSource, VirtualClock
from tests.helpers.answer_runs import promise

WIDE = "Many." + "".join(promise(f"part {n}", f"Chunk {n} here.") for n in range(40)) + "<sync/> Done."
TEXT = parse(WIDE).text


class Busy(ScriptedBackend):
    """A scripted backend whose engine also decodes `others` requests of somebody else."""

    def __init__(self, script: ScriptSource = WIDE, *, others: int = 0, **options: Any) -> None:
        super().__init__(script, latency=1.0, thread_latency={0: 0.001}, **options)
        self.others = others
        self.capacity = 64
        self.error: Exception | None = None
        self.asked = 0

    async def load(self) -> EngineLoad | None:
        self.asked += 1
        if self.error:
            raise self.error
        return EngineLoad(self.capacity, self.others + len(self.open), step_doubles_at=inf)


def on(backend: Busy, **limits: Any) -> Client:
    limits = {"max_threads": 64, "timeout": None, **limits}
    return Client(backend, clock=backend.clock, limits=Limits(**limits))


async def test_as_the_engine_fills_promises_wait_for_room_in_document_order() -> None:
    backend = Busy(others=30)
    async with on(backend) as client:
        generation = await client.generate("Why?")
    assert generation.text == TEXT
    assert (generation.width, len(generation.notes)) == ("limited", 1)
    assert backend.max_open == 64 - 30
    assert [request.thread for request in backend.requests] == [*range(41), 0]


async def test_on_a_full_engine_an_answer_has_no_tags() -> None:
    backend = Busy(others=60)
    async with on(backend) as client:
        generation = await client.generate("Why?")
        backend.others = 0
        again = await client.generate("Why?")
    assert (generation.text, generation.width) == (TEXT, "plain")
    assert len(generation.threads) == 1 and len(generation.notes) == 1
    assert (again.width, again.notes) == ("full", ())


async def test_on_a_full_engine_a_trained_model_writes_no_outline() -> None:
    listed = "Two kinds:\n\n1. **Tea**: It is old and mild.\n2. **Coffee**: It is strong and black.\n"
    async with on(Busy(listed, others=60)) as client:
        generation = await client.generate("Why?", parallel="outline")
    assert (generation.text, generation.width) == (listed, "plain")
    assert len(generation.threads) == 1


@pytest.mark.parametrize("asked", ["ids", "switch"])
async def test_what_cannot_do_without_tags_decodes_one_thread_at_a_time(asked: str) -> None:
    backend = Busy(others=64)
    form: dict[str, Any] = {"chat_template_kwargs": {"pasta": True}} if asked == "switch" else {}
    ids = backend.tokenizer.encode_chat([{"role": "user", "content": "Why?"}], {})
    async with on(backend) as client:
        generation = await client.generate(ids if asked == "ids" else "Why?", **form)
    assert (generation.text, generation.width, backend.max_open) == (TEXT, "limited", 1)
    assert (len(generation.threads), len(generation.notes)) == (41, 1)


@pytest.mark.parametrize(("parallel", "width", "most"), [("always", "full", 41), ("never", "one", 1)])
async def test_who_knows_better_is_obeyed_whatever_the_load(parallel: Any, width: str, most: int) -> None:
    backend = Busy(others=1000)
    async with on(backend) as client:
        generation = await client.generate("Why?", parallel=parallel)
    assert (generation.text, generation.width, backend.max_open) == (TEXT, width, most)
    assert backend.asked == 0


async def test_an_answer_with_a_seed_has_the_same_form_whatever_the_load() -> None:
    backend = Busy()
    async with on(backend) as client:
        idle = await client.generate("Why?", temperature=1.0, seed=7)
        backend.others = 60
        busy = await client.generate("Why?", temperature=1.0, seed=7)
    assert (idle.width, busy.width) == ("full", "limited")
    assert busy.document == idle.document
    sent = [(request.thread, request.ids) for request in backend.requests]
    assert set(sent[:42]) == set(sent[42:])


async def test_the_clients_own_answers_count_where_the_engine_says_nothing() -> None:
    backend = ScriptedBackend(WIDE, latency=1.0, thread_latency={0: 0.001})
    async with Client(backend, clock=backend.clock, limits=Limits(timeout=None, client_threads=16)) as client:
        for count, width in ((8, "limited"), (9, "plain")):  # two slots for each of them, or not
            answers = await asyncio.gather(*(client.generate(f"Why {n}?") for n in range(count)))
            assert [(answer.text, answer.width) for answer in answers] == [(TEXT, width)] * count


@pytest.mark.parametrize("parallel", ["auto", "always"])
async def test_a_new_answer_waits_for_one_chunk_of_others_at_most(parallel: Any) -> None:
    backend, slots = Busy(), 4
    backend.capacity = 1000
    async with on(backend, client_threads=slots) as client:
        wide = [asyncio.create_task(client.generate(f"Why {n}?", parallel=parallel)) for n in range(2)]
        await backend.clock.sleep(1.5)
        assert len(backend.open) == slots
        await client.generate("Why?", baseline=True)
        await asyncio.gather(*wide)
    answers = [request.answer for request in backend.requests]
    assert answers.count(answers[2 + slots]) == 1  # two mains and what decoded were before it


@pytest.mark.parametrize("parallel", ["auto", "always"])
async def test_new_answers_without_end_starve_no_chunk_that_main_waits_for(parallel: Any) -> None:
    backend = ScriptedBackend(lambda prompt: WIDE if "wide" in prompt else "One two three.", latency=1.0)

    async def ask() -> None:
        while not wide.done():
            await client.generate("Why?", baseline=True)

    limits = Limits(client_threads=4, timeout=None)
    async with Client(backend, clock=backend.clock, limits=limits) as client:
        wide = asyncio.create_task(client.generate("wide", parallel=parallel))
        await backend.clock.sleep(0.5)
        await asyncio.gather(*(ask() for _ in range(40)))
        generation = await wide
    decoded = sum(thread.tokens for thread in generation.threads)
    assert generation.elapsed <= 1.5 * decoded  # one chunk after another, at the worst


async def test_a_load_that_cannot_be_read_ends_no_answer_and_is_not_taken_for_an_idle_engine() -> None:
    backend = Busy(others=1000)
    backend.error = BackendStatusError("the load is not told", status=500)
    async with on(backend) as client:
        most = LIGHT_THREADS // 2
        for count, width in ((1, "limited"), (most, "limited"), (most + 1, "plain")):
            answers = await asyncio.gather(*(client.generate(f"Why {n}?") for n in range(count)))
            assert [(answer.text, answer.width) for answer in answers] == [(TEXT, width)] * count
            assert all(any("not known" in note for note in answer.notes) for answer in answers)
            assert backend.max_open <= LIGHT_THREADS


async def test_nothing_is_left_of_answers_that_failed_or_were_cancelled_while_they_waited() -> None:
    backend = Busy(others=20, faults=[Fault(5, 1)])
    async with on(backend) as client:
        tasks = [asyncio.create_task(client.generate(f"Why {n}?")) for n in range(3)]
        await backend.clock.sleep(2.5)
        tasks[1].cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(result, Generation) for result in done) == 1
        assert not backend.open
        backend.others = 0
        assert (await client.generate("Why?")).width == "full"


LOADS = st.lists(st.tuples(st.integers(0, 80), st.sampled_from([0.0, 0.5, 0.95])), min_size=1, max_size=20)
SCRIPTS = st.sampled_from(
    [
        "Plain.",
        promise("a", "One.") + "<sync/>" + promise("b", "Two.") + " End.",
        "".join(promise(f"{n}", f"It is {n}.") for n in range(7)) + "<sync/> Done.",
    ]
)


@given(LOADS, st.lists(SCRIPTS, min_size=1, max_size=6), st.integers(1, 5), st.integers(1, 20), st.booleans())
async def test_whatever_the_load_every_answer_comes_to_its_end(
    loads: list[tuple[int, float]], scripts: list[str], max_threads: int, client_threads: int, ids: bool
) -> None:
    reported = itertools.cycle(loads)

    class Varying(Busy):
        async def load(self) -> EngineLoad | None:
            running, kv_use = next(reported)
            if running % 9 == 8:
                raise BackendStatusError("the load is not told", status=500)
            if running % 9 == 7:
                return None
            return EngineLoad(16, running, kv_use=kv_use)

    def script(prompt: str) -> str:
        return scripts[int(prompt.split()[1])]

    backend = Varying(script)
    async with on(backend, max_threads=max_threads, client_threads=client_threads) as client:
        texts = [f"Why {n} ?" for n in range(len(scripts))]
        prompts = [backend.tokenizer.encode_chat([{"role": "user", "content": text}], {}) for text in texts]
        answers = await asyncio.gather(*map(client.generate, prompts if ids else texts))
    assert [answer.text for answer in answers] == [parse(script).text for script in scripts]
    assert {answer.finish_reason for answer in answers} == {"stop"}
    assert backend.max_open <= client_threads


# Threads that wait for something else than the engine -------------------------------------------------------

LONG = "".join(promise(f"part {n}", "word " * 20) for n in range(10)) + "<sync/> Done."
"""Far more events than a reader who reads nothing has room for."""


@pytest.mark.parametrize("slots", [1, 64])
async def test_readers_that_read_nothing_hold_up_nobody_else(slots: int) -> None:
    backend = ScriptedBackend({"long": LONG, "Why?": "Because."}, latency=0.001)
    limits = Limits(client_threads=slots, timeout=None)
    async with Client(backend, clock=backend.clock, limits=limits) as client, AsyncExitStack() as stack:
        long = [client.stream("long", parallel="always") for _ in range(slots + 4)]
        streams = [await stack.enter_async_context(stream) for stream in long]
        await backend.clock.sleep(10.0)
        assert (await client.generate("Why?")).text == "Because."
        texts = [(await stream.result()).text for stream in streams]
    assert texts == [parse(LONG).text] * len(streams)


async def test_an_answer_asked_for_in_the_loop_over_another_gets_the_only_slot() -> None:
    backend = ScriptedBackend({"long": LONG, "Why?": "Because."})
    nested = 0
    async with Client(backend, clock=backend.clock, limits=Limits(client_threads=1)) as client:
        async with client.stream("long", parallel="always") as stream:
            async for event in stream:
                if isinstance(event, ThreadStarted):
                    assert (await client.generate("Why?")).text == "Because."
                    nested += 1
            assert (await stream.result()).text == parse(LONG).text
    assert nested == 11


async def test_a_thread_that_waits_to_be_sent_again_gives_its_slot_back() -> None:
    error = BackendStatusError("come back later", status=429, retry_after=50.0)
    backend = ScriptedBackend("Because.", clock=VirtualClock(), faults=[Fault(0, 0, error=error)])
    async with Client(backend, clock=backend.clock, limits=Limits(client_threads=1)) as client:
        refused = asyncio.create_task(client.generate("Why?"))
        await backend.clock.sleep(1.0)
        assert (await client.generate("Why not?")).text == "Because."
        assert backend.clock.time() < 50
        assert (await refused).text == "Because."
        assert backend.clock.time() >= 50


# The room, by what an engine says of itself ---------------------------------------------------------------


def measured(
    fixed: float, per_request: float, *, steps: int = 100, sizes: int = 16, times: StepTimes | None = None
) -> StepTimes:
    """Steps that take `fixed` seconds, and more for each of their 1 to `sizes` requests, behind `times`."""
    times = times or StepTimes()
    for step in range(steps):
        requests = 1 + step % sizes
        seconds = fixed + per_request * requests
        times.add(1, requests, seconds, requests**2, requests * seconds)
    return times


def test_the_batch_size_that_doubles_a_step_comes_from_its_times() -> None:
    assert measured(0.010, 0.0005).doubles_at == pytest.approx(20)
    assert measured(0.010, 0.0).doubles_at == inf
    assert measured(0.0, 0.001).doubles_at == 1  # 0 would say that nothing was measured
    assert measured(-0.005, 0.00375).doubles_at == 1


def test_few_steps_or_batches_of_one_size_say_nothing() -> None:
    for times in (measured(0.01, 0.001, steps=20), measured(0.01, 0.001, sizes=1), StepTimes()):
        assert times.doubles_at == 0


def test_steps_of_long_ago_are_forgotten() -> None:
    times = measured(0.010, 0.001, steps=40_000)
    measured(0.030, 0.001, steps=60_000, times=times)
    assert times.doubles_at == pytest.approx(30, rel=0.02)


def test_the_room_is_a_multiple_of_what_doubles_a_step_within_what_the_engine_takes() -> None:
    load = EngineLoad(capacity=1000, step_doubles_at=20.0)
    assert room(load, 2) == 25
    assert room(replace(load, step_doubles_at=4.0), 2) == 5
    assert room(replace(load, step_doubles_at=4.0), 1) == LIGHT_THREADS  # it shares the engine with nobody
    assert room(replace(load, step_doubles_at=0), 2) == LIGHT_THREADS
    assert room(replace(load, step_doubles_at=inf), 2) == 1000
    assert room(replace(load, capacity=4), 1) == 4
    assert room(replace(load, kv_use=0.95), 1) == 0


async def test_a_note_names_the_limit_that_is_in_the_way() -> None:
    async with Client(ScriptedBackend(LONG), limits=Limits(client_threads=1)) as client:
        (note,) = (await client.generate("Why?")).notes
    assert "client_threads" in note
