"""Forks of running requests on the real server, whose scheduler has the plug-in."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import httpx
import pytest

from pasta_async import Client
from pasta_async.backends.sglang import SGLangBackend
from tests.helpers.real_server import Forked, SGLangServer, fork_running, greedy, read
from tests.helpers.server_contract import until
from tests.pasta_tiny import examples

pytestmark = pytest.mark.timeout(600)  # the first test waits for the server to start

PROMPT = tuple(range(20, 220))
MARKS = (30, 31, 120)
"""Tokens that a parent has decoded when it is forked."""


async def test_a_fork_of_a_running_request_computes_two_tokens_and_changes_nothing(
    backend: SGLangBackend, server: SGLangServer
) -> None:
    """Against a fork that names no parent: one whose parent belongs to another answer."""
    tokenizer = (await backend.connect()).tokenizer
    prompt = tokenizer.encode_chat([{"role": "user", "content": examples("offers")[0].prompt}], {})
    found: dict[str, Forked] = {}
    for answer in ("a", "stranger"):
        server.flush()
        found[answer] = await fork_running(backend, prompt, MARKS, answer=answer)
    own, stranger = found["a"], found["stranger"]
    assert (own.main, own.outputs) == (stranger.main, stranger.outputs)
    assert len(own.main) == 160 and len(set(own.main)) > 20
    assert max(own.computed) <= 2 and stranger.computed[0] > 30


async def test_a_parent_that_does_not_run_changes_nothing(
    backend: SGLangBackend, server: SGLangServer
) -> None:
    server.flush()
    long = greedy(PROMPT, 1000)
    async with aclosing(backend.decode(long)) as pieces:
        await anext(pieces)
    await until(server, 0)
    body = {"input_ids": [*PROMPT, 5], "sampling_params": {"temperature": 0, "max_new_tokens": 8}}
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:

        async def ask(rid: str) -> tuple[list[int], int]:
            answer = (await client.post("/generate", json={**body, "rid": rid})).json()
            return answer["output_ids"], answer["meta_info"]["cached_tokens"]

        plain = await ask("plain")
        assert plain[1] >= len(PROMPT)
        for parent in ("plain", "nobody", "", ":", "x:y"):  # it has ended, it never was
            ids, cached = await ask(f"fork of {parent}:{parent}")
            assert ids == plain[0] and cached >= plain[1]


async def test_the_forks_of_an_answer_compute_nothing_but_their_own_tags(
    backend: SGLangBackend, server: SGLangServer
) -> None:
    async with Client(backend) as client:
        for example in [*examples("describe")[:2], *examples("totals")[:2]]:
            await asyncio.to_thread(server.flush)
            answer = await client.generate(example.prompt, parallel="always")  # whatever else runs here
            forks = [thread.requests[0] for thread in answer.threads[1:]]
            assert len(forks) > 1
            assert sum(fork.prompt_tokens - (fork.cached_tokens or 0) for fork in forks) <= 2 * len(forks)


async def test_parents_and_forks_left_at_any_moment_leave_nothing_behind(
    backend: SGLangBackend, server: SGLangServer
) -> None:
    async def leave(after: int) -> None:
        answer = f"left after {after}"
        main: list[int] = []
        async with asyncio.TaskGroup() as group:
            async with aclosing(backend.decode(greedy(PROMPT, 1000, answer=answer))) as pieces:
                async for piece in pieces:
                    main += piece.ids
                    if len(main) >= after:
                        break
                context = [*PROMPT, *main, 5]
                cut, kept = (greedy(context, n, thread=k, answer=answer) for k, n in ((1, 1000), (2, 60)))
                tasks = [group.create_task(read(backend, fork)) for fork in (cut, kept)]
                await asyncio.sleep(0)
            tasks[0].cancel()
            await asyncio.wait(tasks)
            assert tasks[0].cancelled() and len(tasks[1].result()[0]) == 60

    await asyncio.gather(*map(leave, range(1, 9)))
    await until(server, 0)
    server.flush()
