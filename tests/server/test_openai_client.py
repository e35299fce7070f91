"""OpenAI's own client against the server with the real embedded engine, which the library uses in process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import openai
import pytest

from pasta_async import Client, Sampling
from pasta_async.tokenizer import Tokenizer
from tests.helpers.live_server import MESSAGES, PROMPT, WatchedBackend, read

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionChunk

MODEL = "pasta-tiny"


async def ask(client: openai.AsyncOpenAI, **values: Any) -> Any:
    """A chat completion; greedy, with the usual prompt, unless told otherwise."""
    create: Any = client.chat.completions.create
    return await create(**{"model": MODEL, "messages": MESSAGES, "temperature": 0, **values})


async def complete(client: openai.AsyncOpenAI, **values: Any) -> Any:
    """A completion; greedy unless told otherwise."""
    create: Any = client.completions.create
    return await create(**{"model": MODEL, "temperature": 0, **values})


async def chunks_of(client: openai.AsyncOpenAI, **values: Any) -> list[ChatCompletionChunk]:
    return await read(ask(client, stream=True, **values))


def text_of(chunks: list[ChatCompletionChunk], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in choices)


async def test_an_answer_is_the_librarys(client: openai.AsyncOpenAI, library: Client) -> None:
    expected = await library.generate(PROMPT)
    raw = await client.chat.completions.with_raw_response.create(
        model=MODEL, messages=MESSAGES, temperature=0
    )
    reply: Any = raw.parse()
    assert raw.headers["x-pasta-mode"] == "parallel"
    assert [choice.message.content for choice in reply.choices] == [expected.text]
    assert reply.choices[0].finish_reason == "stop"
    assert reply.choices[0].message.role == "assistant"
    assert reply.model == MODEL and reply.object == "chat.completion"
    assert reply.usage.prompt_tokens == expected.usage.prompt_tokens
    assert reply.usage.completion_tokens == expected.usage.completion_tokens
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.pasta["mode"] == "parallel"
    assert reply.pasta["choices"][0]["critical_path"] == expected.critical_path
    assert reply.pasta["choices"][0]["threads"] == len(expected.threads) > 1


async def test_a_stream_is_the_same_answer(client: openai.AsyncOpenAI, library: Client) -> None:
    expected = await library.generate(PROMPT)
    chunks = await chunks_of(client, stream_options={"include_usage": True})
    assert text_of(chunks) == expected.text
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "stop"
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert not chunks[-1].choices and chunks[-1].usage
    assert chunks[-1].usage.completion_tokens == expected.usage.completion_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len(chunks) > 10
    cached = chunks[-1].usage.prompt_tokens_details
    assert cached and 0 < (cached.cached_tokens or 0) < chunks[-1].usage.prompt_tokens


async def test_stop_ends_the_visible_text(client: openai.AsyncOpenAI, library: Client) -> None:
    whole = (await library.generate(PROMPT)).text
    stop = whole[len(whole) // 2 :][:6]
    reply = await ask(client, stop=[stop, "never said"])
    assert reply.choices[0].message.content == whole[: whole.index(stop)]
    assert reply.choices[0].finish_reason == "stop"
    assert text_of(await chunks_of(client, stop=stop)) == reply.choices[0].message.content
    assert (await ask(client, max_completion_tokens=3)).choices[0].finish_reason == "length"


async def test_choices_have_seeds_of_their_own(client: openai.AsyncOpenAI, library: Client) -> None:
    values: Any = {"temperature": 1.5, "seed": 5}
    reply = await ask(client, n=2, **values)
    sampling = [Sampling(temperature=1.5, seed=seed) for seed in (5, 6)]
    expected = [await library.generate(PROMPT, sampling=options) for options in sampling]
    assert [choice.message.content for choice in reply.choices] == [answer.text for answer in expected]
    assert [choice.index for choice in reply.choices] == [0, 1]
    assert reply.usage.prompt_tokens == expected[0].usage.prompt_tokens
    assert reply.usage.completion_tokens == sum(answer.usage.completion_tokens for answer in expected)
    chunks = await chunks_of(client, n=2, **values)
    assert [text_of(chunks, index) for index in range(2)] == [answer.text for answer in expected]


async def test_the_record_is_the_whole_generation(client: openai.AsyncOpenAI, library: Client) -> None:
    expected = await library.generate(PROMPT)
    reply = await ask(client, extra_body={"pasta": {"record": True}})
    record = reply.pasta["choices"][0]
    assert record["document"] == expected.document.format()
    assert [thread["topic"] for thread in record["threads"]] == [
        written.topic for written in expected.threads
    ]
    assert all(request["ended"] for thread in record["threads"] for request in thread["requests"])


async def test_events_tell_what_each_thread_writes(client: openai.AsyncOpenAI) -> None:
    chunks = await chunks_of(client, extra_body={"pasta": {"events": True, "record": True}})
    extras: list[Any] = [getattr(chunk, "pasta", None) for chunk in chunks]
    events = [pasta["event"] for pasta in extras if pasta and "event" in pasta]
    record = next(pasta["choices"][0] for pasta in extras if pasta and pasta["choices"])
    assert {"thread.started", "promise.opened", "thread.delta", "thread.done"} <= {e["type"] for e in events}
    for thread in record["threads"]:
        deltas = [
            e["delta"] for e in events if e["type"] == "thread.delta" and e["thread"] == thread["thread"]
        ]
        assert "".join(deltas) == thread["text"]
    assert text_of(chunks) == record["text"]


@pytest.mark.parametrize(
    ("options", "mode"), [({"parallel": "never"}, "sequential"), ({"baseline": True}, "baseline")]
)
async def test_other_ways_to_decode(
    client: openai.AsyncOpenAI, library: Client, options: dict[str, Any], mode: str
) -> None:
    expected = await library.generate(PROMPT, **options)
    reply = await ask(client, extra_body={"pasta": options})
    assert reply.choices[0].message.content == expected.text
    assert reply.pasta["mode"] == mode


async def test_a_text_is_continued_without_a_chat_template(
    client: openai.AsyncOpenAI, library: Client
) -> None:
    ids = (await library.connect()).tokenizer.encode(PROMPT)
    expected = await library.generate(ids, sampling=Sampling(max_tokens=16))
    for prompt in (PROMPT, ids):
        reply = await complete(client, prompt=prompt)
        assert reply.choices[0].text == expected.text
        assert reply.usage.prompt_tokens == len(ids)
    chunks = await read(complete(client, prompt=PROMPT, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected.text
    assert chunks[-1].choices[0].finish_reason


async def test_a_text_begins_as_its_tokenizer_begins_texts(
    client: openai.AsyncOpenAI, library: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = (await library.connect()).tokenizer.encode(PROMPT)
    monkeypatch.setattr(Tokenizer, "opening", property(lambda _: [7]))
    for prompt, begun in ((PROMPT, [7, *ids]), (ids, ids)):
        expected = await library.generate(begun, sampling=Sampling(max_tokens=16))
        reply = await complete(client, prompt=prompt)
        assert (reply.choices[0].text, reply.usage.prompt_tokens) == (expected.text, len(begun))


async def test_several_prompts_with_several_choices(client: openai.AsyncOpenAI) -> None:
    texts = ["The first", "A second one"]
    values: Any = {"temperature": 1, "seed": 2, "max_tokens": 5, "n": 2}
    both = await complete(client, prompt=texts, **values)
    alone = [await complete(client, prompt=text, **values) for text in texts]
    assert [choice.text for choice in both.choices] == [c.text for reply in alone for c in reply.choices]
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    assert both.usage.prompt_tokens == sum(reply.usage.prompt_tokens for reply in alone)


async def test_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == [MODEL, "alias"]
    assert (await client.models.retrieve("alias")).id == "alias"
    assert (await ask(client, model="alias", max_tokens=2)).model == "alias"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("gpt-5")


async def test_a_refusal_is_a_bad_request(client: openai.AsyncOpenAI, engine: WatchedBackend) -> None:
    for values in ({}, {"stream": True}):
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(client, messages=[{"role": "user", "content": "long " * 3000}], **values)
        assert (caught.value.type, caught.value.code) == ("invalid_request_error", "context_length_exceeded")
    assert engine.open == 0
