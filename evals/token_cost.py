"""CPU time of a streamed token, with a scripted backend that takes no time."""

from __future__ import annotations

import asyncio
import gc
from contextlib import aclosing
from dataclasses import dataclass
from statistics import median
from time import process_time
from typing import TYPE_CHECKING

from pasta_async import Client
from pasta_async.evals.workload import UNLIMITED, document, limits, requests
from pasta_async.testing import ScriptedBackend

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pasta_async.observers import Observer

__all__ = ["TokenCost", "measure_tokens"]


@dataclass(frozen=True)
class TokenCost:
    """CPU time of answers that are read through `Client.stream`, event by event."""

    together: int
    """Answers that run at the same time."""
    chunks: int
    """Threads of an answer, besides main."""
    tokens: int
    """Tokens of a round, over all answers."""
    events: int
    total: float
    """Microseconds for a token: interpreter, stream, reader, event loop and scripted backend."""
    backend: float
    """The same requests iterated without an interpreter: event loop and scripted backend."""


def measure_tokens(
    *,
    answers: int = 32,
    together: int = 1,
    chunks: int = 8,
    tokens: int = 200,
    rounds: int = 5,
    observers: Sequence[Observer] = (),
) -> TokenCost:
    """The cost of a streamed token: medians over rounds that alternate with the backend alone.

    Args:
        answers: Answers in a round.
        together: How many of them run at the same time.
        chunks: Chunks of an answer.
        tokens: Tokens of a chunk, and of the text behind the sync.
        rounds: Rounds, behind one that warms up.
        observers: Of the client.
    """
    text = document(chunks, tokens)
    totals, backends = list[float](), list[float]()
    count = events = 0
    for _ in range(rounds + 1):
        seconds, count, events = asyncio.run(_stream(text, answers, together, chunks, observers))
        totals.append(seconds / count * 1e6)
        backends.append(asyncio.run(_play(text, answers, together)) / count * 1e6)
    return TokenCost(together, chunks, count, events, median(totals[1:]), median(backends[1:]))


async def _stream(
    text: str, answers: int, together: int, chunks: int, observers: Sequence[Observer]
) -> tuple[float, int, int]:
    """CPU seconds, tokens and events of reading answers."""
    tokens = events = 0

    async def read() -> None:
        nonlocal tokens, events
        async with client.stream("Go.", sampling=UNLIMITED) as stream:
            async for event in stream:
                events += 1
                if event.type == "answer.done":
                    tokens += event.generation.usage.completion_tokens

    backend = ScriptedBackend(text, record=False)
    limited = limits((chunks + 1) * together)
    async with Client(backend, limits=limited, observers=observers) as client:
        seconds = await _timed(read, answers, together)
    return seconds, tokens, events


async def _play(text: str, answers: int, together: int) -> float:
    """CPU seconds of the same requests without an interpreter, with a task for each thread."""
    backend = ScriptedBackend(text, record=False)
    sent = await requests(backend, text, "Go.")
    threads = {request.thread: [r for r in sent if r.thread == request.thread] for request in sent}

    async def play(thread: int) -> None:
        for request in threads[thread]:
            async with aclosing(backend.decode(request)) as pieces:
                async for _ in pieces:
                    pass

    async def answer() -> None:
        await asyncio.gather(*map(play, threads))

    return await _timed(answer, answers, together)


async def _timed(work: Callable[[], Awaitable[None]], times: int, together: int) -> float:
    """CPU seconds of doing some work so many times."""
    gc.collect()
    began = process_time()
    for _ in range(0, times, together):
        await asyncio.gather(*(work() for _ in range(together)))
    return process_time() - began
