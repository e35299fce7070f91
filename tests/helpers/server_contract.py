"""Tests of any server with pasta-tiny, beside the embedded engine with the same model.

The folders of the servers import these tests. Their fixtures: `server`, `backend` and `local`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
from pydantic import BaseModel

from pasta_async import Client, Generation
from pasta_async.backends.http.backend import ServerBackend
from pasta_async.backends.local import LocalBackend
from pasta_async.options import Sampling
from pasta_async.protocol import Backend, DecodeRequest, Piece
from pasta_async.tag_tokens import TagIds
from tests.helpers.local_models import Unconstrained
from tests.helpers.plan_forms import REVIEW_TEXT, Report, Review
from tests.helpers.real_server import SGLangServer
from tests.helpers.real_vllm import VLLMServer
from tests.pasta_tiny import examples

Server = SGLangServer | VLLMServer

PROMPTS = [example.prompt for example in examples()[::2]]
PROMPT = examples("describe")[0].prompt


async def until(server: Server, count: int) -> None:
    """Wait until the server runs so many requests; one that is not aborted takes longer to end."""
    for _ in range(100):
        if await asyncio.to_thread(server.running) == count:
            return
    pytest.fail(f"{server.running()} requests running, not {count}")


async def tags_of(backend: Backend) -> TagIds:
    tags = (await backend.connect()).tags
    assert tags is not None
    return tags


async def read(backend: Backend, request: DecodeRequest) -> list[Piece]:
    return [piece async for piece in backend.decode(request)]


def request(ids: Sequence[int], *, tokens: int = 400, stop_ids: tuple[int, ...] = ()) -> DecodeRequest:
    return DecodeRequest("answer", 0, tuple(ids), tokens, Sampling(), stop_ids=stop_ids)


async def chat(backend: Backend, prompt: str = PROMPT) -> list[int]:
    return (await backend.connect()).tokenizer.encode_chat([{"role": "user", "content": prompt}], {})


def ids_of(pieces: Sequence[Piece]) -> list[int]:
    return [i for piece in pieces for i in piece.ids]


async def test_the_server_tells_what_it_serves(
    backend: ServerBackend, local: LocalBackend, server: Server
) -> None:
    info, expected = await backend.connect(), await local.connect()
    config = json.loads((server.model / "config.json").read_text())
    assert info.vocab_size == config["vocab_size"]
    # The longest prompt it takes is a little shorter than the context.
    assert 0 <= config["max_position_embeddings"] - info.context_length < 10
    assert (info.tags, info.end_ids) == (expected.tags, expected.end_ids)
    assert info.tags is not None
    assert await backend.connect() is info


async def test_the_ids_are_those_of_the_embedded_engine(backend: ServerBackend, local: LocalBackend) -> None:
    prompt = await chat(backend)
    assert prompt == await chat(local)
    pieces, expected = await read(backend, request(prompt)), await read(local, request(prompt))
    assert ids_of(pieces) == ids_of(expected)
    assert set(ids_of(pieces)) & set(await tags_of(backend))
    assert [piece.finish_reason is not None for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    last = pieces[-1]
    assert last.finish_reason == expected[-1].finish_reason
    assert last.cached_tokens is not None


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.5}], ids=["greedy", "drawn"])
async def test_what_is_banned_is_never_chosen(
    backend: ServerBackend, local: LocalBackend, sampling: dict[str, Any]
) -> None:
    tags, prompt = await tags_of(backend), await chat(backend)
    wanted = replace(request(prompt, tokens=60), sampling=Sampling(**sampling), seed=3)
    banning = replace(wanted, banned_ids=tags)
    several = [read(backend, wanted) for _ in range(4)]  # a single draw may have no tag by chance
    *free, there, here = [
        ids_of(pieces)
        for pieces in await asyncio.gather(*several, read(backend, banning), read(local, banning))
    ]
    assert {*chain(*free)} & set(tags) and not set(there) & set(tags)
    if not sampling:  # what is drawn differs where two probabilities are equal but for rounding
        assert there == here


async def test_a_stop_id_ends_the_request_and_belongs_to_it(backend: ServerBackend) -> None:
    tags = await tags_of(backend)
    pieces = await read(backend, request(await chat(backend), stop_ids=(tags.end,)))
    assert ids_of(pieces).index(tags.end) == len(ids_of(pieces)) - 1
    assert pieces[-1].finish_reason == "stop"


async def test_a_request_ends_at_its_limit(backend: ServerBackend) -> None:
    prompt = await chat(backend)
    pieces = await read(backend, request(prompt, tokens=3))
    assert len(ids_of(pieces)) == 3 and pieces[-1].finish_reason == "length"


async def test_a_fork_finds_its_prompt_and_a_join_what_a_thread_left(
    backend: ServerBackend, server: Server
) -> None:
    def blocks(tokens: int) -> int:
        return tokens // server.block * server.block

    tags = await tags_of(backend)
    server.flush()
    prompt = await chat(backend)
    main = await read(backend, request(prompt, stop_ids=(tags.end,)))
    assert main[-1].cached_tokens == 0
    fork = [*prompt, *ids_of(main), tags.open_async]
    chunk = await read(backend, request(fork, stop_ids=(tags.close_async,)))
    assert chunk[-1].cached_tokens is not None and chunk[-1].cached_tokens >= blocks(len(prompt))
    assert ids_of(chunk)[-1] == tags.close_async  # a busy server sends several ids in one piece
    joined = [*fork, *ids_of(chunk)]
    after = await read(backend, request(joined, tokens=1))
    assert after[-1].cached_tokens is not None and after[-1].cached_tokens >= blocks(len(joined) - 1)


async def test_cancelling_and_closing_leave_nothing_running(backend: ServerBackend, server: Server) -> None:
    long = replace(request(await chat(backend), tokens=1500), extra=server.endless)
    tasks = [asyncio.create_task(read(backend, long)) for _ in range(3)]
    await until(server, len(tasks))
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)
    await until(server, 0)
    pieces = backend.decode(long)
    await anext(pieces)
    await until(server, 1)
    await pieces.aclose()
    await until(server, 0)


async def test_the_server_tells_how_busy_it_is(
    backend: ServerBackend, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pasta_async.backends.http.backend.FRESH_SECONDS", 0.0)
    pieces = backend.decode(replace(request(await chat(backend)), extra=server.endless))
    for _ in range(5):
        await anext(pieces)
    busy = await backend.load()
    assert busy is not None and busy.running == 1
    assert 0 < busy.kv_use < 1 <= busy.capacity
    await pieces.aclose()


# Whole answers ----------------------------------------------------------------------------------------------


async def answers(backend: Backend, prompts: list[str], **options: Any) -> list[Generation]:
    options = {"parallel": "always", **options}  # compared with each other: the load must not decide
    async with Client(backend) as client:
        return await asyncio.gather(*(client.generate(prompt, **options) for prompt in prompts))


def written(generations: list[Generation]) -> list[str]:
    return [generation.document.format() for generation in generations]


def check_caches(answer: Generation, block: int) -> None:
    """A fork finds the whole prompt, and main, after a join, the first chunk's text."""
    main, *chunks = answer.threads
    for sent in (sent for chunk in chunks for sent in chunk.requests):
        assert sent.cached_tokens is not None
        assert sent.cached_tokens >= answer.usage.prompt_tokens // block * block
    if len(main.requests) > 1:
        first, joined = chunks[0].requests[-1], main.requests[1].cached_tokens
        computed = first.prompt_tokens + first.completion_tokens - 1  # the last token has no KV yet
        assert joined is not None and joined >= computed // block * block


async def test_the_server_answers_as_the_embedded_engine_does(
    backend: ServerBackend, local: LocalBackend, server: Server
) -> None:
    assert len(PROMPTS) >= 25
    there, here = await answers(backend, PROMPTS), await answers(Unconstrained(local), PROMPTS)
    assert written(there) == written(here)
    assert sum(len(generation.threads) > 2 for generation in there) > 5
    assert sum(len(generation.threads[0].requests) > 1 for generation in there) > 2
    for generation in there:
        check_caches(generation, server.block)


@pytest.mark.parametrize("options", [{"baseline": True}, {"parallel": "never"}])
async def test_every_way_to_ask_is_answered_alike(
    backend: ServerBackend, local: LocalBackend, options: dict[str, Any]
) -> None:
    some = PROMPTS[:8]
    there = await answers(backend, some, **options)
    assert written(there) == written(await answers(Unconstrained(local), some, **options))


@pytest.mark.parametrize("form", [Review, Report])
async def test_a_plan_is_filled_by_the_servers_own_grammars(
    backend: ServerBackend, form: type[BaseModel]
) -> None:
    async with Client(backend) as client:
        report = await client.check(form)
        filled = await client.fill(PROMPT, form)
        sampled = await client.fill(PROMPT, form, temperature=2, seed=3)
    assert report.verdict == "yes"
    for answer in (filled, sampled):
        assert form.model_validate_json(answer.text) == answer.value
    assert filled.usage.cached_tokens > 0


async def test_a_template_is_filled(backend: ServerBackend, local: LocalBackend) -> None:
    texts: list[str] = []
    for engine in (backend, local):
        async with Client(engine) as client:
            texts.append((await client.fill(PROMPT, REVIEW_TEXT)).text)
    assert texts[0] == texts[1]
