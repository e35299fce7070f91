"""The server in front of a real SGLang server: what it decodes itself, and what it passes through."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest

from pasta_async import Client
from pasta_async.backends.sglang import SGLangBackend
from tests.helpers.live_server import MESSAGES, PROMPT, LiveServer, http_request, official, read, running
from tests.helpers.real_server import SGLangServer
from tests.helpers.server_contract import until

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
        },
    }
]


@pytest.fixture(scope="module")
def served(server: SGLangServer) -> Iterator[LiveServer]:
    with running(server.url, model_names=("m",)) as live:
        yield live


@pytest.fixture
async def client(served: LiveServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with official(served.url) as openai_client:
        yield openai_client


async def test_tools_in_a_stream(client: openai.AsyncOpenAI) -> None:
    create: Any = client.chat.completions.create
    fields = {"model": "m", "messages": MESSAGES, "max_tokens": 5, "tools": TOOLS, "stream": True}
    chunks = await read(create(**fields, stream_options={"include_usage": True}))
    assert chunks[-1].usage.completion_tokens == 5


async def test_log_probabilities_and_no_tags(client: openai.AsyncOpenAI, backend: SGLangBackend) -> None:
    create: Any = client.chat.completions.create
    fields = {"model": "m", "messages": MESSAGES, "temperature": 0, "max_tokens": 60}
    reply = await create(**fields, logprobs=True, top_logprobs=2, n=2)
    baseline = await Client(backend).generate(PROMPT, baseline=True)
    for choice in reply.choices:
        assert baseline.text.startswith(choice.message.content)
        assert len(choice.logprobs.content) > 10
        assert len(choice.logprobs.content[0].top_logprobs) == 2


@pytest.mark.parametrize("extra", [{}, {"tools": TOOLS, "stream": True}])
async def test_a_client_that_leaves_aborts_on_the_engine(
    served: LiveServer, server: SGLangServer, extra: dict[str, Any]
) -> None:
    body = {"model": "m", "messages": MESSAGES, "n": 4, "max_tokens": 1500, **extra}
    if "tools" in extra:
        body["logit_bias"] = {"0": -100}
    with served.connect() as connection:
        connection.sendall(http_request("/v1/chat/completions", json.dumps(body).encode()))
        while server.running() == 0:
            pass
    await until(server, 0)
