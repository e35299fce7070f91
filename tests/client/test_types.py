"""Types: code that works is accepted by type checkers, which read this file with all others."""

from __future__ import annotations

from typing import Literal, TypedDict

from openai.types.chat import ChatCompletionMessageParam

from pasta_async import Client, Limits, Sampling
from pasta_async.testing import ScriptedBackend


class Turn(TypedDict):
    """A message of somebody's own."""

    role: Literal["user", "assistant"]
    content: str


async def test_typed_messages_are_prompts() -> None:
    typed: list[Turn] = [{"role": "user", "content": "Why?"}]
    of_openai: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Why?"}]
    untyped = [{"role": "user", "content": "Why?"}]
    async with Client(ScriptedBackend("Because.")) as client:
        for text in (
            (await client.generate(typed)).text,
            (await client.generate(of_openai)).text,
            (await client.generate(untyped)).text,
            (await client.generate((1, 2, 3))).text,
        ):
            assert text == "Because."


def test_one_stop_text_will_do() -> None:
    assert Sampling(stop="x") == Sampling(stop=["x"]) == Sampling(stop=("x",))
    assert Sampling(stop="x").stop == ("x",)
    assert Limits(timeout=5).timeout == 5
