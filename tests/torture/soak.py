"""`pasta-async serve` with clients that come, go, stall and misbehave."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from tests.pasta_tiny import LOCAL_TINY, examples
from tests.server.live_server import http_request
from tests.sglang.real_server import free_port
from tests.torture.measured import Plan, descriptors, resident, slope

AT_ONCE = 24
"""Clients: more than the answers that decode and wait, so some are told to come again."""

FLAGS = (
    *("--backend", LOCAL_TINY, "--max-answers", "8", "--max-queue", "8", "--log-level", "error"),
    *("--timeout", "20", "--stall-timeout", "2", "--body-timeout", "2"),
)

NAMED = {"rate_limit_exceeded", "timeout"}
"""What a stream may end with instead of an answer: there was no place, or no time."""

PATIENCE = 60.0
CHAT = "/v1/chat/completions"


@dataclass
class Soak:
    """Clients of a server, and counts of what became of them.

    Attributes:
        url: Where it listens.
        pid: Its process.
        points: Seconds, MiB and file descriptors of the server, each second.
    """

    plan: Plan
    url: httpx.URL
    pid: int
    found: Counter[str] = field(default_factory=Counter[str])
    points: list[tuple[float, float, int]] = field(default_factory=list[tuple[float, float, int]])

    async def run(self) -> None:
        """Send clients for as long as is planned; then nothing may be left of them."""
        numbers = self.plan.numbers()
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(self._watch())
            await asyncio.gather(*(self._clients(numbers) for _ in range(AT_ONCE)))
            watch.cancel()
        async with httpx.AsyncClient(timeout=PATIENCE) as http:
            began = time.monotonic()
            while any(self._load((await http.get(f"{self.url}/health")).json())):
                assert time.monotonic() - began < PATIENCE, "answers are left"
                await asyncio.sleep(0.05)

    def _load(self, health: dict[str, Any]) -> tuple[int, int]:
        return health["in_flight"], health["queued"]

    async def _watch(self) -> None:
        while True:
            self.points.append((self.plan.elapsed, resident(self.pid), descriptors(self.pid)))
            await asyncio.sleep(1)

    async def _clients(self, numbers: Any) -> None:
        kinds: list[Callable[[random.Random], Awaitable[str]]] = [
            *(self._reads, self._reads, self._reads, self._waits, self._leaves, self._stalls),
            *(self._says_nothing, self._sends_half, self._sends_garbage),
        ]
        for number in numbers:
            drawn = self.plan.random(number)
            self.found[what := await drawn.choice(kinds)(drawn)] += 1
            if what == "ended by rate_limit_exceeded":
                await asyncio.sleep(1)  # as `Retry-After` says

    # Those who behave ------------------------------------------------------------------------------------

    async def _reads(self, drawn: random.Random) -> str:
        """Reads a stream to its end, which is `[DONE]` or a named error."""
        async with self._asked(drawn, stream=True) as reply:
            received = await asyncio.wait_for(reply.read(-1), PATIENCE)
        if received.startswith(b"HTTP/1.1 200"):
            chunks = re.findall(rb"^data: (.*?)\r?$", received, re.MULTILINE)
            if chunks[-1] == b"[DONE]":
                reasons = re.findall(rb'"finish_reason":"(\w+)"', received)
                assert reasons and set(reasons) <= {b"stop", b"length"}, received[-500:]
                return "streams that were complete"
            return _named(chunks[-1])
        return _named(_body(received))

    async def _waits(self, drawn: random.Random) -> str:
        """Waits for a whole answer."""
        async with self._asked(drawn, stream=False) as reply:
            received = await asyncio.wait_for(reply.read(-1), PATIENCE)
        if received.startswith(b"HTTP/1.1 200"):
            assert json.loads(_body(received))["choices"][0]["finish_reason"] in ("stop", "length")
            return "answers that were complete"
        return _named(_body(received))

    # Those who do not ------------------------------------------------------------------------------------

    async def _leaves(self, drawn: random.Random) -> str:
        async with self._asked(drawn, stream=drawn.random() < 0.7) as reply:
            with suppress(TimeoutError):
                await asyncio.wait_for(reply.read(-1), drawn.uniform(0, 1.5))
        return "clients that left"

    async def _stalls(self, drawn: random.Random) -> str:
        """Reads a little, then nothing more."""
        async with self._asked(drawn, stream=True, events=True) as reply:
            await reply.read(drawn.randrange(1, 3000))
            await asyncio.sleep(drawn.uniform(0, 4))
        return "clients that stalled"

    async def _says_nothing(self, drawn: random.Random) -> str:
        """Is cut off after `--body-timeout`."""
        async with self._connected() as (reader, _):
            with suppress(ConnectionError):
                assert not await asyncio.wait_for(reader.read(1), PATIENCE)
        return "clients that said nothing"

    async def _sends_half(self, drawn: random.Random) -> str:
        request = self._request(drawn, stream=True)
        async with self._connected() as (reader, writer):
            writer.write(request[: drawn.randrange(1, len(request))])
            if drawn.random() < 0.5:
                await asyncio.wait_for(reader.read(-1), PATIENCE)
        return "clients that sent half a request"

    async def _sends_garbage(self, drawn: random.Random) -> str:
        request = bytearray(self._request(drawn, stream=True))
        for _ in range(drawn.randrange(1, 30)):
            request[drawn.randrange(len(request))] = drawn.randrange(256)
        async with self._connected() as (reader, writer):
            writer.write(bytes(request))
            with suppress(TimeoutError, ConnectionError):
                received = await asyncio.wait_for(reader.read(-1), 5)
                assert not received.startswith(b"HTTP/1.1 50"), received[:500]
        return "clients that sent garbage"

    # What they share -------------------------------------------------------------------------------------

    def _request(self, drawn: random.Random, *, stream: bool, events: bool = False) -> bytes:
        prompt = drawn.choice(examples()).prompt
        body: dict[str, Any] = {
            "model": "pasta-tiny",
            "messages": [{"role": "user", "content": prompt}],
            **{"stream": stream, "temperature": 0, "n": drawn.choice((1, 1, 1, 2))},
        }
        if events:
            body["pasta"] = {"events": True}
        return http_request(CHAT, json.dumps(body).encode(), "Connection: close")

    @asynccontextmanager
    async def _asked(
        self, drawn: random.Random, *, stream: bool, events: bool = False
    ) -> AsyncGenerator[asyncio.StreamReader]:
        async with self._connected() as (reader, writer):
            writer.write(self._request(drawn, stream=stream, events=events))
            yield reader

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection(self.url.host, self.url.port, limit=2**12)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    @property
    def figures(self) -> dict[str, Any]:
        """What is to be told."""
        half = self.points[len(self.points) // 2 :]
        return {
            "clients": self.found.total(),
            **self.found,
            "seconds": round(self.plan.elapsed),
            "MiB in the end": round(self.points[-1][1]),
            "MiB more in a minute": round(60 * slope([(at, mib) for at, mib, _ in self.points]), 2),
            "file descriptors, second half": [min(fds for *_, fds in half), max(fds for *_, fds in half)],
            "file descriptors in the end": descriptors(self.pid),
        }


def _body(received: bytes) -> bytes:
    return received.partition(b"\r\n\r\n")[2]


def _named(error: bytes) -> str:
    code = json.loads(error)["error"]["code"]
    assert code in NAMED, error
    return f"ended by {code}"


async def soak(plan: Plan) -> dict[str, Any]:
    """Start the server, send clients, stop the server; the figures."""
    port = free_port()
    command = (sys.executable, "-m", "pasta_async", "serve", *FLAGS, "--port", str(port))
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *command, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        try:
            url = httpx.URL(f"http://127.0.0.1:{port}")
            await _listening(url)
            made = Soak(replace(plan, began=time.monotonic()), url, process.pid)
            await made.run()
            figures = made.figures
            process.send_signal(signal.SIGTERM)
            await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        log.seek(0)
        said = log.read().decode()
    assert "Traceback" not in said, said[-3000:]
    return figures


async def _listening(url: httpx.URL) -> None:
    async with httpx.AsyncClient() as http:
        began = time.monotonic()
        while time.monotonic() - began < PATIENCE:
            with suppress(httpx.TransportError):
                (await http.get(f"{url}/health")).raise_for_status()
                return
            await asyncio.sleep(0.1)
    raise TimeoutError("the server does not listen")
