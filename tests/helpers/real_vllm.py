"""Start, ask and stop a real vLLM server, which lives in an environment of its own."""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.helpers.real_server import free_port, running_program

BLOCK = 32
"""Tokens of a block of the KV cache: on a GPU 16, on a CPU it has to be a multiple of 32."""

FLAGS = (
    *("--dtype", "float32", "--block-size", str(BLOCK), "--max-model-len", "2048"),
    *("--enforce-eager", "--enable-prompt-tokens-details"),
)
"""The numbers of the embedded engine; no minutes of compiling; answers tell what was cached."""

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process less, for which threads are not bound to cores
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",  # threads that wait for each other stand still on a busy machine
    "VLLM_SERVER_DEV_MODE": "1",  # its prefix cache can be emptied
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


class VLLMServer(NamedTuple):
    """A running vLLM server."""

    url: str
    model: Path
    group: int
    """The process group that it is."""
    block: int = BLOCK
    endless: Mapping[str, Any] = {"ignore_eos": True, "stop_token_ids": ()}

    def metric(self, name: str) -> float:
        """The value of one of its metrics."""
        metrics = httpx.get(f"{self.url}/metrics", timeout=30).text
        [value] = re.findall(rf"^vllm:{name}{{.*}} (\S+)$", metrics, re.M)
        return float(value)

    def running(self) -> int:
        """Requests that it decodes or holds in its queue."""
        return int(self.metric("num_requests_running") + self.metric("num_requests_waiting"))

    def held(self) -> float:
        """Those requests, and the part of the KV cache that is in use, other than the prefix cache's."""
        return self.running() + self.metric("kv_cache_usage_perc")

    def flush(self) -> None:
        """Empty the prefix cache."""
        httpx.post(f"{self.url}/reset_prefix_cache").raise_for_status()


@contextmanager
def running_vllm(model: Path, log: Path) -> Generator[tuple[str, int]]:
    """Serve a model on a CPU; the server's URL, and the process group that it is.

    The test is skipped where no environment for it is named.
    """
    if not (python := os.environ.get("PASTA_VLLM_PYTHON")):
        pytest.skip("PASTA_VLLM_PYTHON names no Python with vLLM (make test-vllm makes one)")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    # `vllm serve` would do, but for the name of the package for CPUs, by which it does not find its version.
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)]
    served = ["--model", str(model), "--served-model-name", model.name]

    def ready() -> bool:
        return httpx.get(f"{url}/health", timeout=5).is_success

    with running_program([*command, *served, *FLAGS], log, ready, ENVIRONMENT) as group:
        yield url, group
