"""Stop texts apply to the visible text in document order, and cancel what comes after."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_async import Generation, Sampling
from pasta_async.interpreter.transcript import Visible
from pasta_async.lang import Document, parse
from pasta_async.testing import ScriptedBackend
from tests.helpers.answer_runs import RICH, answer, documents, half_as_many, promise, read_by_events
from tests.helpers.vocabularies import tokenizer

TIMES = st.dictionaries(st.integers(0, 8), st.sampled_from([0.1, 1.0, 3.0, 20.0]))


def stopping(*stop: str) -> Sampling:
    return Sampling(stop=stop)


@pytest.mark.parametrize("piece", [1, 2, 50])
@pytest.mark.parametrize(
    "stop", ["y. Ta", "reshaped", "peace.", "peace. Taken", "and old. The", "ended an age. More"]
)
async def test_a_stop_text_is_found_across_pieces_and_threads(stop: str, piece: int) -> None:
    for latencies in ({}, {1: 20.0}, {2: 20.0}, {0: 20.0}):
        backend = ScriptedBackend(RICH, latency=1.0, thread_latency=latencies, piece=piece)
        generation = await answer(backend, sampling=stopping(stop))
        whole = parse(RICH).text
        assert (generation.text, generation.finish_reason) == (whole.split(stop)[0], "stop")
        assert generation.document.text == generation.text
        assert not backend.open


async def test_what_comes_behind_it_is_cancelled_and_what_comes_before_is_not() -> None:
    chunks = promise("a", "Alpha beta gamma STOP delta.") + promise("b", "long " * 60)
    backend = ScriptedBackend(f"One. {chunks} two " + "on " * 60, latency=1.0, thread_latency={1: 3.0})
    generation = await answer(backend, sampling=stopping("STOP"))
    assert generation.text == "One. Alpha beta gamma "
    assert {request.thread for request in backend.aborted} == {0, 1, 2}
    assert generation.elapsed < 25
    script = f"One. {promise('a', 'Alpha ' * 60)} two. STOP three."
    backend = ScriptedBackend(script, latency=1.0)
    generation = await answer(backend, sampling=stopping("STOP"))
    assert generation.text == "One. " + "Alpha " * 60 + " two. "  # it is not known before chunk 1 is there
    assert generation.threads[1].finish_reason == "stop"
    assert generation.elapsed > 60


@pytest.mark.parametrize("latencies", [{}, {1: 5.0, 2: 0.1}, {0: 5.0}])
async def test_the_events_and_the_records_end_at_it_as_well(latencies: dict[int, float]) -> None:
    chunks = promise("a", "Alpha STOP beta.") + promise("b", "Gamma.") + promise("c", "long " * 60)
    backend = ScriptedBackend(f"One. {chunks} End.", latency=1.0, thread_latency=latencies)
    generation, text, threads = await read_by_events(backend, sampling=stopping("STOP"))
    assert text == generation.text == "One. Alpha "
    assert threads == {0: "One. ", 1: "Alpha "}
    assert [record.finish_reason for record in generation.threads[:2]] == ["stop", "stop"]
    assert {record.finish_reason for record in generation.threads[2:]} <= {"abort"}
    assert all(
        record.ended is not None and record.ended <= generation.elapsed for record in generation.threads
    )


def figures(generation: Generation) -> object:
    """The document and the figures of the part of an answer that is kept."""
    usage = generation.usage
    return (
        generation.document,
        generation.critical_path,
        generation.text_tokens,
        usage.completion_tokens - usage.discarded_tokens,
        [
            (record.text, record.tokens - record.discarded_tokens)
            for record in generation.threads
            if record.tokens > record.discarded_tokens
        ],
    )


@given(
    document=documents(nested=True),
    stop=st.sampled_from(["a", "is", ".", "\n", "é", "a dr", "Tea isa"]),
    timing=TIMES,
    piece=st.sampled_from([1, 3, 100]),
)
async def test_the_figures_are_those_of_the_answer_in_sequence(
    document: Document, stop: str, timing: dict[int, float], piece: int
) -> None:
    """Tokens behind the one that completes the stop text are discarded, whoever had decoded how many."""
    slow = ScriptedBackend(document, latency=1.0, thread_latency=timing, piece=piece)
    expected = await answer(ScriptedBackend(document), sampling=stopping(stop), parallel="never")
    assert figures(await answer(slow, sampling=stopping(stop))) == figures(expected)


@given(
    document=documents(),
    stop=st.lists(st.sampled_from(["a", "bc", " d", "Tea is", "\n\n", "é漢"]), min_size=1),
)
@half_as_many
async def test_stops_are_those_of_the_whole_text(document: object, stop: list[str]) -> None:
    written = str(getattr(document, "format")())  # noqa: B009
    backend = ScriptedBackend(written, tokenizer=tokenizer("bytes"))
    generation = await answer(backend, sampling=Sampling(stop=tuple(stop), max_tokens=10**7))
    text = parse(written).text
    ends = [(text.find(word) + len(word), text.find(word)) for word in stop if word in text]
    assert generation.text == (text[: min(ends)[1]] if ends else text)
    assert generation.document.text == generation.text


class CountedText(str):
    """A stop text that counts how often one of its characters is looked at."""

    looks = 0

    def __getitem__(self, key: Any) -> str:
        self.looks += 1
        return super().__getitem__(key)


@pytest.mark.parametrize("piece", [1, 7, 5000])
@pytest.mark.parametrize("stop", ["a" * 1000, "a" * 999 + "b", "b" + "a" * 999, "aab" * 333], ids=len)
def test_a_text_that_nearly_stops_is_read_in_linear_time(stop: str, piece: int) -> None:
    text = ("a" * 998 + "c") * 10
    counted = CountedText(stop)
    visible = Visible([counted])
    for start in range(0, len(text), piece):
        visible.tail.pending.append((0, text[start : start + piece]))
        visible.take()
    assert not visible.stopped
    assert 0 < counted.looks <= 4 * (len(text) + len(stop))
