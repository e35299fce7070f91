"""The requests of a document are its views; a thread may forget `</async>` and write the next promise."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_async import Generation, Parallel, Sampling
from pasta_async.events import DiagnosticFound, TextDelta, ThreadDelta
from pasta_async.lang import Document, parse
from pasta_async.testing import ScriptedBackend
from tests.helpers.answer_runs import (
    ENDLESS,
    ROOMY,
    answer,
    documents,
    events_of,
    half_as_many,
    heard,
    promise,
    unrolled,
)
from tests.helpers.vocabularies import TAGGED, tokenizer

TAGS = {promise("coffee"): "promise-nested", "<sync/>": "sync-nested"}
WRITTEN = parse(
    f"Drinks:\n1. {promise('tea', 'Tea is mild.')}\n2. {promise('coffee', 'Coffee, strong.')}\n<sync/>So."
)
"""The document of a list of which the first thread goes on with the list."""


def forgetful(tag: str, name: str = "words", *, left_out: str = "\n2. ", **options: Any) -> ScriptedBackend:
    """The first thread writes this tag, and then what is not its business, instead of `</async>`."""
    document = parse(WRITTEN.format().replace("Tea is mild.", f"Tea is mild.{left_out}{tag}\nSo."))
    return ScriptedBackend(document, tokenizer=tokenizer(name), **options)


def contexts(backend: ScriptedBackend) -> list[tuple[int, tuple[int, ...]]]:
    """By thread, without the prompt."""
    prompt = len(backend.requests[0].ids)
    return sorted((request.thread, request.ids[prompt:]) for request in backend.requests)


@pytest.mark.parametrize("name", TAGGED)
@pytest.mark.parametrize("tag", TAGS)
async def test_the_chunk_ends_there_and_its_request_too(name: str, tag: str) -> None:
    backend = forgetful(tag, name)
    generation = await answer(backend)
    assert generation.document == WRITTEN == parse(generation.document.format())
    assert generation.text == WRITTEN.text == "Drinks:\n1. Tea is mild.\n2. Coffee, strong.\nSo."
    forgot, other = generation.threads[1:]
    assert (forgot.text, forgot.closed_by, forgot.finish_reason) == ("Tea is mild.", "nested", "stop")
    assert not forgot.was_cut
    assert other.closed_by == "writer"
    (found,) = generation.diagnostics
    assert (found.code, found.thread, found.offset) == (TAGS[tag], 1, len("Tea is mild.\n2. "))
    assert not generation.well_formed
    assert not backend.aborted  # the backend stopped by itself
    assert [record.finish_reason for record in forgot.requests] == ["stop"]
    assert "So" not in backend.tokenizer.decode(next(p.ids for p in backend.played if p.request.thread == 1))
    again = Generation.model_validate(generation.model_dump())
    assert (again.threads, again.document, again.diagnostics) == (
        generation.threads,
        generation.document,
        generation.diagnostics,
    )


@given(
    name=st.sampled_from(TAGGED),
    tag=st.sampled_from([*TAGS]),
    left_out=st.sampled_from(["", " ", "\n\n", "\n3. ", "\n\n  - ", " \r\n12) ", "\n\t\u2022 "]),
    piece=st.sampled_from([1, 2, 3, 1000]),
    latency=st.sampled_from([0.1, 1.0, 30.0]),
)
async def test_what_is_streamed_is_the_text_however_it_comes(
    name: str, tag: str, left_out: str, piece: int, latency: float
) -> None:
    options: dict[str, Any] = {"piece": piece, "latency": 1.0, "thread_latency": {1: latency}}
    backend = forgetful(tag, name, left_out=left_out, **options)
    events, generation = await events_of(backend, limits=ROOMY)
    assert generation.document == WRITTEN
    assert "".join(event.delta for event in events if isinstance(event, TextDelta)) == generation.text
    first = [event for event in events if isinstance(event, ThreadDelta) and event.thread == 1]
    assert "".join(event.delta for event in first) == "Tea is mild."
    diagnostics = [event.diagnostic for event in events if isinstance(event, DiagnosticFound)]
    assert diagnostics == list(generation.diagnostics)
    assert [(diagnostic.code[-6:], diagnostic.thread) for diagnostic in diagnostics] == [("nested", 1)]
    assert not backend.open


async def test_a_stop_text_is_looked_for_in_what_stays() -> None:
    backend = forgetful("<sync/>", left_out="\n\n- ")
    assert (await answer(backend, sampling=Sampling(stop=("- ",)))).document == WRITTEN
    stopped = await answer(forgetful("<sync/>"), sampling=Sampling(stop=(" mild",)))
    assert (stopped.text, stopped.matched_stop) == ("Drinks:\n1. Tea is", " mild")


@given(document=documents(nested=True), name=st.sampled_from(TAGGED), piece=st.sampled_from([1, 3, 1000]))
@half_as_many
async def test_every_answer_is_a_document_and_its_requests_are_views_of_it(
    document: Document, name: str, piece: int
) -> None:
    backend = ScriptedBackend(document, tokenizer=tokenizer(name), piece=piece)
    generation = await answer(backend, sampling=Sampling(max_tokens=10**7))
    assert parse(generation.document.format()) == generation.document
    assert not set(TAGS.values()) & {found.code for found in parse(generation.document.format()).diagnostics}
    nested = [thread.thread for thread in generation.threads if thread.closed_by == "nested"]
    assert sorted(found.thread for found in generation.diagnostics if found.code in TAGS.values()) == nested
    expected = {(thread, ids) for thread, ids, _ in unrolled(generation.document, backend.tokenizer)}
    assert expected <= set(contexts(backend))


@pytest.mark.parametrize("parallel", ["always", "never"])
@given(document=documents(), name=st.sampled_from(TAGGED))
@half_as_many
async def test_the_requests_are_the_views_of_any_document(
    document: Document, name: str, parallel: Parallel
) -> None:
    backend = ScriptedBackend(document, tokenizer=tokenizer(name))
    prompt = len(backend.tokenizer.encode_chat([{"role": "user", "content": "Why?"}], {}))
    generation = await answer(backend, limits=ROOMY, sampling=ENDLESS, parallel=parallel)
    expected = unrolled(document, backend.tokenizer)
    assert sorted(heard(backend.played, prompt)) == sorted(expected)
    assert generation.document == document
    assert generation.text == document.text
    assert generation.usage.completion_tokens == sum(len(output) for _, _, output in expected)
