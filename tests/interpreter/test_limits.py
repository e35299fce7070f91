"""Limits: how much runs at once and how much is written, whatever the timing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from itertools import pairwise

import pytest

from pasta_async import Client, DecodeRequest, GenerationTimeoutError, Limits, Piece, Sampling
from pasta_async.lang import parse
from pasta_async.testing import Fault, ScriptedBackend
from tests.helpers.answer_runs import RICH, answer, promise

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


async def test_chunks_of_started_answers_go_before_new_answers() -> None:
    script = f"One. {promise('a', 'Alpha.')}{promise('b', 'Beta.')}<sync/> Two."
    backend = ScriptedBackend(script, latency=1.0)
    async with Client(backend, clock=backend.clock, limits=Limits(client_threads=1)) as client:
        await asyncio.gather(*(client.generate(f"Why {n}?", parallel="always") for n in range(5)))
    begun = list(dict.fromkeys(request.answer for request in backend.requests))
    for older, newer in pairwise(begun):
        first = next(n for n, request in enumerate(backend.requests) if request.answer == newer)
        earlier = [request.thread for request in backend.requests[:first] if request.answer == older]
        assert earlier == [0, 1, 2]


async def test_the_context_of_the_model_is_a_limit_too() -> None:
    for room in range(1, 60, 4):
        probe = ScriptedBackend(RICH)
        prompt = len(probe.tokenizer.encode_chat([{"role": "user", "content": "Why?"}], {}))
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
    assert len(seeds) == len({seed for _, seed in seeds}) == 6


async def test_without_a_seed_threads_have_none() -> None:
    backend = ScriptedBackend(RICH)
    await answer(backend, sampling=Sampling(temperature=1.0))
    assert {request.seed for request in backend.requests} == {None}


class _Ending(ScriptedBackend):
    """Is the clock, too: the time is up some turns of the loop behind the last piece."""

    def __init__(self, turns: int) -> None:
        super().__init__("One two.")
        self.turns, self.up = turns, asyncio.Event()

    def time(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        await self.up.wait()

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        async for piece in super().decode(request):
            if piece.finish_reason:
                self._pass(self.turns)
            yield piece

    def _pass(self, turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._pass, turns - 1)
        else:
            self.up.set()


@pytest.mark.parametrize("turns", range(6))
async def test_an_answer_that_ends_as_its_time_is_up_is_cancelled_by_nobody(turns: int) -> None:
    backend = _Ending(turns)
    task = asyncio.current_task()
    assert task
    async with Client(backend, clock=backend, limits=Limits(timeout=5)) as client:
        await client.connect()
        with suppress(GenerationTimeoutError):
            await client.generate("x")
    assert not task.cancelling()
