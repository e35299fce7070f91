"""Open what is measured: a backend with a cold prefix cache, plain or under force."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pasta_async import Client
from pasta_async.backends import open_backend
from pasta_async.evals.forced import FORCED_LIMITS, ForcedBackend
from pasta_async.evals.prefix_cache import empty_prefix_cache

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from pasta_async import Backend
    from pasta_async.lang import Document

__all__ = ["cold_backend", "cold_client"]


@asynccontextmanager
async def cold_backend(url: str) -> AsyncGenerator[Backend]:
    """A connected backend whose prefix cache is empty: loaded anew, or flushed; closed at the end."""
    if url.startswith("http"):
        await empty_prefix_cache(url)
        backend = open_backend(url, max_connections=FORCED_LIMITS.client_threads)
    else:
        backend = open_backend(url)
    try:
        await backend.connect()
        yield backend
    finally:
        await backend.aclose()


@asynccontextmanager
async def cold_client(url: str, documents: Mapping[str, Document] | None = None) -> AsyncGenerator[Client]:
    """A client of a backend whose prefix cache is empty.

    Args:
        url: As for `pasta_async.generate`.
        documents: By prompt; if there are any, answers are forced to be these.
    """
    async with cold_backend(url) as backend:
        forced = ForcedBackend(backend, documents) if documents else backend
        async with Client(forced, limits=FORCED_LIMITS if documents else None) as client:
            await client.connect()
            yield client
