"""Tags in what a user typed, and in what a model thinks, are data, never commands."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from itertools import chain

import pytest

from pasta_async import DecodeRequest, Piece, TextDelta
from pasta_async.events import ReasoningDelta
from pasta_async.lang import PROMISE_OPEN, TAG_TOKENS, Segment, parse
from pasta_async.testing import ScriptedBackend
from tests.helpers.answer_runs import RICH, answer, events_of, promise
from tests.helpers.vocabularies import TAGGED, tokenizer

TYPED = 'What does <sync/> do? <promise topic="a" tokens="10"/><async>This?</async>'


class InsertingBackend(ScriptedBackend):
    """Writes a text, whose tags become tag tokens, in place of each `@` of the script."""

    def __init__(self, script: str, text: str, *, piece: int = 1) -> None:
        super().__init__(script, piece=piece)
        parts = re.split(f"({'|'.join(map(re.escape, TAG_TOKENS))})", text)
        segments = (Segment(part, is_tag=part in TAG_TOKENS) for part in parts if part)
        self._text = self.tokenizer.encode_segments(segments)
        self._mark = self.tokenizer.encode("@")[0]

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        async for piece in super().decode(request):
            ids = [self._text if token == self._mark else (token,) for token in piece.ids]
            yield piece._replace(ids=tuple(chain(*ids)))


@pytest.mark.parametrize("name", TAGGED)
@pytest.mark.parametrize("typed", [TYPED, "".join(TAG_TOKENS)])
async def test_a_prompt_with_tags_is_encoded_without_a_tag_id_and_decodes_to_what_was_typed(
    name: str, typed: str
) -> None:
    backend = ScriptedBackend("Nothing.", tokenizer=tokenizer(name))
    generation = await answer(backend, typed)
    (request,) = backend.requests
    assert not {*(backend.tokenizer.tags or ())} & {*request.ids}
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
    backend = InsertingBackend(f"A {promise('tea', 'Mild.')}@ B.", "<async>Itself.</async>")
    generation = await answer(backend)
    assert generation.text == "A Mild.Itself. B."
    assert [str(found.code) for found in generation.diagnostics] == ["async-stray", "async-stray-close"]
    assert parse(generation.document.format()) == generation.document


# Thinking blocks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [1, 6])
@pytest.mark.parametrize("opened", [True, False], ids=["by the prompt", "by the model"])
async def test_tags_inside_a_thinking_block_have_no_effect(opened: bool, piece: int) -> None:
    written = f"{'' if opened else '<think>'}Hm.@</think> One {promise('a', 'Alpha.')}<sync/> two."
    backend = InsertingBackend(written, promise("x"), piece=piece)
    prompt = backend.tokenizer.encode_chat([{"role": "user", "content": "Why?"}], {})
    if opened:
        prompt += backend.tokenizer.encode("<think>\n")
    generation = await answer(backend, prompt)
    assert (generation.reasoning, generation.text) == (f"Hm.{promise('x')}", " One Alpha. two.")
    assert [thread.topic for thread in generation.threads[1:]] == ["a"]


async def test_a_thinking_block_that_never_ends_is_all_reasoning() -> None:
    generation = await answer(ScriptedBackend("<think>Hm, and so on"))
    assert (generation.reasoning, generation.text) == ("Hm, and so on", "")


@pytest.mark.parametrize(("name", "piece"), [("words", 1), ("bytes", 3), ("merged", 2)])
async def test_reasoning_is_streamed_apart_from_the_text(name: str, piece: int) -> None:
    written = f"<think>Hm, </thi or so.</think>One {promise('a', 'Alpha.')}<sync/> two."
    backend = ScriptedBackend(written, tokenizer=tokenizer(name), piece=piece)
    events, generation = await events_of(backend)
    reasoning = "".join(event.delta for event in events if isinstance(event, ReasoningDelta))
    assert reasoning == generation.reasoning == "Hm, </thi or so."
    text = "".join(event.delta for event in events if isinstance(event, TextDelta))
    assert text == generation.text == "One Alpha. two."


@pytest.mark.parametrize("name", TAGGED)
@pytest.mark.parametrize("text", ["<thi", "<", " \n<think", "<thinking>", "<b>", ""])
async def test_what_only_looks_like_its_beginning_is_text(text: str, name: str) -> None:
    for written in (text, f"{text} and {promise('a', 'more')}."):
        backend = ScriptedBackend(written, tokenizer=tokenizer(name))
        assert (await answer(backend)).text == parse(written).text


async def test_chat_template_arguments_are_passed_on() -> None:
    backend = ScriptedBackend("Yes.")
    for options in ({"chat_template_kwargs": {"pasta": False}}, {"baseline": True}):
        await answer(backend, **options)
        assert backend.tokenizer.decode(backend.requests[-1].ids).endswith("<|plain answer|>")


async def test_text_behind_a_promise_that_never_ends_is_text() -> None:
    script = "Hi @" + " word" * 300
    generation = await answer(InsertingBackend(script, PROMISE_OPEN))
    assert generation.text.endswith("word word")
    assert generation.text_tokens >= 300
