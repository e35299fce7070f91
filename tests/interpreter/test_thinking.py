"""Thinking blocks: never read for tags, and told apart from the answer behind them."""

from __future__ import annotations

import pytest

from pasta_async import TextDelta
from pasta_async.events import ReasoningDelta
from pasta_async.lang import parse
from pasta_async.testing import Fault, ScriptedBackend
from tests.interpreter.support import answer, events_of, promise
from tests.interpreter.vocabularies import TAGGED, tokenizer


@pytest.mark.parametrize("piece", [1, 6])
@pytest.mark.parametrize("opened", [True, False], ids=["by the prompt", "by the model"])
async def test_tags_inside_a_thinking_block_have_no_effect(opened: bool, piece: int) -> None:
    written = f"{'' if opened else '<think>'}Hm.</think> One {promise('a', 'Alpha.')}<sync/> two."
    thought = Fault(0, 2 if opened else 5, "garbage", text=promise("x"))
    backend = ScriptedBackend(written, faults=[thought], piece=piece)
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
