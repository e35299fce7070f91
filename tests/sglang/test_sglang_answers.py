"""Whole answers of the shipped model, by SGLang and by the embedded engine."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import psutil
import pytest
import real_server as stand_ins
from real_server import fork_running, read, require_sglang
from server_contract import PROMPTS, answers, written

from pasta_async import BackendError, DecodeRequest, Sampling
from pasta_async.backends.local import LocalBackend
from pasta_async.backends.sglang import LaunchedBackend, SGLangBackend
from pasta_async.errors import UnsupportedModelError

pytestmark = pytest.mark.timeout(600)  # the first test waits for the server to start

STRICT = {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1", "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1"}
"""The scheduler compares free, cached and used slots at every step, and ends where they do not add up."""

SMALL = {
    **{"max_total_tokens": 1000, "chunked_prefill_size": 128, "schedule_conservativeness": 0.1},
    **{"page_size": 4, "dp_size": 2, "disable_overlap_schedule": True},
}
"""Two ranks with slots for about five requests, in pages: more are begun than can end, and longer prompts are
prefilled in pieces."""


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers are started with stand-ins for the GPU packages."""
    monkeypatch.setattr("pasta_async.backends.sglang.command.server_command", stand_ins.server_command)


async def play_forks(backend: SGLangBackend) -> None:
    """Fork running requests at random moments, leave some; none changes what another one decodes."""
    tokenizer = (await backend.connect()).tokenizer
    prompts = [tokenizer.encode_chat([{"role": "user", "content": prompt}], {}) for prompt in PROMPTS[::8]]
    whole: list[tuple[DecodeRequest, list[int]]] = []

    def request(answer: str, thread: int, context: Sequence[int], tokens: int) -> DecodeRequest:
        # Not with `ignore_eos`: SGLang would reserve room for all of it, and never take any back.
        extra: dict[str, Any] = {"sampling_params": {"min_new_tokens": tokens}}
        return DecodeRequest(answer, thread, tuple(context), tokens, Sampling(), extra=extra)

    async def decode(asked: DecodeRequest) -> None:
        whole.append((asked, (await read(backend, asked))[0]))

    async def play(number: int) -> None:
        chance = random.Random(number)
        answer, prompt = f"answer {number}", chance.choice(prompts)
        main: list[int] = []
        async with asyncio.TaskGroup() as group:
            forks: list[asyncio.Task[None]] = []
            leaves = chance.choice([30, 60, 999])
            async with aclosing(
                backend.decode(request(answer, 0, prompt, chance.randint(20, 160)))
            ) as pieces:
                async for piece in pieces:
                    main += piece.ids
                    if chance.random() < 0.04:
                        fork = request(answer, len(forks) + 1, [*prompt, *main, 5], chance.randint(1, 80))
                        forks.append(group.create_task(decode(fork)))
                    if len(main) > leaves:
                        break
            for fork in forks[::4]:
                fork.cancel()

    await asyncio.gather(*map(play, range(12)))
    assert len(whole) > 5
    for asked, ids in whole[:3]:
        assert (await read(backend, asked))[0] == ids  # alone


@pytest.mark.usefixtures("on_cpu")
async def test_a_small_server_of_ones_own_answers_alike_survives_forks_and_ends_with_the_backend(
    shipped: Path, local: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_sglang()
    cores = sorted(os.sched_getaffinity(0))
    for name, value in {**STRICT, "SGLANG_CPU_OMP_THREADS_BIND": f"{cores[0]}|{cores[-1]}"}.items():
        monkeypatch.setenv(name, value)
    before = psutil.Process().children(recursive=True)
    async with aclosing(LaunchedBackend(shipped, device="cpu", skip_server_warmup=True, **SMALL)) as backend:
        some = PROMPTS[:8]
        # It reserves room for `max_tokens`, of which it has little.
        there, here = await answers(backend, some, max_tokens=120), await answers(local, some, max_tokens=120)
        assert written(there) == written(here)
        forked = await fork_running(backend, range(20, 120), (30, 31, 61))
        assert max(forked.computed) < SMALL["page_size"] + 2
        await play_forks(backend)
        servers = {*psutil.Process().children(recursive=True)} - {*before}
        assert len(servers) > 1
    assert psutil.wait_procs(servers, timeout=10)[1] == []


@pytest.mark.usefixtures("on_cpu")
async def test_a_model_that_cannot_be_served_is_refused(shipped: Path, tmp_path: Path) -> None:
    require_sglang()
    before = psutil.Process().children()
    copy = shutil.copytree(shipped, tmp_path / "broken")
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    for folder, error in ((tmp_path, UnsupportedModelError), (copy, BackendError)):
        backend = LaunchedBackend(folder, device="cpu")
        with pytest.raises(error):
            await backend.connect()
        await backend.aclose()
    assert psutil.Process().children() == before


PROGRAM = """
import asyncio, sys
from pasta_async.backends.sglang import command
argv = [sys.executable, "-c", "import time; time.sleep(1000)"]
command.server_command = lambda *given, **options: command.ServerCommand(argv, {}, {})
asyncio.run(command.LaunchedBackend(sys.argv[1]).connect())
"""


def test_a_server_ends_with_a_program_that_is_killed(shipped: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(shipped)]) as process:
        started = psutil.Process(process.pid)
        while not (servers := started.children()):
            assert process.poll() is None
        process.kill()
    assert psutil.wait_procs(servers, timeout=30)[1] == []
