"""Answers on engines that say how busy they are: full width, fewer threads at a time, or no tags."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import promise

from pasta_async import Client, Generation, Limits
from pasta_async.errors import BackendStatusError
from pasta_async.events import PromiseOpened, ThreadStarted
from pasta_async.lang import parse
from pasta_async.load import EngineLoad, StepMeter
from pasta_async.testing import Fault, ScriptedBackend
from pasta_async.testing.script import ScriptSource

WIDE = "Many." + "".join(promise(f"part {n}", f"Chunk {n} here.") for n in range(40)) + "<sync/> Done."
TEXT = parse(WIDE).text


class Busy(ScriptedBackend):
    """A scripted backend whose engine also decodes `others` requests of somebody else."""

    def __init__(self, script: ScriptSource = WIDE, *, others: int = 0, **options: Any) -> None:
        super().__init__(script, latency=1.0, thread_latency={0: 0.001}, **options)
        self.others, self.capacity, self.meter = others, 64, StepMeter()
        self.error: Exception | None = None
        self.silent = False
        self.asked = 0

    async def load(self, answer: str) -> EngineLoad | None:
        self.asked += 1
        if self.error:
            raise self.error
        if self.silent:
            return None
        running = self.others + len(self.open)
        steps = self.meter.steps if self.meter.steps.steps else None  # it times none unless a test does
        return EngineLoad(self.capacity, running, steps=steps, prefill=self.meter.prefill)


def on(backend: Busy, **limits: Any) -> Client:
    limits = {"max_threads": 64, "timeout": None, **limits}
    return Client(backend, clock=backend.clock, limits=Limits(**limits))


def timed(script: ScriptSource, *, others: int, per_request: float = 0.001) -> Busy:
    """A large engine that tells how long its steps take."""
    backend = Busy(script, others=others)
    backend.capacity = 1000
    for step in range(100):
        requests = 1 + step % 16
        backend.meter.add(requests, 100, 0, 0.01 + per_request * requests)
    return backend


async def ids_of(backend: ScriptedBackend) -> list[int]:
    return await backend.encode_chat([{"role": "user", "content": "Why?"}], {})


async def test_with_room_an_answer_is_decoded_at_full_width() -> None:
    backend = Busy(others=3)
    async with on(backend) as client:
        generation = await client.generate("Why?")
    assert (generation.width, generation.notes, backend.max_open) == ("full", (), 41)


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


@pytest.mark.parametrize("asked", ["ids", "switch"])
async def test_what_cannot_do_without_tags_decodes_one_thread_at_a_time(asked: str) -> None:
    backend = Busy(others=64)
    form: dict[str, Any] = {"chat_template_kwargs": {"pasta": True}} if asked == "switch" else {}
    async with on(backend) as client:
        generation = await client.generate(await ids_of(backend) if asked == "ids" else "Why?", **form)
    assert (generation.text, generation.width, backend.max_open) == (TEXT, "limited", 1)
    assert (len(generation.threads), len(generation.notes)) == (41, 1)


@pytest.mark.parametrize(("parallel", "width", "most"), [("always", "full", 41), ("never", "one", 1)])
async def test_who_knows_better_is_obeyed_whatever_the_load(parallel: Any, width: str, most: int) -> None:
    backend = Busy(others=1000)
    async with on(backend) as client:
        generation = await client.generate("Why?", parallel=parallel)
    assert (generation.text, generation.width, backend.max_open) == (TEXT, width, most)
    assert backend.asked == 0


async def test_threads_that_wait_go_on_as_others_end() -> None:
    backend = Busy(others=0)
    async with on(backend) as client:
        made = await asyncio.gather(*(client.generate(f"Why {n}?") for n in range(3)))
    assert [(one.text, one.width, len(one.notes)) for one in made] == [(TEXT, "limited", 1)] * 3
    assert backend.max_open == 64


async def test_threads_that_wait_begin_soon_after_others_have_left_the_engine() -> None:
    backend, left = Busy("A." + promise("x", "Chunk one here.") + " word" * 5000, others=70), 0.0
    async with on(backend) as client, client.stream(await ids_of(backend)) as answer:
        async for event in answer:
            if isinstance(event, PromiseOpened):
                backend.others, left = 0, backend.clock.time()
            elif isinstance(event, ThreadStarted) and event.thread == 1:
                assert backend.clock.time() - left < 1.0
        generation = await answer.result()
    main, chunk = generation.threads
    assert main.ended is not None and chunk.started is not None and chunk.started < main.ended
    assert backend.asked <= 4  # twice at the start, and twice a second


@pytest.mark.parametrize("cancelled", [False, True])
async def test_the_load_is_read_again_once_for_all_while_threads_wait_and_no_longer(cancelled: bool) -> None:
    backend, before = Busy(others=62), asyncio.all_tasks()
    async with on(backend) as client:
        tasks = [asyncio.create_task(client.generate(await ids_of(backend))) for _ in range(3)]
        await backend.clock.sleep(1.0)
        asked = backend.asked
        await backend.clock.sleep(10.0)
        assert asked + 15 <= backend.asked <= asked + 25
        if cancelled:
            for task in tasks:
                task.cancel()
        await asyncio.wait(tasks)
        assert asyncio.all_tasks() == before
        asked = backend.asked
        await backend.clock.sleep(10.0)
        assert backend.asked == asked


async def test_the_clients_own_answers_count_where_the_engine_says_nothing() -> None:
    backend = ScriptedBackend(WIDE, latency=1.0)
    async with Client(backend, clock=backend.clock, limits=Limits(timeout=None, client_threads=16)) as client:
        for count, width in ((12, "limited"), (13, "plain")):  # four slots for each three of them, or not
            made = await asyncio.gather(*(client.generate(f"Why {n}?") for n in range(count)))
            assert [(one.text, one.width, len(one.notes)) for one in made] == [(TEXT, width, 1)] * count


@pytest.mark.parametrize("parallel", ["auto", "always"])
@pytest.mark.parametrize("slots", [4, 16])
async def test_a_new_answer_waits_for_one_chunk_of_others_at_most(slots: int, parallel: Any) -> None:
    backend = Busy()
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


async def test_who_is_parallel_whatever_the_load_does_not_wait_behind_those_who_are_not() -> None:
    backend = Busy(others=70)
    async with on(backend) as client:
        limited = asyncio.create_task(client.generate(await ids_of(backend)))
        await backend.clock.sleep(1.5)
        assert len(backend.open) == 1
        generation = await client.generate("Why?", parallel="always")
        assert (generation.width, backend.max_open) == ("full", 1 + 41)
        assert (await limited).width == "limited"


def lose(backend: Busy, how: str) -> None:
    """Have the backend tell no load any more."""
    backend.silent = how == "says nothing"
    backend.error = BackendStatusError("the load is not told", status=500) if how == "fails" else None


LOST = pytest.mark.parametrize("how", ["fails", "says nothing"])


async def test_a_load_that_cannot_be_read_ends_no_answer_and_the_one_before_serves_for_seconds() -> None:
    backend = Busy(others=60)
    async with on(backend) as client:
        assert (await client.generate("Why?")).width == "plain"
        lose(backend, "fails")
        generation = await client.generate("Why?")
        assert (generation.text, generation.width, len(generation.notes)) == (TEXT, "plain", 2)


@LOST
async def test_a_load_that_is_not_told_any_more_is_forgotten(how: str) -> None:
    backend = Busy(others=60)
    async with on(backend) as client:
        assert (await client.generate("Why?")).width == "plain"
        backend.others = 0
        lose(backend, how)
        if how == "fails":
            await backend.clock.sleep(6.0)
        for _ in range(2):
            generation = await client.generate("Why?")
            assert (generation.text, generation.width, backend.max_open) == (TEXT, "limited", 16)
            assert len(generation.notes) == 2  # of the load, and of the width


@LOST
async def test_an_engine_of_which_nothing_is_known_is_not_taken_as_empty(how: str) -> None:
    backend = Busy(others=1000)
    lose(backend, how)
    async with on(backend) as client:
        for at_once, width in ((1, "limited"), (16, "limited"), (17, "plain")):
            made = await asyncio.gather(*(client.generate(f"Why {n}?") for n in range(at_once)))
            assert [(one.text, one.width) for one in made] == [(TEXT, width)] * at_once
            assert {len(one.notes) for one in made} == {2}
            assert backend.max_open <= 17


@LOST
async def test_a_load_that_is_not_known_is_noted_at_full_width_too(how: str) -> None:
    backend = Busy("A." + promise("x", "One."))
    lose(backend, how)
    async with on(backend) as client:
        generation = await client.generate("Why?")
    assert (generation.width, len(generation.notes)) == ("full", 1)


async def test_a_load_that_is_lost_before_a_promise_is_in_a_note() -> None:
    backend = Busy()
    async with on(backend) as client:
        answer = asyncio.create_task(client.generate("Why?"))
        await backend.clock.sleep(0.002)  # main writes its first words
        backend.error = BackendStatusError("the load is not told", status=500)
        assert any("the load is not told" in note for note in (await answer).notes)


MORE_TAGS_THAN_TEXT = "".join(promise(f"{n}", "Yes.") for n in range(8))


async def test_what_answers_save_and_add_is_learnt_from_them() -> None:
    async with on(timed(MORE_TAGS_THAN_TEXT, others=10)) as client:
        widths = [(await client.generate("Why?")).width for _ in range(20)]
    assert widths[0] == "full" and widths[-1] == "plain"
    assert len(list(itertools.groupby(widths))) == 2


async def test_answers_that_gain_turn_parallel_decoding_on_again_and_such_as_do_not_hardly_ever() -> None:
    gains = "".join(promise(f"{n}", "word " * 50) for n in range(4))
    scripts = {"bad": MORE_TAGS_THAN_TEXT, "good": gains}
    async with on(timed(scripts, others=3)) as client:
        bad = [(await client.generate("bad")).width for _ in range(130)]
        assert bad[29] == "plain" and 1 <= 100 - bad[30:].count("plain") <= 5
        good = [(await client.generate("good")).width for _ in range(130)]
        assert good[-30:] == ["full"] * 30


async def test_where_no_answer_is_expected_to_gain_none_is_tried() -> None:
    async with on(timed(MORE_TAGS_THAN_TEXT, others=100)) as client:
        assert {(await client.generate("Why?")).width for _ in range(100)} == {"plain"}


async def test_a_gain_too_small_to_be_sure_of_is_no_reason_for_tags() -> None:
    chunk = " ".join(["word"] * 21)
    script = " ".join(["word"] * 400) + promise("a", chunk) + promise("b", chunk)
    async with on(timed(script, others=10, per_request=1e-6)) as client:  # requests cost next to nothing
        answers = [await client.generate("Why?") for _ in range(40)]
    assert answers[0].text_tokens > answers[0].critical_path + 6
    assert (answers[0].width, answers[-1].width) == ("full", "plain")


async def test_nothing_is_left_of_answers_that_failed_or_were_cancelled_while_they_waited() -> None:
    backend = Busy(others=20, faults=[Fault(5, 1)])
    async with on(backend) as client:
        tasks = [asyncio.create_task(client.generate(f"Why {n}?")) for n in range(3)]
        await backend.clock.sleep(2.5)
        tasks[1].cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(one, Generation) for one in done) == 1
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


@settings(max_examples=40)
@given(LOADS, st.lists(SCRIPTS, min_size=1, max_size=6), st.integers(1, 5), st.integers(1, 20), st.booleans())
async def test_whatever_the_load_every_answer_comes_to_its_end(
    loads: list[tuple[int, float]], scripts: list[str], max_threads: int, client_threads: int, ids: bool
) -> None:
    told = itertools.cycle(loads)

    class Varying(Busy):
        async def load(self, answer: str) -> EngineLoad | None:
            running, kv_use = next(told)
            if running % 9 == 8:
                raise BackendStatusError("the load is not told", status=500)
            if running % 9 == 7:
                return None
            return EngineLoad(16, running, kv_use=kv_use)

    def find(prompt: str) -> str:
        return scripts[int(prompt.split()[1])]

    backend = Varying(find)
    async with on(backend, max_threads=max_threads, client_threads=client_threads) as client:
        asked = [f"Why {n} ?" for n in range(len(scripts))]
        prompts = [await backend.encode_chat([{"role": "user", "content": one}], {}) for one in asked]
        made = await asyncio.gather(*map(client.generate, prompts if ids else asked))
    assert [one.text for one in made] == [parse(script).text for script in scripts]
    assert {one.finish_reason for one in made} == {"stop"}
    assert backend.max_open <= client_threads
