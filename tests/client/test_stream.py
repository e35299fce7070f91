"""The stream of one answer: events as they happen, text in document order, a reader who takes his time."""

from __future__ import annotations

import asyncio

import pytest

import pasta_async
from pasta_async import (
    Client,
    Event,
    Generation,
    GenerationTimeoutError,
    InvalidStateError,
    Limits,
    ThreadFailedError,
)
from pasta_async.lang import parse
from pasta_async.observers import AnswerObserver, AnswerStart
from pasta_async.testing import Fault, ScriptedBackend
from tests.helpers.answer_runs import RICH


async def test_the_last_event_has_the_generation_that_result_gives() -> None:
    backend = ScriptedBackend(RICH)
    async with pasta_async.stream("Why?", backend=backend) as stream:
        events: list[Event] = []
        async for event in stream:
            events.append(event)
            assert stream.partial is not None
            assert (stream.partial.finish_reason == "abort") == (event.type != "answer.done")
        generation = await stream.result()
    assert events[-1].type == "answer.done"
    assert getattr(events[-1], "generation") is generation is stream.partial  # noqa: B009
    assert [event.type for event in events].count("answer.done") == 1
    assert [event.type for event in events].count("thread.done") == 6


@pytest.mark.loop_matrix
async def test_a_slow_reader_pauses_the_threads() -> None:
    backend = ScriptedBackend("word " * 2000)
    async with Client(backend) as client, client.stream("Why?") as stream:
        read = 0
        async for _ in stream:
            read += 1
            for _ in range(20):  # a slow reader: everybody else could run on
                await asyncio.sleep(0)
            (play,) = backend.open
            assert len(play.ids) <= read + 100
            if read == 300:
                break
    assert not backend.open


@pytest.mark.loop_matrix
async def test_the_result_without_reading_events_does_not_deadlock() -> None:
    backend = ScriptedBackend("word " * 1000 + RICH)
    async with Client(backend, limits=Limits(max_threads=1)) as client, client.stream("Why?") as stream:
        generation = await stream.result()
    assert generation.text == "word " * 1000 + parse(RICH).text
    assert await stream.result() is generation


async def test_the_result_of_a_stream_that_was_left_early_is_an_error_and_its_partial_answer_is_not() -> None:
    backend = ScriptedBackend(RICH, latency=1.0)
    async with Client(backend, clock=backend.clock) as client:
        async with client.stream("Why?") as stream:
            async for delta in stream.text_deltas():
                if "Europe" in delta:
                    break
        with pytest.raises(InvalidStateError):
            await stream.result()
    assert stream.partial is not None
    assert stream.partial.text == "Both wars reshaped Europe"
    elapsed = stream.partial.elapsed
    await backend.clock.sleep(60)
    assert stream.partial.elapsed == elapsed


async def test_an_error_comes_after_the_events_before_it_and_again_whenever_one_asks() -> None:
    backend = ScriptedBackend(RICH, latency=1.0, faults=[Fault(0, 3)])
    async with Client(backend, clock=backend.clock) as client, client.stream("Why?") as stream:
        deltas: list[str] = []
        with pytest.raises(ThreadFailedError):
            async for delta in stream.text_deltas():
                deltas.append(delta)  # noqa: PERF401 - it fails on the way
        assert "".join(deltas) == "Both wars reshaped"
        with pytest.raises(ThreadFailedError):
            await stream.result()
        with pytest.raises(ThreadFailedError) as caught:
            await stream.result()
    assert caught.value.partial is not None
    assert caught.value.partial.text == "Both wars reshaped"


class EndWatch(AnswerObserver):
    """Keeps the error that ended an answer; it is the observer of the client as well."""

    error: BaseException | None = None

    def answer(self, start: AnswerStart) -> AnswerObserver:
        return self

    def ended(self, generation: Generation | None, error: BaseException | None) -> None:
        self.error = error


async def test_a_reader_that_reads_nothing_keeps_no_answer_beyond_its_time() -> None:
    watch = EndWatch()
    backend = ScriptedBackend("word " * 1000, latency=0.01)
    limits = Limits(timeout=5.0)
    async with (
        Client(backend, clock=backend.clock, limits=limits, observers=[watch]) as client,
        client.stream("Why?") as stream,
    ):
        await backend.clock.sleep(100.0)
        assert isinstance(watch.error, GenerationTimeoutError)
        with pytest.raises(GenerationTimeoutError):
            await stream.result()


@pytest.mark.parametrize("words", range(60, 66))  # of one of these the last event is the first without room
async def test_the_last_event_waits_for_no_reader(words: int) -> None:
    watch = EndWatch()
    async with (
        Client(ScriptedBackend("word " * words), observers=[watch]) as client,
        client.stream("Why?") as stream,
    ):
        for _ in range(1000):  # a reader who begins late, and leaves at the last event
            await asyncio.sleep(0)
        async for event in stream:
            if event.type == "answer.done":
                break
    assert (await stream.result()).finish_reason == "stop"
    assert watch.error is None
