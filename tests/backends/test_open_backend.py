"""Backends by name: what is refused, and what is said when something is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pasta_async.backends import open_backend
from pasta_async.errors import InvalidRequestError
from pasta_async.protocol import Backend
from tests.pasta_tiny import PASTA_TINY


@pytest.mark.parametrize(
    "url", ["", "vllm:/x", "vllm:", "sglang:", "http:", "http://", "/path/to/model", "localhost:30000"]
)
def test_a_name_of_no_backend_is_refused_with_the_forms(url: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"local:/path(?s:.*)sglang:/path") as caught:
        open_backend(url)
    assert repr(url) in str(caught.value)


@pytest.mark.parametrize(
    "url", ["local:/nowhere", "http://localhost:1", "https://example.org/sub", "vllm:http://gpu:8000"]
)
async def test_a_name_makes_a_backend_without_reaching_it(url: str) -> None:
    backend = open_backend(url)
    assert isinstance(backend, Backend)
    await backend.aclose()


def test_a_missing_extra_is_named_with_its_command() -> None:
    """A process of its own cannot find torch."""
    code = f"""
import asyncio, sys
sys.modules["torch"] = None
from pasta_async.backends import open_backend
from pasta_async.errors import BackendError
try:
    asyncio.run(open_backend("local:{PASTA_TINY}").connect())
except BackendError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "needs torch" in done.stdout
    assert "pip install 'pasta_async[local]'" in done.stdout
