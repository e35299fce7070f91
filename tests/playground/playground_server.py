"""The server with the page, on a real socket, in the loop of the test."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from pasta_async import Client, DecodeRequest, Piece
from pasta_async.clock import REAL_CLOCK
from pasta_async.server import ServerSettings, create_app
from pasta_async.testing import Fault, ScriptedBackend
from tests.cli.written import WRITTEN


class WatchedBackend(ScriptedBackend):
    """Tells when nothing decodes any more."""

    def __init__(self, script: str = WRITTEN, *, faults: tuple[Fault, ...] = (), **options: Any) -> None:
        super().__init__(script, clock=REAL_CLOCK, faults=faults, **options)
        self.idle = asyncio.Event()

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        self.idle.clear()
        decoding = super().decode(request)
        try:
            async for piece in decoding:
                yield piece
        finally:
            await decoding.aclose()
            if not self.open:
                self.idle.set()


@asynccontextmanager
async def serving(backend: Client | ScriptedBackend, **settings: Any) -> AsyncGenerator[str]:
    """The server's address while it runs."""
    app = create_app(backend, ServerSettings(**settings))
    server = uvicorn.Server(uvicorn.Config(app, lifespan="on", ws="none", log_level="warning"))
    with socket.create_server(("127.0.0.1", 0)) as listening:  # who connects early waits in its queue
        task = asyncio.create_task(server.serve([listening]))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            server.should_exit = True
            await task
            await end_watcher()


async def end_watcher() -> None:
    """sse-starlette has one task for each loop that looks for signals, and lets it run on."""
    for task in asyncio.all_tasks():
        if getattr(task.get_coro(), "__name__", "") == "_shutdown_watcher":
            task.cancel()
            await asyncio.wait([task])
