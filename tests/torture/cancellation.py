"""Answers that are broken off at random moments, in every way there is, and what is left of them."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from pasta_async import Client, GenerationTimeoutError, Limits
from pasta_async.server import ServerSettings, create_app
from tests.pasta_tiny import examples
from tests.server.live_server import http_request, serving_in_loop
from tests.torture.engines import Engine
from tests.torture.measured import Plan, check_flat, resident, slope

BATCH = 200
"""Answers, after which everything must be as it was before them."""

AT_ONCE = 16

SETTLES = 1.0
"""Seconds after the last answer of a batch, in which everything must be so."""


@dataclass
class Campaign:
    """Answers that are broken off, and counts of what came of them.

    Attributes:
        server: The URL of OpenAI's API on the same client.
        at_once: Answers at the same time.
        span: Seconds in which an answer is broken off: about what a whole one takes.
        slowest: The longest that it took, after the last answer of a batch, until nothing was left.
    """

    plan: Plan
    engine: Engine
    client: Client
    server: str
    at_once: int
    span: float = 1.0
    slowest: float = 0.0
    found: Counter[str] = field(default_factory=Counter[str])
    memory: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    engine_memory: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    async def run(self) -> None:
        """Break off the answers that are planned, and look after each batch what is left."""
        own = asyncio.all_tasks()
        self.span = await self._usual_seconds()
        numbers = self.plan.numbers()
        while batch := [number for number, _ in zip(numbers, range(BATCH), strict=False)]:
            if (seconds := await self._break_off(batch, own)) > SETTLES:
                # The machine may have stood still; what needs so long does so again.
                seconds = await self._break_off(batch, own)
                assert seconds <= SETTLES, f"something was left for {seconds:.2f} s"
            self.slowest = max(self.slowest, seconds)
            self.memory.append((self.found.total(), resident()))
            self.engine_memory.append((self.found.total(), self.engine.memory()))
            check_flat(self.memory)
            check_flat(self.engine_memory)

    async def _break_off(self, batch: list[int], own: set[asyncio.Task[Any]]) -> float:
        """Seconds after the last of these answers until nothing is left of them."""
        queue = iter(batch)
        async with asyncio.TaskGroup() as group:
            for _ in range(self.at_once):
                group.create_task(self._worker(queue))
        return await self.engine.settled(own)

    async def _usual_seconds(self) -> float:
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(self.at_once):
                group.create_task(self.client.generate(_prompt(self.plan.random("usual", number))))
        return time.monotonic() - began

    async def _worker(self, numbers: Any) -> None:
        ways = (self._cancel, self._time_out, self._leave, self._disconnect)
        for number in numbers:
            drawn = self.plan.random(number)
            how = drawn.choice(ways)
            whole = await how(drawn)
            self.found["ended before" if whole else how.__name__.strip("_")] += 1

    async def _cancel(self, drawn: random.Random) -> bool:
        task = asyncio.create_task(self.client.generate(_prompt(drawn)))
        await asyncio.wait([task], timeout=self._moment(drawn))
        task.cancel()
        await asyncio.wait([task])
        return not task.cancelled()

    async def _time_out(self, drawn: random.Random) -> bool:
        try:
            await self.client.generate(_prompt(drawn), limits=Limits(timeout=self._moment(drawn)))
        except GenerationTimeoutError as error:
            assert error.partial is not None
            return False
        return True

    async def _leave(self, drawn: random.Random) -> bool:
        last, seen = drawn.randrange(120), 0
        async with self.client.stream(_prompt(drawn)) as answer:
            async for _ in answer:
                seen += 1
                if seen >= last:
                    break
            else:
                return True
        return False

    async def _disconnect(self, drawn: random.Random) -> bool:
        """A client of the server that goes away, politely or not."""
        url = httpx.URL(self.server)
        body: dict[str, Any] = {
            "model": (await self.client.connect()).name,
            "messages": [{"role": "user", "content": _prompt(drawn)}],
            **{"stream": drawn.random() < 0.7, "temperature": 0, "n": drawn.choice((1, 1, 2))},
        }
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(http_request("/v1/chat/completions", json.dumps(body).encode(), "Connection: close"))
        received = asyncio.create_task(reader.read(-1))
        await asyncio.wait([received], timeout=self._moment(drawn))
        whole = received.done()
        received.cancel()
        await asyncio.wait([received])
        if drawn.random() < 0.5:
            writer.transport.abort()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        return whole

    def _moment(self, drawn: random.Random) -> float:
        return drawn.uniform(0.0005, self.span)

    @property
    def figures(self) -> dict[str, Any]:
        """What is to be told."""
        whole = self.found["ended before"]
        return {
            "broken off": self.found.total() - whole,
            **self.found,
            "seconds": round(self.plan.elapsed),
            "seconds until nothing was left, at the most": round(self.slowest, 2),
            "MiB in the end": round(self.memory[-1][1]),
            "MiB more in 1,000 answers": round(1000 * slope(self.memory), 3),
            "MiB more in 1,000 answers, server": round(1000 * slope(self.engine_memory), 3),
        }


def _prompt(drawn: random.Random) -> str:
    return drawn.choice(examples()).prompt


def served(client: Client, at_once: int) -> AbstractAsyncContextManager[str]:
    """OpenAI's API on the same client, in this event loop; its URL."""
    return serving_in_loop(create_app(client, ServerSettings(max_answers=at_once * 2)))


async def break_off(plan: Plan, engine: Engine, at_once: int = AT_ONCE) -> dict[str, Any]:
    """Break answers off; the figures. Fails where something is left of one."""
    try:
        async with Client(engine.backend) as client, served(client, at_once) as url:
            await client.connect()
            campaign = Campaign(plan, engine, client, url, at_once)
            await campaign.run()
    finally:
        await engine.backend.aclose()
    return campaign.figures
