"""What answers are decoded on, and how to see that nothing is left of them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx

from pasta_async import Backend
from pasta_async.backends.local import LocalBackend
from pasta_async.backends.sglang import SGLangBackend
from tests.backends.cache_checks import check_scheduler
from tests.pasta_tiny import PASTA_TINY
from tests.torture.measured import group_resident

SHIPPED = PASTA_TINY

PATIENCE = 30.0
"""Seconds until what is left counts as lost."""


class Engine:
    """A backend, and how to see that nothing of its answers is left."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    async def busy(self) -> str | None:
        """What it still does."""
        raise NotImplementedError

    async def check(self) -> None:
        """Fail unless every KV slot is free, or in the prefix cache, which may be evicted."""
        raise NotImplementedError

    def memory(self) -> float:
        """MiB of its own processes."""
        return 0.0

    async def settled(self, own: set[asyncio.Task[Any]]) -> float:
        """Seconds until no other task is left and nothing runs; then every slot is there (AssertionError)."""
        began = time.monotonic()
        while left := _tasks(own) or await self.busy():
            assert time.monotonic() - began < PATIENCE, f"left behind: {left}"
            await asyncio.sleep(0.01)
        seconds = time.monotonic() - began
        await self.connect()
        return seconds


class LocalEngine(Engine):
    """The embedded engine, with so few slots that the cache is always full."""

    def __init__(self, slots: int = 4096) -> None:
        super().__init__(LocalBackend(PASTA_TINY, slots=slots, threads=1))

    async def busy(self) -> str | None:
        scheduler = self._scheduler
        left = len(scheduler.running) + len(scheduler.waiting)
        return f"{left} requests" if left else None

    async def check(self) -> None:
        scheduler = self._scheduler
        check_scheduler(scheduler)
        assert scheduler.pool.free + scheduler.radix.evictable == scheduler.pool.size

    @property
    def _scheduler(self) -> Any:
        assert isinstance(self.backend, LocalBackend) and self.backend.engine
        return self.backend.engine.scheduler


class ServerEngine(Engine):
    """A real SGLang server.

    Args:
        url: Where it listens.
        group: Its processes.
    """

    def __init__(self, url: str, group: int) -> None:
        super().__init__(SGLangBackend(url))
        self.url, self._group = url, group

    async def busy(self) -> str | None:
        load = await self._load()
        left = load["num_running_reqs"] + load["num_waiting_reqs"]
        return f"{left} requests" if left else None

    async def check(self) -> None:
        load = await self._load()
        # Slots of the prefix cache do not count. It is not emptied first: that would also free lost ones.
        assert not load["num_used_tokens"], f"{load['num_used_tokens']} KV slots are not given back"

    async def _load(self) -> dict[str, Any]:
        async with httpx.AsyncClient(timeout=PATIENCE) as http:
            [load] = (await http.get(f"{self.url}/v1/loads")).json()["loads"]
        return load

    def memory(self) -> float:
        return group_resident(self._group)


def _tasks(own: set[asyncio.Task[Any]]) -> list[str]:
    """Tasks beside our own, and beside the one that sse_starlette has for each event loop it was used in."""
    left = map(repr, asyncio.all_tasks() - own)
    return [task for task in left if "_shutdown_watcher" not in task]
