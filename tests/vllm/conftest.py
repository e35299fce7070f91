"""One real vLLM server on a CPU for the whole test run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from pasta_async.backends.vllm import VLLMBackend
from tests.helpers.real_vllm import VLLMServer, running_vllm
from tests.helpers.server_contract import until
from tests.pasta_tiny import PASTA_TINY


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMServer]:
    """vLLM's own server with pasta-tiny."""
    with running_vllm(PASTA_TINY, tmp_path_factory.mktemp("vllm") / "log") as (url, group):
        yield VLLMServer(url, PASTA_TINY, group)


@pytest.fixture
async def backend(server: VLLMServer) -> AsyncIterator[VLLMBackend]:
    """A backend for the real server, which has to be idle soon afterwards."""
    backend = VLLMBackend(server.url)
    yield backend
    await backend.aclose()
    await until(server, 0)
