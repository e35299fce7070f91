"""One server with the real embedded engine for all tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest

from pasta_async import Client
from pasta_async.backends.local import LocalBackend
from tests.helpers.live_server import LiveServer, WatchedBackend, official, running
from tests.pasta_tiny import PASTA_TINY

if TYPE_CHECKING:
    import openai


@pytest.fixture(scope="session")
def engine() -> WatchedBackend:
    """The engine behind the server."""
    return WatchedBackend(LocalBackend(PASTA_TINY))


@pytest.fixture(scope="session")
def server(engine: WatchedBackend) -> Iterator[LiveServer]:
    """The server, which also knows its model as `alias`. Its answers are compared, whatever the load."""
    with running(engine, model_names=("alias",), parallel="always") as live:
        yield live


@pytest.fixture
async def client(server: LiveServer) -> AsyncIterator[openai.AsyncOpenAI]:
    """The official client of that server."""
    async with official(server.url) as openai_client:
        yield openai_client


@pytest.fixture(scope="session")
def _own_engine() -> LocalBackend:  # pyright: ignore[reportUnusedFunction]
    return LocalBackend(PASTA_TINY)


@pytest.fixture
async def library(_own_engine: LocalBackend) -> AsyncIterator[Client]:
    """The library in process with the same model."""
    async with Client(_own_engine) as in_process:
        yield in_process
