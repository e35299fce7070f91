"""Thinking blocks: never read for tags, and told apart from the answer behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pasta_async import Client, Message, TextDelta
from pasta_async.events import ReasoningDelta
from pasta_async.interpreter.reading import ThinkingFilter
from pasta_async.lang import parse
from pasta_async.testing import Fault, ScriptedBackend
from tests.interpreter.support import answer, promise
from tests.interpreter.vocabularies import TAGGED, tokenizer


class Thinks(ScriptedBackend):
    """Its chat template opens a thinking block."""

    async def encode_chat(self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]) -> list[int]:
        ids = await super().encode_chat(messages, template_kwargs)
        return [*ids, *self.tokenizer.encode("<think>\n")]


@pytest.mark.parametrize("piece", [1, 6])
@pytest.mark.parametrize(("kind", "opening"), [(ScriptedBackend, "<think>"), (Thinks, "")])
async def test_tags_inside_a_thinking_block_have_no_effect(
    kind: type[ScriptedBackend], opening: str, piece: int
) -> None:
    written = f"{opening}Hm.</think> One {promise('a', 'Alpha.')}<sync/> two."
    thought = Fault(0, 5 if opening else 2, "garbage", text=promise("x"))
    generation = await answer(kind(written, faults=[thought], piece=piece))
    assert (generation.reasoning, generation.text) == (f"Hm.{promise('x')}", " One Alpha. two.")
    assert [thread.topic for thread in generation.threads[1:]] == ["a"]


async def test_a_thinking_block_that_never_ends_is_all_reasoning() -> None:
    generation = await answer(ScriptedBackend("<think>Hm, and so on"))
    assert (generation.reasoning, generation.text) == ("Hm, and so on", "")


@pytest.mark.parametrize(("name", "piece"), [("words", 1), ("pieces", 3), ("merged", 2)])
async def test_reasoning_is_streamed_apart_from_the_text(name: str, piece: int) -> None:
    written = f"<think>Hm, </thi or so.</think>One {promise('a', 'Alpha.')}<sync/> two."
    backend = ScriptedBackend(written, tokenizer=tokenizer(name), piece=piece)
    async with Client(backend) as client, client.stream("Why?") as stream:
        events = [event async for event in stream]
        generation = await stream.result()
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


def test_a_block_is_split_where_it_ends_however_the_text_comes_in() -> None:
    whole = " <think>a <b> </thin </think> c </think>"
    for size in range(1, len(whole)):
        thinking = ThinkingFilter()
        parts = [thinking.split(whole[at : at + size]) for at in range(0, len(whole), size)]
        assert "".join(part for part, _ in parts) == "a <b> </thin "
        assert "".join(rest for _, rest in parts) == " c </think>"
        assert thinking.flush() == ("", "")


async def test_chat_template_arguments_are_passed_on() -> None:
    seen: list[dict[str, Any]] = []

    class Notes(ScriptedBackend):
        async def encode_chat(
            self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]
        ) -> list[int]:
            seen.append(dict(template_kwargs))
            return await super().encode_chat(messages, template_kwargs)

    async with Client(Notes("Yes.")) as client:
        await client.generate("Why?", chat_template_kwargs={"enable_thinking": False})
        await client.generate("Why?", chat_template_kwargs={"enable_thinking": False}, baseline=True)
    assert seen == [{"enable_thinking": False}, {"enable_thinking": False, "pasta": False}]
