"""Answers that are broken off at random moments, in every way there is, and what is left of them."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx

from pasta_async import Backend, Client, GenerationTimeoutError, Limits
from pasta_async.backends.local import LocalBackend
from pasta_async.server import ServerSettings, create_app
from tests.helpers.cache_checks import check_scheduler
from tests.helpers.live_server import http_request, serving_in_loop
from tests.helpers.real_server import SGLangServer
from tests.helpers.real_vllm import VLLMServer
from tests.pasta_tiny import PASTA_TINY
from tests.torture.trials import Figures, Trials, draw_prompt

BATCH = 200
"""Answers, after which nothing of them may be left."""

PATIENCE = 30.0
"""Seconds until what is left counts as lost."""


class LocalEngine:
    """The embedded engine, with so few slots that the cache is always full."""

    def __init__(self) -> None:
        self.engine = LocalBackend(PASTA_TINY, slots=4096, threads=1)
        self.backend: Backend = self.engine

    async def busy(self) -> bool:
        """True while it has requests. Afterwards every KV slot must be free or in the prefix cache."""
        assert self.engine.engine
        scheduler = self.engine.engine.scheduler
        if scheduler.running or scheduler.waiting:
            return True
        check_scheduler(scheduler)
        assert scheduler.pool.free + scheduler.radix.evictable == scheduler.pool.size
        return False


class ServerEngine:
    """A real server."""

    def __init__(self, server: SGLangServer | VLLMServer, backend: Backend) -> None:
        self.server, self.backend = server, backend

    async def busy(self) -> bool:
        """True while it has requests, or KV slots in use other than the prefix cache's."""
        return bool(await asyncio.to_thread(self.server.held))


Engine = LocalEngine | ServerEngine


async def break_off(
    trials: Trials, engine: Engine, at_once: int = 16, within: float | None = None
) -> Figures:
    """Break answers off; fails where something is left of one.

    Args:
        trials: The answers.
        engine: What decodes them.
        at_once: Answers at a time.
        within: Seconds, or a twentieth of so many events, after which an answer is broken off at the latest;
            None: the time that a whole one takes.
    """
    async with Client(engine.backend) as client:
        app = create_app(engine.backend, ServerSettings(max_answers=2 * at_once))
        async with serving_in_loop(app) as url:
            breaker = _Breaker(trials, client, httpx.URL(url))
            began = time.monotonic()
            await asyncio.gather(*(client.generate(breaker.prompt(k)) for k in range(at_once)))
            breaker.usual = within or time.monotonic() - began
            breaker.events = int(20 * within) if within else breaker.events
            before = asyncio.all_tasks()
            numbers = trials.numbers()
            while batch := [*itertools.islice(numbers, BATCH)]:
                queue = iter(batch)
                async with asyncio.TaskGroup() as group:
                    for _ in range(at_once):
                        group.create_task(breaker.work(queue))
                await _settled(engine, before)
    await engine.backend.aclose()
    return dict(breaker.outcomes)


async def _settled(engine: Engine, before: set[asyncio.Task[Any]]) -> None:
    """Wait until no other task is left and the engine is idle."""
    began = time.monotonic()
    while (tasks := asyncio.all_tasks() - before) or await engine.busy():
        what = tasks or "requests or KV slots on the engine"
        assert time.monotonic() - began < PATIENCE, f"left behind: {what}"
        await asyncio.sleep(0.01)


class _Breaker:
    """Breaks answers off, and counts how.

    Attributes:
        usual: Seconds that a whole answer takes; answers are broken off within this time.
        events: Events after which a stream is left, at most.
        outcomes: How many were broken off in which way, and how many ended before.
    """

    def __init__(self, trials: Trials, client: Client, server: httpx.URL) -> None:
        self._trials, self._client, self._server = trials, client, server
        self.usual, self.events = 1.0, 120
        self.outcomes = Counter[str]()

    def prompt(self, number: int) -> str:
        return draw_prompt(self._trials.random("usual", number))

    async def work(self, numbers: Iterator[int]) -> None:
        ways = (self._cancel, self._time_out, self._leave, self._disconnect)
        for number in numbers:
            drawn = self._trials.random(number)
            way = drawn.choice(ways)
            try:
                whole = await way(drawn)
            except asyncio.CancelledError as error:  # a task group would not tell
                raise AssertionError(f"{way.__name__} was cancelled, and by nobody") from error
            self.outcomes["ended before" if whole else way.__name__.strip("_")] += 1

    async def _cancel(self, drawn: random.Random) -> bool:
        task = asyncio.create_task(self._client.generate(draw_prompt(drawn)))
        await asyncio.wait([task], timeout=self._moment(drawn))
        task.cancel()
        await asyncio.wait([task])
        return not task.cancelled()

    async def _time_out(self, drawn: random.Random) -> bool:
        try:
            await self._client.generate(draw_prompt(drawn), limits=Limits(timeout=self._moment(drawn)))
        except GenerationTimeoutError as error:
            assert error.partial is not None
            return False
        return True

    async def _leave(self, drawn: random.Random) -> bool:
        last, seen = drawn.randrange(self.events), 0
        async with self._client.stream(draw_prompt(drawn)) as answer:
            async for _ in answer:
                seen += 1
                if seen >= last:
                    return False
        return True

    async def _disconnect(self, drawn: random.Random) -> bool:
        """A client of the server that goes away, politely or not."""
        body: dict[str, Any] = {
            "model": (await self._client.connect()).name,
            "messages": [{"role": "user", "content": draw_prompt(drawn)}],
            "stream": drawn.random() < 0.7,
            "temperature": 0,
        }
        reader, writer = await asyncio.open_connection(self._server.host, self._server.port)
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
        return drawn.uniform(0.0005, self.usual)
