"""The contract on cancellation, sentence by sentence, on every kind of event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from pasta_async import (
    Client,
    DecodeRequest,
    Event,
    Generation,
    GenerationTimeoutError,
    Limits,
    Piece,
    ThreadFailedError,
)
from pasta_async.lang import parse
from pasta_async.testing import Fault, ScriptedBackend
from tests.helpers.answer_runs import RICH, answer

pytestmark = pytest.mark.loop_matrix

EVENTS = 104
"""The number of the document's events, or a few more."""


def nothing_is_left(backend: ScriptedBackend) -> None:
    """No task beside this one, no request."""
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not backend.open
    assert all(play.finish_reason for play in backend.played)


def is_part_of_the_answer(partial: Generation | None) -> None:
    assert partial is not None
    assert partial.finish_reason in ("abort", "error")
    whole = parse(RICH)
    texts = [promise.chunk.text for promise in whole.promises if promise.chunk]
    begun_texts = [promise.chunk.text for promise in partial.document.promises if promise.chunk]
    assert all(text.startswith(begun) for text, begun in zip(texts, begun_texts, strict=False))
    assert whole.format().startswith(partial.document.format().split("</async>")[0])


async def end_by_cancelling(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def first_events(stream: AsyncIterator[Event], count: int) -> int:
    """Read so many events; returns how many there were."""
    seen = 0
    async for _ in stream:
        seen += 1
        if seen == count:
            break
    return seen


@pytest.mark.parametrize("latencies", [{}, {1: 3.0, 2: 0.5, 4: 7.0}], ids=["even", "uneven"])
async def test_leaving_the_block_at_any_event_ends_everything(latencies: dict[int, float]) -> None:
    some = latencies or asyncio.get_running_loop().get_debug()  # the plain loops do them all
    for count in range(0, EVENTS, 5 if some else 1):
        backend = ScriptedBackend(RICH, latency=1.0, thread_latency=latencies)
        async with Client(backend, clock=backend.clock) as client:
            async with client.stream("Why?") as stream:
                seen = await first_events(stream, count) if count else 0
            nothing_is_left(backend)
            if seen == count and (partial := stream.partial) and partial.finish_reason == "abort":
                is_part_of_the_answer(partial)
                assert parse(RICH).text.startswith(partial.text)  # what the reader has seen by then


async def test_cancelling_the_reader_at_any_event_ends_everything() -> None:
    for count in range(1, EVENTS, 5):
        backend = ScriptedBackend(RICH, latency=1.0)
        streams: list[Any] = []
        reached = asyncio.Event()

        async def read(count: int = count, reached: asyncio.Event = reached) -> None:
            async with Client(backend, clock=backend.clock) as client, client.stream("Why?") as stream:  # noqa: B023
                streams.append(stream)  # noqa: B023
                await first_events(stream, count)
                reached.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(read())
        await reached.wait()
        await end_by_cancelling(task)
        nothing_is_left(backend)
        assert streams[0].partial is not None


async def test_cancelling_the_caller_at_any_moment_ends_everything() -> None:
    whole = await answer(ScriptedBackend(RICH, latency=1.0))
    for moment in range(0, int(whole.elapsed), 2):
        backend = ScriptedBackend(RICH, latency=1.0)
        task = asyncio.create_task(answer(backend))
        await backend.clock.sleep(moment + moment % 4 / 4)
        await end_by_cancelling(task)
        nothing_is_left(backend)


async def test_cancelling_before_the_first_step_ends_everything() -> None:
    for turns in range(8):
        backend = ScriptedBackend(RICH)
        task = asyncio.create_task(answer(backend))
        for _ in range(turns):
            await asyncio.sleep(0)
        await end_by_cancelling(task)
        nothing_is_left(backend)


async def test_a_time_out_at_any_moment_ends_everything_and_has_the_partial_answer() -> None:
    whole = await answer(ScriptedBackend(RICH, latency=1.0))
    for moment in range(0, int(whole.elapsed), 3):
        backend = ScriptedBackend(RICH, latency=1.0)
        with pytest.raises(GenerationTimeoutError) as caught:
            await answer(backend, limits=Limits(timeout=moment + 0.5))
        nothing_is_left(backend)
        assert backend.clock.time() == moment + 0.5
        partial = getattr(caught.value, "partial")  # noqa: B009
        is_part_of_the_answer(partial)
        assert partial.text == partial.document.text


async def test_a_stream_that_is_left_at_once_leaves_nothing() -> None:
    backend = ScriptedBackend(RICH)
    async with Client(backend) as client:
        async with client.stream("Why?") as stream:
            pass
        assert stream.partial is None
        client.stream("Never entered")
    nothing_is_left(backend)


class SlowToAbort(ScriptedBackend):
    """Ending a request early takes it a while, as an abort on a server does, or fails."""

    aborting = 0
    failing = False

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        ended = False
        try:
            async for piece in super().decode(request):
                ended = piece.finish_reason is not None
                yield piece
        finally:
            if not ended:
                self.aborting += 1
                try:
                    await asyncio.shield(asyncio.ensure_future(self._abort()))
                finally:
                    self.aborting -= 1

    async def _abort(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        if self.failing:
            raise ThreadFailedError("the abort failed", thread=0)


async def test_an_outside_cancellation_wins_over_an_error_at_the_same_time() -> None:
    for turns in range(12):
        backend = ScriptedBackend(RICH, faults=[Fault(1, 0), Fault(2, 1)])
        task = asyncio.create_task(answer(backend))
        for _ in range(200):
            if any(play.finish_reason == "error" for play in backend.played):
                break
            await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        if task.done():
            assert isinstance(task.exception(), ThreadFailedError)
            continue
        await end_by_cancelling(task)
        nothing_is_left(backend)


async def test_an_outside_cancellation_wins_over_errors_of_the_clean_up() -> None:
    backend = SlowToAbort(RICH, latency=1.0)
    backend.failing = True
    task = asyncio.create_task(answer(backend))
    await backend.clock.sleep(14.5)
    await end_by_cancelling(task)
    nothing_is_left(backend)


@pytest.mark.parametrize("turns", range(7))
async def test_a_second_cancellation_during_the_clean_up_does_not_cut_it_short(turns: int) -> None:
    backend = SlowToAbort(RICH, latency=1.0)

    async def read() -> None:
        async with Client(backend, clock=backend.clock) as client, client.stream("Why?") as stream:
            await stream.result()

    task = asyncio.create_task(read())
    await backend.clock.sleep(14.5)
    task.cancel()
    for _ in range(turns):
        await asyncio.sleep(0)
    await end_by_cancelling(task)
    assert not backend.aborting
    for _ in range(6):  # an abort that was shielded ends by itself
        await asyncio.sleep(0)
    nothing_is_left(backend)


async def test_a_cancelled_answer_leaves_the_client_and_its_slots_to_others() -> None:
    backend = ScriptedBackend(RICH, latency=1.0)
    limits = Limits(client_threads=1)
    async with Client(backend, clock=backend.clock, limits=limits) as client:
        for moment in (0.5, 3.0, 15.5, 20.0, 33.0):
            task = asyncio.create_task(client.generate("Why?"))
            waiting = asyncio.create_task(client.generate("Why not?"))
            await backend.clock.sleep(moment)
            waiting.cancel()
            task.cancel()
            await asyncio.wait([task, waiting])
            assert not backend.open
        assert (await client.generate("Why?")).text == parse(RICH).text
