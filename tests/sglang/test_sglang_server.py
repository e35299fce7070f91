"""The contract of servers on the real SGLang, and what it alone does."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from pasta_async import Client
from pasta_async.backends.local import LocalBackend
from pasta_async.backends.sglang import SGLangBackend
from pasta_async.evals.forcing import force
from tests.helpers.real_server import SGLangServer
from tests.helpers.server_contract import *  # noqa: F403 - the tests
from tests.helpers.server_contract import PROMPT, chat, ids_of, read, request, tags_of

pytestmark = pytest.mark.timeout(600)  # the first test waits for the server to start


async def test_a_forced_token_may_be_a_banned_one(backend: SGLangBackend, local: LocalBackend) -> None:
    tags, prompt = await tags_of(backend), await chat(backend)
    for engine in (backend, local):
        forced = force(engine, replace(request(prompt, tokens=3), banned_ids=tags), tags[3:])
        assert ids_of(await read(engine, forced)) == [*tags[3:]]


def test_a_client_serves_in_one_event_loop_after_another(server: SGLangServer) -> None:
    client = Client(server.url)
    first, second = (asyncio.run(client.generate(PROMPT, max_tokens=8)) for _ in range(2))
    asyncio.run(client.aclose())
    assert first.text == second.text
