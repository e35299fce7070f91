"""The contract of servers on the real vLLM, and what it alone does."""

from __future__ import annotations

import os
import signal
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from pasta_async import Client, Limits, Sampling
from pasta_async.backends.local import LocalBackend
from pasta_async.backends.vllm import VLLMBackend
from pasta_async.errors import BackendTransportError, PastaError
from tests.helpers.local_models import Unconstrained
from tests.helpers.real_vllm import BLOCK, VLLMServer, running_vllm
from tests.helpers.server_contract import *  # noqa: F403 - the tests
from tests.helpers.server_contract import chat, ids_of, read, request
from tests.helpers.trained_models import FEW, answered, export_model
from tests.pasta_tiny import examples
from tests.torture.cancellation import ServerEngine, break_off
from tests.torture.trials import Trials

pytestmark = pytest.mark.timeout(600)  # the first test waits for the server to start


async def test_a_fork_of_a_running_parent_finds_all_but_the_last_block(
    backend: VLLMBackend, server: VLLMServer
) -> None:
    prompt, main = await chat(backend), list[int]()
    async with aclosing(backend.decode(replace(request(prompt), extra=server.endless))) as pieces:
        async for piece in pieces:
            main += piece.ids
            if len(main) >= 150:
                break
        fork = [*prompt, *main, 5]
        cached = (await read(backend, request(fork, tokens=2)))[-1].cached_tokens
    assert cached is not None and len(fork) - cached <= BLOCK + 1  # the last token may have no KV yet


async def test_seeds_are_honoured(backend: VLLMBackend) -> None:
    seeded = replace(request(await chat(backend), tokens=30), sampling=Sampling(temperature=2.0))
    first, again, other = [ids_of(await read(backend, replace(seeded, seed=seed))) for seed in (7, 7, 8)]
    assert first == again != other


async def test_100_answers_that_are_broken_off_leave_nothing_on_the_server(server: VLLMServer) -> None:
    engine = ServerEngine(server, VLLMBackend(server.url))
    outcomes = await break_off(Trials(count=100, seconds=500), engine, at_once=32, within=1)
    assert sum(outcomes.values()) == 100 and outcomes["ended before"] < 50


@pytest.mark.skipif("PASTA_TEST_LONG" not in os.environ, reason="a minute: PASTA_TEST_LONG=1 runs it")
@pytest.mark.timeout(1200)
async def test_pasta_smol_answers_as_it_does_here(tmp_path: Path) -> None:
    folder = export_model("pasta-smol", tmp_path / "pasta-smol")
    local = LocalBackend("pasta-smol", device="cpu", dtype="float32")
    with running_vllm(folder, tmp_path / "log") as (url, _):
        served = VLLMBackend(url)
        async with aclosing(local), aclosing(served):
            expected = await answered(Unconstrained(local), FEW)
            served_answers = await answered(served, FEW)
    for prompt, ours, theirs in zip(FEW, expected, served_answers, strict=True):
        assert theirs.document.format() == ours.document.format(), prompt
    assert any(len(answer.threads) > 1 for answer in expected)


async def test_a_killed_server_ends_answers_by_name(server: VLLMServer) -> None:
    """The last test: the server of all others is gone."""
    [prompt] = [example.prompt for example in examples()[:1]]
    async with Client(VLLMBackend(server.url), limits=Limits(retries=0)) as client:
        with pytest.raises(PastaError) as caught:
            async with client.stream(prompt, parallel="always") as answer:
                async for _ in answer.text_deltas():
                    os.killpg(server.group, signal.SIGKILL)
    assert isinstance(caught.value.__cause__, BackendTransportError)
    assert caught.value.partial and caught.value.partial.text
