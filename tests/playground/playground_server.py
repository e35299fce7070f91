"""The server with the page, on a real socket, in the loop of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from typing import Any

from pasta_async import Backend, DecodeRequest, Piece
from pasta_async.clock import REAL_CLOCK
from pasta_async.server import ServerSettings, create_app
from pasta_async.testing import Fault, ScriptedBackend
from tests.cli.written import WRITTEN
from tests.server.live_server import serving_in_loop


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


def serving(backend: Backend, **settings: Any) -> AbstractAsyncContextManager[str]:
    """The server's address while it runs."""
    return serving_in_loop(create_app(backend, ServerSettings(**settings)))
