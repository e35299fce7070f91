"""Bad values are refused before a request is sent, and the message says which and why."""

from __future__ import annotations

from typing import Any

import pytest

from pasta_async import Client, InvalidRequestError, Limits, PromptTooLongError, Sampling, generate, stream
from pasta_async.testing import ScriptedBackend, WordTokenizer


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": "hot"},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": 0},
        {"min_p": -1},
        {"seed": -1},
        {"stop": ("",)},
        {"max_tokens": 0},
        {"frequency": 1},
    ],
)
def test_sampling(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=f"Sampling: {next(iter(values))}"):
        Sampling(**values)


@pytest.mark.parametrize(
    "values",
    [
        {"max_threads": 0},
        {"client_threads": 0},
        {"chunk_tokens": 0},
        {"timeout": 0},
        {"timeout": float("inf")},
        {"retries": -1},
        {"on_failure": "hope"},
        {"depth": 3},
    ],
)
def test_limits(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=f"Limits: {next(iter(values))}"):
        Limits(**values)


PROMPTS: list[tuple[Any, str]] = [
    ("", "empty"),
    ("  \n", "empty"),
    ([], "no message"),
    (None, "a text, or a list of messages"),
    (b"Why?", "a text, or a list of messages"),
    (["Why?"], "a text, or a list of messages"),
    ([{"role": "user"}], "message 0 needs"),
    ([{"role": "user", "content": "Why?"}, {"content": "Why?"}], "message 1 needs"),
    ([{"role": "user", "content": None}], "empty"),
    ([{"role": "user", "content": 7}], "content"),
    ([{"role": "user", "content": [{"type": "text", "text": "Why?"}]}], "content"),
    ([{"role": "poet", "content": "Why?"}], "role"),
    ([{"role": "user", "content": " "}], "empty"),
]


@pytest.mark.parametrize(("prompt", "why"), PROMPTS)
async def test_prompts_and_messages(prompt: Any, why: str) -> None:
    backend = ScriptedBackend("Because.")
    with pytest.raises(InvalidRequestError, match=why):
        await generate(prompt, backend=backend)
    with pytest.raises(InvalidRequestError, match=why):
        async with stream(prompt, backend=backend) as answer:
            await answer.result()
    assert not backend.requests


async def test_a_prompt_that_fills_the_models_context() -> None:
    backend = ScriptedBackend("Because.", context_length=10)
    with pytest.raises(PromptTooLongError, match="the prompt has 24 tokens, and scripted takes 10"):
        await generate("Why? " * 10, backend=backend)
    assert not backend.requests


async def test_a_prompt_above_the_limit() -> None:
    backend = ScriptedBackend("Because.")
    with pytest.raises(PromptTooLongError, match="the prompt has 24 tokens; at most 23"):
        await generate("Why? " * 10, backend=backend, limits=Limits(prompt_tokens=23))
    assert not backend.requests


async def test_a_prompt_of_token_ids_is_taken_as_it_is() -> None:
    backend = ScriptedBackend("Because.")
    ids = await backend.encode("Why?")
    answer = await generate(ids, backend=backend)
    assert backend.requests[0].ids == tuple(ids)
    assert answer.usage.prompt_tokens == len(ids)


async def test_a_fork_that_there_is_not() -> None:
    options: dict[str, Any] = {"fork": "both"}
    with pytest.raises(InvalidRequestError, match='"stream" or "cut"'):
        await generate("Why?", backend=ScriptedBackend("Because."), **options)


async def test_a_model_without_tags_that_is_not_to_be_prompted() -> None:
    backend = ScriptedBackend("Because.", tokenizer=WordTokenizer(tags=False))
    with pytest.raises(InvalidRequestError, match="no tag tokens in its vocabulary"):
        await generate("Why?", backend=backend, prompted=False)
    assert not backend.requests
    assert (await generate("Why?", backend=backend, prompted=False, baseline=True)).text == "Because."


@pytest.mark.parametrize("url", ["localhost:30000", "http:", "https://", "sglang:", "vllm:/model"])
def test_a_string_that_names_no_backend(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="The forms are"):
        Client(url)


async def test_an_option_that_there_is_not() -> None:
    options: dict[str, Any] = {"temperature": 1.0}
    with pytest.raises(TypeError, match="temperature"):
        await generate("Why?", backend=ScriptedBackend("Because."), **options)
