"""The HTTP backend against the real SGLang server, beside the embedded engine with the same model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from real_server import RealServer, require_sglang, running_server, until

from pasta_async import Client, Generation
from pasta_async.backends.local import LocalBackend
from pasta_async.backends.sglang import SGLangBackend
from pasta_async.errors import InvalidRequestError
from pasta_async.evals.forcing import force
from pasta_async.options import Sampling
from pasta_async.protocol import Backend, DecodeRequest, Piece
from pasta_async.tag_tokens import TagIds
from tests.pasta_tiny import examples

pytestmark = pytest.mark.timeout(600)  # the first test waits for the server to start

PROMPT = examples("describe")[0].prompt


async def tags_of(backend: Backend) -> TagIds:
    tags = (await backend.connect()).tags
    assert tags is not None
    return tags


async def read(backend: Backend, request: DecodeRequest) -> list[Piece]:
    return [piece async for piece in backend.decode(request)]


def request(
    ids: Sequence[int], *, tokens: int = 400, stop_ids: tuple[int, ...] = (), stream: bool = True
) -> DecodeRequest:
    return DecodeRequest("answer", 0, tuple(ids), tokens, Sampling(), stop_ids=stop_ids, stream=stream)


async def chat(backend: Backend, prompt: str = PROMPT) -> list[int]:
    return (await backend.connect()).tokenizer.encode_chat([{"role": "user", "content": prompt}], {})


def ids_of(pieces: Sequence[Piece]) -> list[int]:
    return [i for piece in pieces for i in piece.ids]


async def test_the_server_tells_what_it_serves(
    backend: SGLangBackend, local: LocalBackend, server: RealServer
) -> None:
    info, expected = await backend.connect(), await local.connect()
    config = json.loads((server.model / "config.json").read_text())
    assert info.vocab_size == config["vocab_size"]
    # The longest prompt it takes is a little shorter than the context.
    assert 0 <= config["max_position_embeddings"] - info.context_length < 10
    assert (info.tags, info.end_ids) == (expected.tags, expected.end_ids)
    assert info.tags is not None and info.honours_seeds
    assert await backend.connect() is info


@pytest.mark.parametrize("stream", [True, False])
async def test_the_ids_are_those_of_the_embedded_engine(
    backend: SGLangBackend, local: LocalBackend, stream: bool
) -> None:
    prompt = await chat(backend)
    assert prompt == await chat(local)
    pieces, expected = await read(backend, request(prompt, stream=stream)), await read(local, request(prompt))
    assert ids_of(pieces) == ids_of(expected)
    assert set(ids_of(pieces)) & set(await tags_of(backend))
    assert [piece.finish_reason is not None for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    last = pieces[-1]
    assert last.finish_reason == expected[-1].finish_reason
    assert last.cached_tokens is not None


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.5}], ids=["greedy", "drawn"])
async def test_what_is_banned_is_never_chosen(
    backend: SGLangBackend, local: LocalBackend, sampling: dict[str, Any]
) -> None:
    tags, prompt = await tags_of(backend), await chat(backend)
    asked = replace(request(prompt, tokens=60), sampling=Sampling(**sampling), seed=3)
    banning = replace(asked, banned_ids=tags)
    free, there, here = [
        ids_of(pieces)
        for pieces in await asyncio.gather(read(backend, asked), read(backend, banning), read(local, banning))
    ]
    assert set(free) & set(tags) and not set(there) & set(tags)
    if not sampling:  # what is drawn differs where two probabilities are equal but for rounding
        assert there == here


async def test_a_forced_token_may_be_a_banned_one(backend: SGLangBackend, local: LocalBackend) -> None:
    tags, prompt = await tags_of(backend), await chat(backend)
    for engine in (backend, local):
        forced = force(engine, replace(request(prompt, tokens=3), banned_ids=tags), tags[3:])
        assert ids_of(await read(engine, forced)) == [*tags[3:]]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_stop_id_ends_the_request_and_belongs_to_it(backend: SGLangBackend, stream: bool) -> None:
    tags = await tags_of(backend)
    pieces = await read(backend, request(await chat(backend), stop_ids=(tags.end,), stream=stream))
    assert ids_of(pieces).index(tags.end) == len(ids_of(pieces)) - 1
    assert pieces[-1].finish_reason == "stop"


async def test_a_request_ends_at_its_limit_and_at_the_end_of_the_context(backend: SGLangBackend) -> None:
    info = await backend.connect()
    prompt = await chat(backend)
    pieces = await read(backend, request(prompt, tokens=3))
    assert len(ids_of(pieces)) == 3 and pieces[-1].finish_reason == "length"
    nearly_full = [*prompt[:-1], *[prompt[5]] * (info.context_length - 2 - len(prompt)), prompt[-1]]
    pieces = await read(backend, request(nearly_full, tokens=100, stream=False))
    assert len(ids_of(pieces)) <= 2


async def test_ids_that_would_kill_the_server_are_refused(backend: SGLangBackend, server: RealServer) -> None:
    info = await backend.connect()
    for ids in ([info.vocab_size], [-1], [], [0] * info.context_length):
        with pytest.raises(InvalidRequestError):
            await read(backend, request(ids))
    assert server.running() == 0
    assert await read(backend, request([info.vocab_size - 1], tokens=1))


def hot(ids: Sequence[int], seed: int, *, tokens: int, stream: bool = False) -> DecodeRequest:
    sampling = Sampling(temperature=10.0)
    return DecodeRequest("answer", 0, tuple(ids), tokens, sampling, seed=seed, stream=stream)


async def test_seeds_are_honoured(backend: SGLangBackend) -> None:
    prompt = await chat(backend)
    first, again, other = [ids_of(await read(backend, hot(prompt, seed, tokens=8))) for seed in (7, 7, 8)]
    assert first == again != other


async def test_a_fork_finds_its_prompt_and_a_join_what_a_thread_left(
    backend: SGLangBackend, server: RealServer
) -> None:
    tags = await tags_of(backend)
    server.flush()
    prompt = await chat(backend)
    main = await read(backend, request(prompt, stop_ids=(tags.end,)))
    assert main[-1].cached_tokens == 0
    fork = [*prompt, *ids_of(main), tags.open_async]
    chunk = await read(backend, request(fork, stop_ids=(tags.close_async,)))
    assert chunk[-1].cached_tokens is not None and chunk[-1].cached_tokens >= len(prompt)
    assert chunk[-1].ids == (tags.close_async,)
    joined = [*fork, *ids_of(chunk)]
    after = await read(backend, request(joined, tokens=1))
    assert after[-1].cached_tokens is not None and after[-1].cached_tokens >= len(joined) - 1


async def endless(backend: SGLangBackend) -> DecodeRequest:
    """A request that goes on for at least 400 tokens, unless it is aborted."""
    prompt = await chat(backend)
    for seed in range(20):
        if (await read(backend, hot(prompt, seed, tokens=400)))[-1].finish_reason == "length":
            return hot(prompt, seed, tokens=1500, stream=True)
    raise AssertionError("no seed goes on for long")


async def test_cancelling_and_closing_leave_nothing_running(
    backend: SGLangBackend, server: RealServer
) -> None:
    long = await endless(backend)
    plain = replace(long, stream=False)
    for wanted in (long, plain):
        tasks = [asyncio.create_task(read(backend, wanted)) for _ in range(3)]
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


async def test_a_client_of_the_caller_is_used_and_left_open(server: RealServer) -> None:
    seen: list[str] = []

    async def note(sent: httpx.Request) -> None:
        seen.append(sent.url.path)

    async with httpx.AsyncClient(event_hooks={"request": [note]}) as client:
        own = SGLangBackend(server.url + "/", client=client)
        await read(own, request(await chat(own), tokens=2))
        await own.aclose()
        assert not client.is_closed
    assert "/generate" in seen and "/server_info" in seen


async def test_the_server_tells_how_busy_it_is(
    backend: SGLangBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pasta_async.backends.sglang.load.FRESH_SECONDS", 0.0)
    endless = {"sampling_params": {"ignore_eos": True}}  # it still runs when the load is read
    pieces = backend.decode(replace(request(await chat(backend)), extra=endless))
    for _ in range(5):
        await anext(pieces)
    busy = await backend.load()
    assert busy is not None and busy.running == 1
    assert 0 < busy.kv_use < 1 <= busy.capacity
    await pieces.aclose()


async def test_a_server_without_a_tokenizer_answers_alike(
    backend: SGLangBackend, shipped: Path, tmp_path: Path
) -> None:
    require_sglang()
    prompts = [example.prompt for example in examples()[::10]]
    with running_server(shipped, tmp_path / "log", "--skip-tokenizer-init") as (url, _):
        answers: list[list[Generation]] = []
        for each in (SGLangBackend(url), backend):
            async with Client(each) as client:
                answer = partial(client.generate, parallel="always", stop=["zebra"])
                answers.append(await asyncio.gather(*map(answer, prompts)))
            await each.aclose()
    without, with_tokenizer = ([answer.document.format() for answer in some] for some in answers)
    assert without == with_tokenizer
    assert any(len(answer.threads) > 1 for answer in answers[0])
