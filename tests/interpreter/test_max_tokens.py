"""`max_tokens` cuts an answer in document order, where the same answer in sequence would be cut."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_async import Generation, Limits, Sampling
from pasta_async.lang import Document
from pasta_async.testing import ScriptedBackend
from tests.helpers.answer_runs import (
    ENDLESS,
    RICH,
    ROOMY,
    answer,
    documents,
    half_as_many,
    promise,
    read_by_events,
)
from tests.helpers.vocabularies import tokenizer


def kept(generation: Generation) -> object:
    """The part of an answer that must not depend on timing."""
    count = len(generation.document.promises)
    threads = generation.threads[: count + 1]
    return (
        generation.text,
        generation.reasoning,
        generation.document,
        [(p.chunk.closed_by if p.chunk else None) for p in generation.document.promises],
        generation.finish_reason,
        generation.critical_path,
        generation.text_tokens,
        generation.usage.completion_tokens - generation.usage.discarded_tokens,
        [(t.text, t.tokens - t.discarded_tokens, t.finish_reason, t.closed_by) for t in threads],
        [str(diagnostic) for diagnostic in generation.diagnostics],
    )


class Timing(NamedTuple):
    """Latencies and sizes on which an answer must not depend, and the cap of its chunks."""

    latencies: dict[int, float]
    piece: int
    threads: int
    cap: int | None

    @property
    def limits(self) -> Limits:
        return Limits(chunk_tokens=self.cap or ROOMY.chunk_tokens, max_threads=self.threads, timeout=None)


TIMINGS = st.builds(
    Timing,
    latencies=st.dictionaries(st.integers(0, 8), st.sampled_from([0.1, 1.0, 3.0, 20.0])),
    piece=st.sampled_from([1, 2, 3, 7, 1000]),
    threads=st.sampled_from([1, 2, 16]),
    cap=st.sampled_from([None, 3, 8]),
)


@given(
    document=documents(nested=True),
    name=st.sampled_from(["words", "bytes", "merged"]),
    most=st.integers(1, 90),
    timing=TIMINGS,
)
async def test_the_cut_is_that_of_the_answer_in_sequence(
    document: Document, name: str, most: int, timing: Timing
) -> None:
    def make(**options: Any) -> ScriptedBackend:
        return ScriptedBackend(document, tokenizer=tokenizer(name), **options)

    sampling = Sampling(max_tokens=most)
    limits = timing.limits.model_copy(update={"max_threads": Limits().max_threads})
    whole = await answer(make(), sampling=ENDLESS, limits=limits)
    sequence = await answer(make(), sampling=sampling, limits=limits, parallel="never")
    if whole.usage.completion_tokens - whole.usage.discarded_tokens <= most:
        assert kept(sequence) == kept(whole)
    else:
        assert sequence.finish_reason == "length"
        assert sequence.usage.completion_tokens - sequence.usage.discarded_tokens == most
        assert whole.text.startswith(sequence.text.rstrip("\ufffd"))  # a character may be cut, too
    assert sequence.text == sequence.document.text
    assert all(found.thread <= len(sequence.document.promises) for found in sequence.diagnostics)
    backend = make(latency=1.0, thread_latency=timing.latencies, piece=timing.piece)
    cut = await answer(backend, sampling=sampling, limits=timing.limits)
    assert kept(cut) == kept(sequence)
    assert not backend.open


async def test_what_is_decoded_behind_the_cut_is_cancelled_and_counted() -> None:
    script = f"{promise('a', 'one ' * 50)}{promise('b', 'two ' * 400)} three" + " four" * 400
    backend = ScriptedBackend(script, latency=1.0)
    generation = await answer(backend, sampling=Sampling(max_tokens=30))
    assert generation.elapsed < 80
    assert {request.thread for request in backend.aborted} >= {0, 2}
    usage = generation.usage
    assert usage.completion_tokens == sum(len(play.ids) for play in backend.played)
    assert usage.completion_tokens - usage.discarded_tokens == 30
    assert sum(record.discarded_tokens for record in generation.threads) == usage.discarded_tokens
    assert [record.finish_reason for record in generation.threads] == ["length", "length", "abort"]
    assert len(generation.document.promises) == 1


@given(document=documents(nested=True), most=st.integers(1, 60), timing=TIMINGS)
@half_as_many
async def test_the_events_add_up_to_what_is_kept(document: Document, most: int, timing: Timing) -> None:
    backend = ScriptedBackend(
        document,
        latency=1.0,
        thread_latency=timing.latencies,
        tokenizer=tokenizer("words"),
        piece=timing.piece,
    )
    generation, text, texts = await read_by_events(
        backend, sampling=Sampling(max_tokens=most), limits=timing.limits
    )
    assert text == generation.text
    assert texts == {record.thread: record.text for record in generation.threads if record.text}


@pytest.mark.parametrize("total", [5, 30, 60])
async def test_the_total_of_all_threads_is_a_limit_of_its_own(total: int) -> None:
    backend = ScriptedBackend(RICH, latency=1.0)
    generation = await answer(backend, limits=Limits(total_tokens=total))
    assert generation.usage.completion_tokens <= total
    assert generation.finish_reason == "length"
    assert not backend.open


async def test_an_answer_is_cut_where_the_total_ends_a_chunk_behind_the_end_of_main() -> None:
    backend = ScriptedBackend("Hi. " + promise("a", "word " * 60, 100), latency=1.0)
    generation = await answer(backend, limits=Limits(total_tokens=30))
    assert (generation.finish_reason, generation.well_formed) == ("length", False)
    assert [thread.finish_reason for thread in generation.threads] == ["stop", "length"]
