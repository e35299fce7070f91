"""The contract of servers on the real SGLang, and what it alone does."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from real_server import RealServer, require_sglang, running_server
from server_contract import *  # noqa: F403 - the tests
from server_contract import PROMPT, chat, ids_of, read, request, tags_of

from pasta_async import Client, Generation
from pasta_async.backends.local import LocalBackend
from pasta_async.backends.sglang import SGLangBackend
from pasta_async.evals.forcing import force
from tests.pasta_tiny import examples

pytestmark = pytest.mark.timeout(600)  # the first test waits for the server to start


async def test_a_forced_token_may_be_a_banned_one(backend: SGLangBackend, local: LocalBackend) -> None:
    tags, prompt = await tags_of(backend), await chat(backend)
    for engine in (backend, local):
        forced = force(engine, replace(request(prompt, tokens=3), banned_ids=tags), tags[3:])
        assert ids_of(await read(engine, forced)) == [*tags[3:]]


def test_a_client_serves_in_one_event_loop_after_another(server: RealServer) -> None:
    client = Client(server.url)
    first, second = (asyncio.run(client.generate(PROMPT, max_tokens=8)) for _ in range(2))
    asyncio.run(client.aclose())
    assert first.text == second.text


async def test_a_server_without_a_tokenizer_answers_alike(
    backend: SGLangBackend, shipped: Path, tmp_path: Path
) -> None:
    require_sglang()
    prompts = [example.prompt for example in examples()[::10]]
    with running_server(shipped, tmp_path / "log", "--skip-tokenizer-init") as (url, _):
        answers: list[list[Generation]] = []
        for engine in (SGLangBackend(url), backend):
            async with Client(engine) as client:
                answer = partial(client.generate, parallel="always", stop=["zebra"])
                answers.append(await asyncio.gather(*map(answer, prompts)))
            await engine.aclose()
    without, with_tokenizer = (
        [answer.document.format() for answer in generations] for generations in answers
    )
    assert without == with_tokenizer
    assert any(len(answer.threads) > 1 for answer in answers[0])
