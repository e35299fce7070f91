"""Whole answers of pasta-tiny, by SGLang and by the embedded engine."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import aclosing

import psutil
import pytest

from pasta_async.backends.local import LocalBackend
from pasta_async.backends.sglang import LaunchedBackend
from tests.helpers import real_server as stand_ins
from tests.helpers.real_server import fork_running, require_sglang
from tests.helpers.server_contract import PROMPTS, answers, written
from tests.pasta_tiny import PASTA_TINY

pytestmark = pytest.mark.timeout(600)  # the first test waits for the server to start

STRICT = {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1", "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1"}
"""The scheduler compares free, cached and used slots at every step, and ends where they do not add up."""

SMALL = {
    **{"max_total_tokens": 1000, "chunked_prefill_size": 128, "schedule_conservativeness": 0.1},
    **{"page_size": 4, "dp_size": 2, "disable_overlap_schedule": True, "skip_server_warmup": True},
}
"""Two ranks with slots for about five requests, in pages: more are begun than can end, and longer prompts are
prefilled in pieces."""


async def test_a_small_server_of_ones_own_answers_alike_and_ends_with_the_backend(
    local: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_sglang()
    # With stand-ins for the GPU packages.
    monkeypatch.setattr("pasta_async.backends.sglang.command.server_command", stand_ins.server_command)
    cores = sorted(os.sched_getaffinity(0))
    for name, value in {**STRICT, "SGLANG_CPU_OMP_THREADS_BIND": f"{cores[0]}|{cores[-1]}"}.items():
        monkeypatch.setenv(name, value)
    before = psutil.Process().children(recursive=True)
    async with aclosing(LaunchedBackend(PASTA_TINY, device="cpu", server_args=SMALL)) as backend:
        some = PROMPTS[:8]
        # It reserves room for `max_tokens`, of which it has little.
        there, here = await answers(backend, some, max_tokens=120), await answers(local, some, max_tokens=120)
        assert written(there) == written(here)
        forked = await fork_running(backend, range(20, 120), (30, 31, 61))
        assert max(forked.computed) < SMALL["page_size"] + 2
        servers = {*psutil.Process().children(recursive=True)} - {*before}
        assert len(servers) > 1
    assert psutil.wait_procs(servers, timeout=10)[1] == []


PROGRAM = """
import asyncio, sys
from pasta_async.backends.sglang import command
argv = [sys.executable, "-c", "import time; time.sleep(1000)"]
command.server_command = lambda *given, **options: command.ServerCommand(argv, {}, {})
asyncio.run(command.LaunchedBackend(sys.argv[1]).connect())
"""


def test_a_server_ends_with_a_program_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(PASTA_TINY)]) as process:
        started = psutil.Process(process.pid)
        while not (servers := started.children()):
            assert process.poll() is None
        process.kill()
    assert psutil.wait_procs(servers, timeout=30)[1] == []
