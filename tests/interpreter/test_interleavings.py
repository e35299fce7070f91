"""Threads ahead of each other, on a virtual clock where a token takes a second unless said otherwise."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

from pasta_async import Client, DecodeRequest, Generation, Limits, Piece
from pasta_async.lang import Document, Promise, Sync, parse
from pasta_async.testing import ScriptedBackend
from tests.helpers.answer_runs import ENDLESS, RICH, ROOMY, answer, events_of, promise
from tests.helpers.vocabularies import tokenizer

TWO = f"One. {promise('a', 'Alpha beta gamma.')} {promise('b', 'Delta.')}<sync/> End."


def scripted(script: str, **options: Any) -> ScriptedBackend:
    options.setdefault("latency", 1.0)
    return ScriptedBackend(script, **options)


def check_whole(backend: ScriptedBackend, generation: Generation, script: str) -> None:
    assert generation.document == parse(script)
    assert generation.text == parse(script).text
    assert not backend.open
    assert not backend.aborted


async def test_main_does_not_stop_at_a_promise() -> None:
    backend = scripted(TWO)
    generation = await answer(backend)
    main, first, second = generation.threads
    assert main.requests[0].completion_tokens == 3 + 5 + 1 + 5 + 1  # up to its sync in one request
    assert first.started == 8.0  # with the promise's last token, while main goes on
    assert second.started == 14.0
    assert first.ended == 13.0
    check_whole(backend, generation, TWO)


@pytest.mark.parametrize(
    ("latencies", "open_threads", "joined_at"),
    [({1: 10.0, 2: 3.0}, (1, 2), 58.0), ({1: 0.1, 2: 0.1}, (), 15.0)],
)
async def test_main_waits_at_the_sync_for_the_last_of_its_threads(
    latencies: dict[int, float], open_threads: tuple[int, ...], joined_at: float
) -> None:
    backend = scripted(TWO, thread_latency=latencies)
    events, generation = await events_of(backend)
    waiting = next(event for event in events if event.type == "sync.waiting")
    joined = next(event for event in events if event.type == "sync.joined")
    assert (waiting.threads, waiting.time, joined.time) == (open_threads, 15.0, joined_at)
    assert backend.played[-1].started == joined.time
    check_whole(backend, generation, TWO)


@pytest.mark.parametrize("name", ["words", "bytes"])
async def test_syncs_with_nothing_open_cost_one_request_at_most(name: str) -> None:
    idle = "<sync/> and" * 300
    for between in (idle, f"{promise('b', 'Beta.')} and {idle}", f"{promise('b', '')}<sync/>{idle}"):
        script = f"One. {promise('a', 'Alpha.')}<sync/>{between} so. {promise('c', 'Gamma.')}<sync/> End."
        backend = ScriptedBackend(script, tokenizer=tokenizer(name))
        generation = await answer(backend, limits=ROOMY, sampling=ENDLESS)
        assert generation.text == parse(script).text
        mains = [request for request in backend.requests if request.thread == 0]
        joins = sum(isinstance(node, Sync) for node in generation.document.nodes)
        assert len(mains) <= 2 * (joins + 1)
        last = backend.tokenizer.decode(mains[-1].ids)
        assert last.endswith("Gamma.</async><sync/>")  # what follows a sync sees the chunks


async def test_the_end_of_the_answer_joins_what_is_open() -> None:
    script = f"One. {promise('a', 'Alpha beta gamma delta.')}"
    backend = scripted(script, thread_latency={1: 5.0})
    events, generation = await events_of(backend)
    assert generation.threads[0].ended == 9.0
    assert generation.threads[1].ended == generation.elapsed == 8.0 + 6 * 5.0
    assert "sync.joined" not in [event.type for event in events]  # nothing is decoded after it
    check_whole(backend, generation, script)


async def test_a_chunk_over_its_cap_is_closed_and_its_closing_tag_forced() -> None:
    script = f"One {promise('a', 'a b c d e f g h')} two<sync/> three."
    backend = scripted(script)
    generation = await answer(backend, limits=Limits(chunk_tokens=3))
    chunk = generation.document.promises[0].chunk
    assert chunk is not None
    assert (chunk.text, chunk.closed_by) == ("a b c", "budget")
    assert (generation.threads[1].finish_reason, generation.threads[1].closed_by) == ("length", "budget")
    assert generation.text == "One a b c two three."
    assert "<async>a b c</async> two<sync/>" in backend.tokenizer.decode(backend.requests[-1].ids)
    assert generation.usage.completion_tokens == sum(len(play.ids) for play in backend.played)
    assert not generation.diagnostics  # that it was cut is no fault of what it says


async def test_the_cap_is_four_times_the_estimate_and_64_unless_set() -> None:
    for tokens, cap in (("20", 144), ("21", 184), ("", 512)):
        script = f'<promise topic="a" tokens="{tokens}"/><async>{"a " * 600}</async>'
        generation = await answer(ScriptedBackend(script, latency=1.0))
        assert generation.threads[1].tokens == cap
        assert generation.threads[1].finish_reason == "length"
        assert generation.finish_reason == "stop"  # it cuts no answer


async def test_end_of_text_closes_a_chunk() -> None:
    document = parse(f"One {promise('a', 'Alpha beta')} two<sync/> three.")
    first, kept, *rest = document.nodes
    assert isinstance(kept, Promise)
    assert kept.chunk is not None
    unclosed = replace(kept, chunk=replace(kept.chunk, closed_by="end"))
    backend = ScriptedBackend(Document((first, unclosed, *rest)), latency=1.0)
    generation = await answer(backend)
    chunk = generation.document.promises[0].chunk
    assert chunk is not None
    assert (chunk.text, chunk.closed_by) == ("Alpha beta", "end")
    assert generation.threads[1].finish_reason == "stop"
    assert "<async>Alpha beta</async> two<sync/>" in backend.tokenizer.decode(backend.requests[-1].ids)


async def test_in_turn_the_text_is_the_same_and_the_views_come_in_document_order() -> None:
    together, alone = scripted(RICH), scripted(RICH)
    expected = await answer(together)
    generation = await answer(alone, parallel="never")
    assert generation.text == expected.text
    assert generation.document == expected.document
    assert generation.critical_path == expected.critical_path
    assert (alone.max_open, generation.elapsed) == (1, float(generation.usage.completion_tokens))
    order = [request.thread for request in alone.requests]
    assert [k for n, k in enumerate(order) if n == 0 or order[n - 1] != k] == [0, 1, 2, 0, 3, 4, 0, 5]


async def test_the_text_streams_in_document_order_and_what_is_ready_early_comes_at_once() -> None:
    backend = scripted(TWO, thread_latency={1: 10.0})
    async with Client(backend, clock=backend.clock) as client, client.stream("Why?") as stream:
        deltas = [(delta, backend.clock.time()) async for delta in stream.text_deltas()]
    assert "".join(delta for delta, _ in deltas) == parse(TWO).text
    assert (" Delta.", 58.0) in deltas  # thread 2 was done long before, and waited for thread 1


async def test_the_critical_path_is_the_longest_chain_of_each_round_in_tokens() -> None:
    backend = scripted(RICH)
    generation = await answer(backend)
    mains = [len(play.ids) for play in backend.played if play.request.thread == 0]
    chunks = {play.request.thread: len(play.ids) for play in backend.played}
    first_round = max(mains[0], 6 + 5 + chunks[1], 6 + 5 + 1 + 5 + chunks[2])
    second_round = max(mains[1], 9 + 5 + chunks[3], 9 + 5 + 5 + chunks[4])
    third_round = max(mains[2], 5 + 5 + chunks[5])
    assert generation.critical_path == first_round + second_round + third_round


class LateReason(ScriptedBackend):
    """Gives the reason of a request's end in a last piece that holds no token, as some servers do."""

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        async for piece in super().decode(request):
            yield Piece(piece.ids)
            if piece.finish_reason:
                yield Piece((), piece.finish_reason, piece.cached_tokens)


async def test_a_stop_that_comes_behind_its_token_is_not_the_end() -> None:
    for script in (RICH, "One.<sync/> Two."):  # in the second nothing is open at the sync, so main goes on
        assert (await answer(LateReason(script))).document == parse(script)
