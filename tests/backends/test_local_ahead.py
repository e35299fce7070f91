"""Prefill-only requests on the embedded engine, and joins that are sent ahead to it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from cache_checks import check_scheduler

from pasta_async import Client, Generation, Limits, Piece, Sampling
from pasta_async.backends.local import LocalBackend
from pasta_async.backends.local.engine import Engine
from pasta_async.evals.documents import held_out
from pasta_async.evals.forcing import FORCED_LIMITS, FORCED_SAMPLING, ForcedBackend
from pasta_async.interpreter import ahead
from pasta_async.lang import parse
from pasta_async.protocol import DecodeRequest
from tests.pasta_tiny import PASTA_TINY

LONG = " ".join(f"Anna has {n} red apples." for n in range(12))
DOCUMENT = parse(
    f'One. <promise topic="a" tokens="20"/><async>Ben.</async> <promise topic="b" tokens="20"/><async>{LONG}'
    f'</async> and <promise topic="c" tokens="20"/><async>{LONG} So it is.</async><sync/> The end.'
)


def request(ids: range, max_tokens: int, answer: str = "a") -> DecodeRequest:
    return DecodeRequest(answer, 0, tuple(ids), max_tokens, Sampling())


async def pieces(backend: LocalBackend, asked: DecodeRequest) -> list[Piece]:
    return [piece async for piece in backend.decode(asked)]


def engine(backend: LocalBackend) -> Engine:
    assert backend.engine is not None
    return backend.engine


def nothing_runs(backend: LocalBackend) -> None:
    scheduler = engine(backend).scheduler
    assert scheduler.running == scheduler.waiting == []
    check_scheduler(scheduler)


async def test_a_request_of_no_tokens_computes_its_context_and_decodes_nothing() -> None:
    backend = LocalBackend(PASTA_TINY, device="cpu", max_prefill_tokens=16)
    first = await pieces(backend, request(range(40), 0))
    assert first == [((), "", "length", 40, 0)]
    longer = await pieces(backend, request(range(70), 0))
    assert longer == [((), "", "length", 70, 40)]
    [decoded, *_] = await pieces(backend, request(range(71), 3))
    assert decoded.cached_tokens == 70
    assert len(await pieces(backend, request(range(71), 3))) == 3
    nothing_runs(backend)
    await backend.aclose()


async def test_one_that_is_closed_keeps_what_it_computed_and_one_without_room_waits_for_the_others() -> None:
    backend = LocalBackend(PASTA_TINY, device="cpu", slots=128)
    await backend.connect()
    running = backend.decode(request(range(60), 40, "b"))
    assert (await anext(running)).ids
    waiting = asyncio.create_task(pieces(backend, request(range(100, 200), 0)))
    decoded = [piece async for piece in running]
    assert decoded[-1].finish_reason == "length"  # nobody was preempted for it
    assert (await waiting)[-1].finish_reason == "length"
    nothing_runs(backend)
    stream = asyncio.create_task(pieces(backend, request(range(100, 220), 0)))
    stream.cancel()
    await asyncio.wait([stream])
    nothing_runs(backend)
    await backend.aclose()


async def forced(**options: Any) -> Generation:
    backend = LocalBackend(PASTA_TINY, device="cpu", **options)
    async with Client(ForcedBackend(backend, {"Well?": DOCUMENT}), limits=FORCED_LIMITS) as client:
        generation = await client.generate("Well?", sampling=FORCED_SAMPLING)
    nothing_runs(backend)
    await backend.aclose()
    return generation


async def test_the_request_at_the_join_finds_all_but_what_the_last_chunk_left() -> None:
    without, generation = await forced(prefill_ahead=False), await forced()
    assert generation.document == without.document == DOCUMENT
    before, after = (one.threads[0].requests[1] for one in (without, generation))
    assert before.prompt_tokens == after.prompt_tokens
    assert before.cached_tokens is not None
    assert after.cached_tokens is not None
    last = generation.threads[-1].tokens
    assert before.prompt_tokens - before.cached_tokens > 2 * last - 40
    assert after.prompt_tokens - after.cached_tokens <= ahead.MIN_TOKENS + 16
    assert [record.finish_reason for record in generation.prefills][:-1] == ["length"] * (
        len(generation.prefills) - 1
    )
    assert generation.usage.completion_tokens == without.usage.completion_tokens


async def test_greedy_answers_are_the_same_with_it_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "MIN_TOKENS", 2)
    prompts = [prompt.text for prompt in held_out(["describe", "totals", "chain"], 2)]
    answers: list[list[Generation]] = []
    for wanted in (False, True):
        backend = LocalBackend(PASTA_TINY, device="cpu", prefill_ahead=wanted)
        async with Client(backend, limits=Limits(timeout=None)) as client:
            answers.append([await client.generate(prompt, max_tokens=400) for prompt in prompts])
        nothing_runs(backend)
        await backend.aclose()
    assert any(one.prefills for one in answers[1])
    assert not any(one.prefills for one in answers[0])
    for without, one in zip(*answers, strict=True):
        assert one.text == without.text
        assert one.document == without.document
        assert [thread.tokens for thread in one.threads] == [thread.tokens for thread in without.threads]
