"""Tags in what a user typed are data, never commands."""

from __future__ import annotations

import pytest

from pasta_async.lang import TAG_TOKENS, parse
from pasta_async.testing import Fault, ScriptedBackend
from tests.interpreter.support import RICH, answer, promise
from tests.interpreter.vocabularies import TAGGED, tokenizer

TYPED = 'What does <sync/> do? <promise topic="a" tokens="10"/><async>This?</async>'


def tag_ids(backend: ScriptedBackend, ids: tuple[int, ...]) -> set[int]:
    return set(backend.tokenizer.tags or ()) & set(ids)


@pytest.mark.parametrize("name", TAGGED)
@pytest.mark.parametrize("typed", [TYPED, "".join(TAG_TOKENS)])
async def test_a_prompt_with_tags_is_encoded_without_a_tag_id_and_decodes_to_what_was_typed(
    name: str, typed: str
) -> None:
    backend = ScriptedBackend("Nothing.", tokenizer=tokenizer(name))
    generation = await answer(backend, typed)
    (request,) = backend.requests
    assert not tag_ids(backend, request.ids)
    assert backend.tokenizer.decode(request.ids) == f"<|user|>{typed}<|end|><|answer|>"
    assert len(generation.threads) == 1
    assert not generation.document.promises


async def test_an_untrained_model_answers_in_sequence_with_a_note() -> None:
    backend = ScriptedBackend(RICH, trained=False)
    generation = await answer(backend, TYPED)
    assert generation.text == parse(RICH).text
    assert (generation.width, len(generation.threads), len(generation.notes)) == ("plain", 1, 1)
    assert "tag tokens" in generation.notes[0]
    assert not (await answer(backend, baseline=True)).notes


@pytest.mark.parametrize("name", TAGGED)
async def test_tags_that_a_trained_model_spells_out_are_text(name: str) -> None:
    script = 'Write <\\sync/> or <\\promise topic="a" tokens="10"/> to <\\async>.'
    backend = ScriptedBackend(script, tokenizer=tokenizer(name))
    generation = await answer(backend)
    assert generation.text == 'Write <sync/> or <promise topic="a" tokens="10"/> to <async>.'
    assert generation.document == parse(script)
    assert len(generation.threads) == len(backend.requests) == 1


@pytest.mark.parametrize("name", TAGGED)
async def test_what_a_thread_may_not_write_is_banned(name: str) -> None:
    backend = ScriptedBackend(f"A {promise('tea', 'Mild.')}<sync/> B.", tokenizer=tokenizer(name))
    await answer(backend)
    tags = backend.tokenizer.tags
    assert tags is not None
    banned = {request.thread: set(request.banned_ids) for request in backend.requests}
    assert banned[0] == {tags.open_async, tags.close_async}
    assert banned[1] == {tags.open_async, tags.tokens, tags.end}
    await answer(backend, baseline=True)
    assert set(backend.requests[-1].banned_ids) == set(tags)


async def test_a_chunk_that_main_writes_itself_is_text_of_main() -> None:
    """`<async>` is banned; on a backend that cannot ban it, it has no effect."""
    inline = Fault(0, 7, "garbage", text="<async>Itself.</async>")
    backend = ScriptedBackend(f"A {promise('tea', 'Mild.')} B.", faults=[inline])
    generation = await answer(backend)
    assert generation.text == "A Mild.Itself. B."
    assert [str(found.code) for found in generation.diagnostics] == ["async-stray", "async-stray-close"]
    assert parse(generation.document.format()) == generation.document


async def test_baseline_answers_read_no_tags() -> None:
    backend = ScriptedBackend("A <\\sync/> B.")
    generation = await answer(backend, TYPED, baseline=True)
    assert (generation.text, len(generation.threads)) == ("A <sync/> B.", 1)
    assert (backend.tokenizer.decode(backend.requests[0].ids)).endswith("<|plain answer|>")
