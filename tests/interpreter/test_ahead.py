"""Joins sent ahead: beginnings of what main sees next, no effect on the answer, nothing left of them."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pasta_async import (
    Client,
    DecodeRequest,
    Generation,
    GenerationTimeoutError,
    Limits,
    Sampling,
    ThreadFailedError,
)
from pasta_async.interpreter.ahead import MIN_TOKENS
from pasta_async.lang import Document, parse
from pasta_async.testing import Fault, Script, ScriptedBackend
from tests.interpreter.support import ENDLESS, ROOMY, answer, heard, promise, unrolled
from tests.interpreter.vocabularies import TAGGED, UNTAGGED, tokenizer

pytestmark = pytest.mark.loop_matrix

LONG = " ".join(f"word{n}" for n in range(50))
THREE = f"One. {promise('a', 'Alpha.')} {promise('b', LONG)} and {promise('c', f'{LONG} so')}<sync/> End."
"""At its sync the chunks are done one after another, the long ones last."""


def backend_for(document: Document, **options: Any) -> ScriptedBackend:
    options = {"latency": 1.0, "prefill_ahead": True, **options}
    return ScriptedBackend(document, **options)


def ahead(backend: ScriptedBackend) -> list[DecodeRequest]:
    return [request for request in backend.requests if not request.max_tokens]


def nothing_is_left(backend: ScriptedBackend) -> None:
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not backend.open
    assert all(play.finish_reason for play in backend.played)


def computed(backend: ScriptedBackend) -> int:
    """Context tokens that were not in the prefix cache."""
    return sum(len(play.request.ids) - play.cached_tokens for play in backend.played)


def comparable(generation: Generation) -> dict[str, Any]:
    """All of an answer but what the requests ahead change: what was found in the cache, and their number."""
    fields = generation.model_dump(exclude={"prefills"})
    for name in ("cached_tokens", "prefilled_tokens", "requests"):
        del fields["usage"][name]
    for thread in fields["threads"]:
        for request in thread["requests"]:
            del request["cached_tokens"]
    return fields


_WORDS = st.integers(0, 70).map(lambda count: " ".join(f"w{n}" for n in range(count)))
_CHUNK = st.builds(promise, st.sampled_from(["a", "black tea"]), _WORDS)
_PART = st.one_of(_CHUNK, _CHUNK, _CHUNK, st.sampled_from(["Tea. ", "\n", "<sync/>", "é "]))
_DOCUMENTS = st.lists(_PART, max_size=9).map(lambda parts: parse("".join([*parts, "<sync/> End."])))
_LATENCIES = st.dictionaries(st.integers(0, 6), st.sampled_from([0.1, 0.5, 3.0, 20.0]), max_size=4)


_ASKED = st.sampled_from([{}, {}, {"whole_chunks": True}])


@given(
    document=_DOCUMENTS,
    name=st.sampled_from([*TAGGED, *UNTAGGED]),
    latencies=_LATENCIES,
    piece=st.sampled_from([1, 1, 3]),
    asked=_ASKED,
)
@settings(max_examples=40)
async def test_what_is_sent_ahead_begins_a_view_of_main_and_changes_nothing_else(
    document: Document, name: str, latencies: dict[int, float], piece: int, asked: dict[str, Any]
) -> None:
    source = document if name in TAGGED else Script.of(document)
    options: dict[str, Any] = {"tokenizer": tokenizer(name), "thread_latency": latencies, "piece": piece}
    without = ScriptedBackend(source, latency=1.0, **options)
    backend = ScriptedBackend(source, latency=1.0, prefill_ahead=True, **options)
    expected = await answer(without, limits=ROOMY, sampling=ENDLESS, **asked)
    generation = await answer(backend, limits=ROOMY, sampling=ENDLESS, **asked)
    assert comparable(generation) == comparable(expected)
    assert computed(backend) == computed(without)  # nothing twice, nothing in vain
    assert not ahead(without)
    assert not expected.prefills
    assert len(generation.prefills) == len(ahead(backend))
    mains = [play.request.ids for play in backend.played if play.request.thread == 0 and play.ids]
    for request in ahead(backend):
        assert any(ids[: len(request.ids)] == request.ids for ids in mains)
    if name in TAGGED:
        prompt = len(backend.requests[0].ids)
        views = unrolled(document, backend.tokenizer)
        assert sorted(heard(backend.played, prompt)) == sorted(views)
        for request in ahead(backend):
            sent = request.ids[prompt:]
            assert any(thread == 0 and context[: len(sent)] == sent for thread, context, _ in views)
    nothing_is_left(backend)


async def test_the_request_at_the_join_finds_all_but_what_the_last_chunk_left() -> None:
    backend = backend_for(parse(THREE), thread_latency={3: 2.0})
    generation = await answer(backend, limits=ROOMY)
    last = generation.threads[0].requests[-1]
    assert last.cached_tokens is not None
    assert last.prompt_tokens - last.cached_tokens <= MIN_TOKENS + 3  # `</async>`, `<sync/>`, the last unit
    for one, other in pairwise(ahead(backend)):
        assert other.ids[: len(one.ids)] == one.ids
        assert len(other.ids) - len(one.ids) >= MIN_TOKENS - 1
    assert [record.finish_reason for record in generation.prefills] == ["length"] * len(ahead(backend))
    assert [record.completion_tokens for record in generation.prefills] == [0] * len(ahead(backend))
    assert generation.usage.requests == len(backend.requests)
    assert generation.usage.prefilled_tokens == computed(backend)


async def test_at_most_one_is_under_way_and_main_decodes_nothing_meanwhile() -> None:
    backend = backend_for(parse(THREE), thread_latency={2: 2.0, 3: 4.0}, prefill=5.0)
    await answer(backend, limits=ROOMY)
    plays = [play for play in backend.played if play.request.thread == 0]
    assert len(plays) > 3
    for one, other in pairwise(plays):
        assert one.ended is not None
        assert one.ended <= other.started


@pytest.mark.parametrize(
    "script",
    [
        f"One. {promise('a', 'Alpha.')} {promise('b', LONG)} {promise('c', LONG)} End.",  # no sync: no join
        f"One. {promise('a', LONG)}<sync/> {promise('b', LONG)}<sync/> End.",  # the thread's own KV is that
        f"One. {promise('a', LONG)} {promise('b', 'Beta.')}<sync/> End.",  # not worth a request
    ],
)
async def test_nothing_is_sent_that_would_not_pay(script: str) -> None:
    backend = backend_for(parse(script))
    assert (await answer(backend, limits=ROOMY)).text == parse(script).text
    assert not ahead(backend)


async def test_nothing_is_sent_where_threads_run_one_at_a_time_or_nobody_wants_it() -> None:
    for options, asked in (({}, {"parallel": "never"}), ({"prefill_ahead": False}, {})):
        backend = backend_for(parse(THREE), **options)
        await answer(backend, limits=ROOMY, **asked)
        assert not ahead(backend)


@pytest.mark.parametrize("kind", ["fail", "cut", "stall"])
async def test_one_that_fails_or_hangs_is_no_error_of_the_answer(kind: Any) -> None:
    expected = await answer(backend_for(parse(THREE), prefill_ahead=False), limits=ROOMY)
    backend = backend_for(parse(THREE), faults=[Fault(0, 0, kind, prefill=True, times=99, retryable=True)])
    generation = await answer(backend, limits=ROOMY)
    assert (generation.text, generation.elapsed) == (expected.text, expected.elapsed)
    assert generation.usage.completion_tokens == expected.usage.completion_tokens
    assert generation.usage.prefilled_tokens <= expected.usage.prefilled_tokens
    [record] = generation.prefills  # and no further one is sent
    assert record.finish_reason == ("abort" if kind == "stall" else "error")
    nothing_is_left(backend)


HANGS = Fault(0, 0, "stall", prefill=True, times=99)


async def test_a_chunk_that_fails_for_good_leaves_nothing_behind() -> None:
    backend = backend_for(parse(THREE), faults=[HANGS, Fault(3, 45)])
    with pytest.raises(ThreadFailedError) as caught:
        await answer(backend, limits=ROOMY)
    assert len(ahead(backend)) == 1
    assert caught.value.partial is not None
    nothing_is_left(backend)


async def test_a_chunk_that_is_taken_up_again_is_sent_as_it_is_in_the_end() -> None:
    backend = backend_for(parse(THREE), faults=[Fault(3, 45)])
    generation = await answer(backend, limits=Limits(chunk_tokens=1000, on_failure="sequence"))
    assert generation.document == parse(THREE)
    assert all(backend.requests[-1].ids[: len(one.ids)] == one.ids for one in ahead(backend))
    nothing_is_left(backend)


async def test_a_chunk_that_its_cap_cuts_is_sent_as_it_is_in_the_end() -> None:
    backend = backend_for(parse(THREE))
    generation = await answer(backend, limits=Limits(chunk_tokens=48))
    assert [thread.closed_by for thread in generation.threads[1:]] == ["writer", "budget", "budget"]
    assert ahead(backend)
    assert all(backend.requests[-1].ids[: len(one.ids)] == one.ids for one in ahead(backend))


@pytest.mark.parametrize(
    "options", [{"sampling": Sampling(max_tokens=100)}, {"stop": "word45"}], ids=["max_tokens", "stop"]
)
async def test_an_answer_that_ends_in_a_chunk_leaves_nothing_behind(options: dict[str, Any]) -> None:
    backend = backend_for(parse(THREE), faults=[HANGS], thread_latency={2: 1.5, 3: 1.0})
    expected = await answer(backend_for(parse(THREE), prefill_ahead=False), limits=ROOMY, **options)
    generation = await answer(backend, limits=ROOMY, **options)
    assert generation.text == expected.text
    nothing_is_left(backend)


async def test_an_answer_that_is_cancelled_or_times_out_leaves_nothing_behind() -> None:
    backend = backend_for(parse(THREE), faults=[HANGS, Fault(3, 45, "stall")])
    with pytest.raises(GenerationTimeoutError):
        await answer(backend, limits=Limits(chunk_tokens=1000, timeout=1000))
    nothing_is_left(backend)
    backend = backend_for(parse(THREE), faults=[HANGS])
    async with Client(backend, clock=backend.clock, limits=ROOMY) as client:
        async with client.stream("Why?") as stream:
            async for _ in stream:
                if ahead(backend):
                    break
        nothing_is_left(backend)
        assert [play.finish_reason for play in backend.played if not play.request.max_tokens] == ["abort"]


async def test_a_chunk_that_main_writes_itself_is_none_that_is_waited_for() -> None:
    """The thread of a chunk that main keeps inline is superseded: what it wrote is nowhere sent ahead."""
    inline = f"One. {promise('a')}<async>{LONG}</async> {promise('b')} {promise('c')}<sync/>"
    script = Script((inline, " End."), {1: "zebra </async>", 2: f"{LONG}</async>", 3: f"{LONG} so</async>"})
    backend = ScriptedBackend(
        script, tokenizer=tokenizer("plain words"), latency=1.0, prefill_ahead=True, thread_latency={3: 2.0}
    )
    generation = await answer(backend, limits=ROOMY)
    assert generation.threads[1].finish_reason == "superseded"
    assert ahead(backend)
    assert all(backend.requests[-1].ids[: len(one.ids)] == one.ids for one in ahead(backend))
    assert "zebra" not in "".join([await backend.detokenize(one.ids) for one in ahead(backend)])


async def test_it_holds_no_slot() -> None:
    backend = backend_for(parse(THREE), faults=[HANGS])
    one = Limits(chunk_tokens=1000, client_threads=1)
    async with Client(backend, clock=backend.clock, limits=one) as client:
        answers = await asyncio.gather(client.generate("Why?"), client.generate("What?"))
    assert {generation.text for generation in answers} == {parse(THREE).text}
    assert len(ahead(backend)) == 2
    nothing_is_left(backend)
