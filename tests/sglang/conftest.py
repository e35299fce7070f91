"""One real SGLang server on a CPU for the whole test run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from pasta_async.backends.sglang import SGLangBackend
from tests.helpers.real_server import SGLangServer, require_sglang, running_server
from tests.pasta_tiny import PASTA_TINY


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SGLangServer]:
    """SGLang's own server with pasta-tiny."""
    require_sglang()
    with running_server(PASTA_TINY, tmp_path_factory.mktemp("sglang") / "log") as (url, _):
        yield SGLangServer(url, PASTA_TINY)


@pytest.fixture
async def backend(server: SGLangServer) -> AsyncIterator[SGLangBackend]:
    """A backend for the real server, which has to be idle again afterwards."""
    backend = SGLangBackend(server.url)
    yield backend
    await backend.aclose()
    assert server.running() == 0
