"""A server with the embedded engine, and clients that come, go, stall and misbehave."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx

from pasta_async.backends.local import LocalBackend
from pasta_async.server import ServerSettings, create_app
from pasta_async.server.running import http_protocol
from tests.helpers.live_server import PATIENCE, WatchedBackend, http_request, serving
from tests.pasta_tiny import PASTA_TINY
from tests.torture.trials import Figures, Trials, draw_prompt

AT_ONCE = 24
"""Clients: more than the answers that decode and wait, so some are told to come again."""

SETTINGS = ServerSettings(max_answers=8, max_queue=8, stall_timeout=2, body_timeout=2)


async def soak(trials: Trials) -> Figures:
    """Send clients to a server for as long as is planned; in the end nothing may be left of them."""
    engine = WatchedBackend(LocalBackend(PASTA_TINY, threads=1))
    with serving(create_app(engine, SETTINGS, limits={"timeout": 20}), http=http_protocol(SETTINGS)) as url:
        clients, numbers = _Clients(trials, httpx.URL(url)), trials.numbers()
        await asyncio.gather(*(clients.work(numbers) for _ in range(AT_ONCE)))
        await asyncio.to_thread(engine.wait, lambda engine: engine.open == 0)
    return dict(clients.outcomes)


class _Clients:
    """Clients of a server at a URL, and counts of what became of them."""

    def __init__(self, trials: Trials, url: httpx.URL) -> None:
        self._trials, self._url = trials, url
        self.outcomes = Counter[str]()

    async def work(self, numbers: Iterator[int]) -> None:
        ways = (self._reads, self._reads, self._reads, self._leaves, self._stalls)
        for number in numbers:
            drawn = self._trials.random(number)
            way = drawn.choice((*ways, self._says_nothing, self._sends_garbage))
            outcome = await way(drawn) or way.__name__.strip("_")
            self.outcomes[outcome] += 1
            if outcome == "rate_limit_exceeded":
                await asyncio.sleep(1)  # as `Retry-After` says

    async def _reads(self, drawn: random.Random) -> str:
        """Reads a stream to its end, which is `[DONE]` or a named error."""
        async with self._connected(self._request(drawn)) as reader:
            received = await asyncio.wait_for(reader.read(-1), PATIENCE)
        chunks = re.findall(rb"^data: (.*?)\r?$", received, re.MULTILINE)
        if chunks and chunks[-1] == b"[DONE]":
            reasons = re.findall(rb'"finish_reason":"(\w+)"', received)
            assert reasons and set(reasons) <= {b"stop", b"length"}, received[-500:]
            return "whole streams"
        error = chunks[-1] if chunks else received.partition(b"\r\n\r\n")[2]
        code = json.loads(error)["error"]["code"]
        assert code in ("rate_limit_exceeded", "timeout"), error  # no place, or no time
        return code

    async def _leaves(self, drawn: random.Random) -> None:
        async with self._connected(self._request(drawn)) as reader:
            with suppress(TimeoutError):
                await asyncio.wait_for(reader.read(-1), drawn.uniform(0, 1.5))

    async def _stalls(self, drawn: random.Random) -> None:
        """Reads a little, then nothing more."""
        async with self._connected(self._request(drawn)) as reader:
            await reader.read(drawn.randrange(1, 3000))
            await asyncio.sleep(drawn.uniform(0, 4))

    async def _says_nothing(self, drawn: random.Random) -> None:
        """Sends nothing, or half a request, and is cut off."""
        request = self._request(drawn)
        async with self._connected(request[: drawn.choice((0, drawn.randrange(len(request))))]) as reader:
            with suppress(ConnectionError):
                await asyncio.wait_for(reader.read(-1), PATIENCE)

    async def _sends_garbage(self, drawn: random.Random) -> None:
        request = bytearray(self._request(drawn))
        for _ in range(drawn.randrange(1, 30)):
            request[drawn.randrange(len(request))] = drawn.randrange(256)
        async with self._connected(bytes(request)) as reader:
            with suppress(TimeoutError, ConnectionError):
                received = await asyncio.wait_for(reader.read(-1), 5)
                assert not received.startswith(b"HTTP/1.1 50"), received[:500]

    def _request(self, drawn: random.Random) -> bytes:
        body: dict[str, Any] = {
            "model": PASTA_TINY.name,
            "messages": [{"role": "user", "content": draw_prompt(drawn)}],
            "stream": True,
            "temperature": 0,
            "n": drawn.choice((1, 1, 1, 2)),
        }
        return http_request("/v1/chat/completions", json.dumps(body).encode(), "Connection: close")

    @asynccontextmanager
    async def _connected(self, request: bytes) -> AsyncGenerator[asyncio.StreamReader]:
        reader, writer = await asyncio.open_connection(self._url.host, self._url.port, limit=2**12)
        writer.write(request)
        try:
            yield reader
        finally:
            writer.transport.abort()
