"""Whole answers of the shipped model, by SGLang and by the embedded engine."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from real_server import require_sglang, until

from pasta_async import Client, Generation
from pasta_async.evals.documents import held_out
from pasta_async.training.synthetic import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from real_server import RealServer

    from pasta_async.backends.local import LocalBackend
    from pasta_async.backends.sglang import SGLangBackend
    from pasta_async.protocol import Backend

pytestmark = pytest.mark.timeout(600)  # the first test waits for the server to start

PROMPTS = [prompt.text for prompt in held_out(FAMILIES, 10)]


async def answers(backend: Backend, prompts: list[str], **options: Any) -> list[Generation]:
    async with Client(backend) as client:
        return await asyncio.gather(*(client.generate(prompt, **options) for prompt in prompts))


def written(generations: list[Generation]) -> list[str]:
    return [generation.document.format() for generation in generations]


def check_caches(prompt: int, threads: Sequence[Sequence[tuple[int, int | None, int]]]) -> None:
    """A fork finds the whole prompt, and main, after a join, the first chunk's text.

    Args:
        prompt: Tokens of the prompt.
        threads: Of each request of each thread, the tokens of its context, those cached, and those generated.
    """
    for requests in threads[1:]:
        for _, cached, _ in requests:
            assert cached is not None and cached >= prompt
    if len(threads[0]) > 1:
        (context, _, generated), (_, joined, _) = threads[1][-1], threads[0][1]
        assert joined is not None and joined >= context + generated - 1  # the last token has no KV yet


async def test_the_server_answers_as_the_embedded_engine_does(
    backend: SGLangBackend, local: LocalBackend
) -> None:
    assert len(PROMPTS) >= 50
    there, here = await answers(backend, PROMPTS), await answers(local, PROMPTS)
    assert written(there) == written(here)
    assert sum(len(generation.threads) > 2 for generation in there) > 10
    assert sum(len(generation.threads[0].requests) > 1 for generation in there) > 5
    for generation in there:
        threads = [
            [(sent.prompt_tokens, sent.cached_tokens, sent.completion_tokens) for sent in thread.requests]
            for thread in generation.threads
        ]
        check_caches(generation.usage.prompt_tokens, threads)


@pytest.mark.parametrize(
    "options", [{"baseline": True}, {"fork": "cut"}, {"parallel": False}, {"whole_chunks": True}]
)
async def test_every_way_to_ask_is_answered_alike(
    backend: SGLangBackend, local: LocalBackend, options: dict[str, Any]
) -> None:
    some = PROMPTS[:15]
    assert written(await answers(backend, some, **options)) == written(await answers(local, some, **options))


async def test_a_fork_at_a_cut_computes_nothing_but_its_own_tags(
    backend: SGLangBackend, server: RealServer
) -> None:
    """Main's KV is in the cache once its request has ended; a fork of a running one may find it, or not."""
    async with Client(backend) as client:
        for prompt in held_out(["describe", "totals"], 2):
            await asyncio.to_thread(server.flush)
            stream = await client.generate(prompt.text)
            await asyncio.to_thread(server.flush)
            cut = await client.generate(prompt.text, fork="cut")
            assert stream.document == cut.document and len(cut.threads) > 2
            assert cut.usage.requests > stream.usage.requests
            forks = [thread.requests[0] for thread in cut.threads[1:]]
            computed = sum(one.prompt_tokens - (one.cached_tokens or 0) for one in forks)
            assert computed <= 2 * len(forks)


async def test_leaving_an_answer_leaves_nothing_on_the_server(
    backend: SGLangBackend, server: RealServer
) -> None:
    async with Client(backend) as client:
        for prompt in PROMPTS[:5]:
            async with client.stream(prompt) as events:
                async for event in events:
                    if event.type == "thread.delta":
                        break
            await until(server, 0)
            begun = asyncio.Event()
            task = asyncio.create_task(_read(client, prompt, begun))
            await begun.wait()
            task.cancel()
            await asyncio.wait([task])
            await until(server, 0)


async def _read(client: Client, prompt: str, begun: asyncio.Event) -> None:
    async with client.stream(prompt) as events:
        async for event in events:
            if event.type == "thread.delta":
                begun.set()


def test_the_engine_in_this_process_answers_alike_and_leaves_the_process_alone(
    shipped: Path, tmp_path: Path
) -> None:
    require_sglang()
    prompts, result = tmp_path / "prompts.json", tmp_path / "result.json"
    prompts.write_text(json.dumps(PROMPTS))
    program = Path(__file__).with_name("engine_program.py")
    command = [sys.executable, str(program), str(shipped), str(prompts), str(result)]
    with (tmp_path / "log").open("w+") as log:
        ended = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ, check=False)
        log.seek(0)
        assert ended.returncode == 0, log.read()[-3000:]
    said: dict[str, Any] = json.loads(result.read_text())
    assert said["policy kept"] and said["handlers kept"]
    assert said["children left"] == 0 and said["other child alive"]
    assert said["refused"] == "InvalidRequestError"
    assert "config.json" in said["no model"] and "could not start" in said["broken"]
    assert said["cancelled"] and said["again"] == said["written"][0]
    assert said["written"] == said["local"]
    for caches in said["caches"]:
        check_caches(caches["prompt"], caches["threads"])
