"""What the embedded backend may be told, and what it does to the process that it runs in."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
import torch

from pasta_async.backends.local import LocalBackend
from pasta_async.errors import InvalidRequestError
from pasta_async.options import Sampling
from pasta_async.protocol import DecodeRequest
from tests.pasta_tiny import PASTA_TINY


@pytest.mark.parametrize(
    "options",
    [
        {"slots": 0},
        {"slots": 1.5},
        {"slots": True},
        {"threads": 0},
        {"threads": 1025},
        {"max_running": -1},
        {"max_prefill_tokens": "256"},
        {"dtype": "int3"},
        {"dtype": 5},
        {"device": "gpu"},
        {"device": 0},
        {"path": "x" * 5000},
        {"path": "nul\0"},
        {"path": "\ud800"},
        {"path": 5},
    ],
    ids=str,
)
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"path": PASTA_TINY, **options}
    with pytest.raises(InvalidRequestError):
        LocalBackend(**arguments)


@pytest.mark.parametrize("device", ["xpu:7", "cuda:200", "cuda:99999999999999999999"])
async def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    backend = LocalBackend(PASTA_TINY, device=device)
    with pytest.raises(InvalidRequestError):
        await backend.connect()
    await backend.aclose()


async def test_the_rest_of_the_process_keeps_its_threads() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        backend = LocalBackend(PASTA_TINY, device="cpu")
        asked = DecodeRequest("a", 0, tuple(range(30)), max_tokens=2, sampling=Sampling())
        assert [piece async for piece in backend.decode(asked)]
        assert torch.get_num_threads() == 2
        assert await asyncio.to_thread(torch.get_num_threads) == 2
        await backend.aclose()
    finally:
        torch.set_num_threads(before)


def test_importing_the_backend_loads_no_torch() -> None:
    code = "import sys, pasta_async.backends.local; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
