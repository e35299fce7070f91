"""Bad values are refused before a request is sent, and the message says which and why."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pasta_async import (
    Client,
    Generation,
    InvalidRequestError,
    InvalidStateError,
    Limits,
    PromptTooLongError,
    Sampling,
    generate,
    stream,
)
from pasta_async.testing import ScriptedBackend
from pasta_async.tokenizer import Tokenizer
from tests.helpers.answer_runs import RICH


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (Sampling, {"temperature": -0.1}),
        (Sampling, {"temperature": "hot"}),
        (Sampling, {"top_p": 0.0}),
        (Sampling, {"repetition_penalty": 1e-40}),
        (Sampling, {"seed": -1}),
        (Sampling, {"stop": ("",)}),
        (Sampling, {"frequency": 1}),
        (Limits, {"max_threads": 0}),
        (Limits, {"timeout": float("inf")}),
        (Limits, {"depth": 3}),
    ],
)
def test_sampling_and_limits(kind: type[Sampling] | type[Limits], values: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        kind(**values)


def nested(depth: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


DEEP = nested(100_000)

PROMPTS: list[Any] = [
    "",
    "  \n",
    [],
    None,
    ["Why?"],
    [{"role": "user"}],
    [{"role": "user", "content": "Why?"}, {"content": "Why?"}],
    [{"role": "user", "content": 7}],
    [{"role": "poet", "content": "Why?"}],
    [{"role": "user", "content": " "}],
    [{"role": "user", "content": [{"type": "text", "text": " "}]}],
    [{"role": "user", "content": "Why?", "name": b"x"}],
    [{"role": "user", "content": "Why?", "parts": DEEP}],
    [{"role": "user", "content": "Why?", "parts": {1: 2, "b": 3}}],
    [{"role": "user", "content": "Why?", "parts": float("nan")}],
    [-1],
    [2**40],
    [2**30],
    [True],
    [1, "a"],
    "half a pair: \ud83c",
    [{"role": "user", "content": "\ud83c"}],
]


@pytest.mark.parametrize("part", [{"type": "image_url", "image_url": {"url": "u"}}, {"type": "text"}, "a", 5])
async def test_a_part_that_is_no_text_is_named(part: Any) -> None:
    content = [{"type": "text", "text": "Look:"}, part]
    async with Client(ScriptedBackend("Because.")) as client:
        with pytest.raises(InvalidRequestError, match=r"message 1: part 1 .*no text"):
            await client.generate([{"role": "user", "content": "Hi."}, {"role": "user", "content": content}])


async def test_parts_of_text_are_one_text() -> None:
    parts = [{"type": "text", "text": "<sync"}, {"type": "text", "text": "/>"}]
    backend = ScriptedBackend({"<sync/>": "Because."})
    async with Client(backend) as client:
        assert (await client.generate([{"role": "user", "content": parts}])).text == "Because."
    assert backend.tokenizer.commands.isdisjoint(backend.requests[0].ids[1:-2])


@pytest.mark.parametrize("prompt", PROMPTS, ids=range(len(PROMPTS)))
async def test_prompts_and_messages(prompt: Any) -> None:
    backend = ScriptedBackend("Because.")
    with pytest.raises(InvalidRequestError) as caught:
        await generate(prompt, backend=backend)
    assert caught.value.partial is not None
    assert len(str(caught.value)) < 1000
    with pytest.raises(InvalidRequestError):
        async with stream(prompt, backend=backend) as answer:
            await answer.result()
    assert not backend.requests


@pytest.mark.parametrize(
    "values",
    [
        {"limits": 5},
        {"limits": {1: 2}},
        {"sampling": "greedy"},
        {"stop": ""},
        {"stop": ["a", "\ud83c"]},
        {"stop": 5},
        {"stop": ["x"] * 65},
        {"stop": "x" * 1001},
        {"chat_template_kwargs": "x"},
        {"chat_template_kwargs": {"x": object()}},
        {"chat_template_kwargs": {"x": "\ud83c"}},
        {"chat_template_kwargs": {"x": DEEP}},
        {"chat_template_kwargs": {"x": {1: 2, "b": 3}}},
        {"baseline": "yes"},
        {"parallel": None},
        {"frequency": 1},
        {"backend": 5},
        {"backend": ["local:"]},
        {"api_key": "secret"},
    ],
    ids=lambda values: next(iter(values)),
)
async def test_arguments_of_a_wrong_type_or_value(values: dict[str, Any]) -> None:
    backend = ScriptedBackend("Because.")
    arguments: Any = {"backend": backend, **values}
    with pytest.raises(InvalidRequestError) as caught:
        await generate("Why?", **arguments)
    assert caught.value.partial is None
    with pytest.raises(InvalidRequestError):
        async with stream("Why?", **arguments):
            pass
    assert not backend.requests


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        ("local:", {"api_key": "secret"}),
        ("http://host:30000", {"device": "cpu"}),
        ("http://host:30000", {"temperature": 1.0}),
        ("http://host:30000", {"api_key": "from a file\n"}),
        ("http://host:30000", {"api_key": "k\u00fc"}),
        ("http://host/\ud800", {}),
        ("sglang:/model", {"api_key": "secret"}),
        ("sglang:/model", {"server_args": {"port": 31000}}),
        ("local:/nowhere", {"threads": 10**9}),
        (["local:", "local:/other"], {"tokenizer": "x"}),
    ],
    ids=str,
)
def test_options_of_a_backend(backend: Any, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        Client(backend, **options)


@pytest.mark.parametrize("text", ["half a pair: \ud83c", "Why? " * 10], ids=repr)
async def test_a_text_to_encode(text: str) -> None:
    async with Client(ScriptedBackend("Because."), limits=Limits(prompt_tokens=20)) as client:
        assert len(await client.encode("Why?")) == 4
        with pytest.raises(InvalidRequestError):
            await client.encode(text)


async def test_a_text_to_encode_begins_as_every_prompt_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tokenizer, "opening", property(lambda _: [7]))
    backend = ScriptedBackend("Because.")
    async with Client(backend) as client:
        assert await client.encode("Why?") == [7, *backend.tokenizer.encode("Why?")]


async def test_mappings_are_taken_where_a_model_is_and_fields_are_laid_over_them() -> None:
    backend = ScriptedBackend("Because.")
    async with Client(backend, limits={"timeout": 5}) as client:
        assert client.limits == Limits(timeout=5)
        await client.generate(
            "Why?",
            sampling={"temperature": 0.5, "top_p": 0.9, "max_tokens": 3},
            limits={"max_threads": 2},
            temperature=0.7,
            top_k=4,
            stop="the end",
        )
    assert backend.requests[0].sampling == Sampling(
        temperature=0.7,
        top_p=0.9,
        top_k=4,
        stop=("the end",),
        max_tokens=3,
    )


async def test_a_client_that_was_closed_and_a_stream_out_of_order() -> None:
    client = Client(ScriptedBackend("Because."))
    answer = client.stream("Why?")
    with pytest.raises(InvalidStateError):
        await anext(answer)
    async with answer:
        with pytest.raises(InvalidStateError):
            await answer.__aenter__()
    with pytest.raises(InvalidStateError):
        await answer.result()
    await client.aclose()
    with pytest.raises(InvalidStateError):
        await client.generate("Why?")
    with pytest.raises(InvalidStateError):
        async with client.stream("Why?") as answer:
            await answer.result()
    with pytest.raises(InvalidStateError):
        await client.connect()


async def test_a_prompt_that_fills_the_models_context() -> None:
    backend = ScriptedBackend("Because.", context_length=10)
    with pytest.raises(PromptTooLongError) as caught:
        await generate("Why? " * 10, backend=backend)
    assert caught.value.limit == 9
    assert not backend.requests


def test_a_client_may_be_used_in_one_loop_after_another() -> None:
    client = Client(ScriptedBackend(RICH))
    first, second = (asyncio.run(client.generate("Why?")) for _ in range(2))
    assert first.text == second.text
    asyncio.run(client.aclose())


async def test_a_second_loop_at_the_same_time_is_refused() -> None:
    async def ask() -> Generation:
        return await client.generate("Why?")

    async with Client(ScriptedBackend(RICH)) as client:
        await ask()
        with pytest.raises(InvalidStateError):
            await asyncio.to_thread(asyncio.run, ask())
        assert (await ask()).finish_reason == "stop"
