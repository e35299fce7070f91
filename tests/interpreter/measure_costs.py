"""What the library itself costs: CPU time for a streamed token, memory and CPU time of an open thread.

    python tests/interpreter/measure_costs.py [--crowd 100000] [--collector off] [--telemetry]

On a scripted backend that takes no time.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
from collections.abc import Sequence
from statistics import median
from time import process_time
from typing import Any

from pasta_async import Client, Limits, Sampling
from pasta_async.evals.records import environment, markdown_table, own_memory
from pasta_async.observers import Observer
from pasta_async.testing import Fault, ScriptedBackend

Row = dict[str, Any]

_UNLIMITED = Sampling(max_tokens=10**9)


def _script(chunks: int, tokens: int) -> str:
    """An answer with some text, chunks of so many tokens (of a `WordTokenizer`), a sync, and text again."""
    body = "word" + " word" * (tokens - 1)
    promises = (f'<promise topic="part {k}" tokens="{tokens}"/><async>{body}</async>' for k in range(chunks))
    return f"Here it comes. {' '.join(promises)}<sync/> {body}"


_CHUNKS, _TOKENS = 8, 200
_COLLECTORS = {"usual": gc.get_threshold(), "off": (0,), "rare": (100_000, 50, 100)}
"""Thresholds of the garbage collector."""

_WRITTEN = 20
"""Tokens that each open thread has put out when its memory is measured."""


def _telemetry() -> list[Observer]:
    from opentelemetry.sdk.trace import TracerProvider
    from prometheus_client import CollectorRegistry

    from pasta_async.telemetry.logs import Logs
    from pasta_async.telemetry.metrics import Metrics
    from pasta_async.telemetry.tracing import Tracing

    return [Metrics(CollectorRegistry()), Tracing(TracerProvider()), Logs()]


def _token_cost(settings: argparse.Namespace, together: int, observers: Sequence[Observer]) -> Row:
    """CPU microseconds of a streamed token, the scripted backend's own work included: medians over rounds."""
    rounds = [
        asyncio.run(_stream_answers(settings.answers, together, observers))
        for _ in range(settings.rounds + 1)
    ]
    _, tokens, events = rounds[0]
    return {
        "answers at once": together,
        "threads at once": together * _CHUNKS,
        "tokens": tokens,
        "events": events,
        "us a token": 1e6 * median(seconds / tokens for seconds, tokens, _ in rounds[1:]),
    }


async def _stream_answers(
    answers: int, together: int, observers: Sequence[Observer]
) -> tuple[float, int, int]:
    """CPU seconds, tokens and events of reading answers event by event."""
    tokens = events = 0

    async def read() -> None:
        nonlocal tokens, events
        async with client.stream("Go.", sampling=_UNLIMITED) as stream:
            async for event in stream:
                events += 1
                if event.type == "answer.done":
                    tokens += event.generation.usage.completion_tokens

    backend = ScriptedBackend(_script(_CHUNKS, _TOKENS), record=False)
    async with Client(backend, limits=_limits((_CHUNKS + 1) * together), observers=observers) as client:
        gc.collect()
        began = process_time()
        for _ in range(0, answers, together):
            await asyncio.gather(*(read() for _ in range(together)))
        return process_time() - began, tokens, events


def _crowd(answers: int, collector: str) -> Row:
    """Memory and CPU time of a process with so many threads open: what they take of it, and to get there."""
    asyncio.run(_hold_open(1))  # loads what is loaded late
    gc.collect()
    before, began = own_memory("VmRSS"), process_time()
    gc.set_threshold(*_COLLECTORS[collector])
    try:
        held, opened = asyncio.run(_hold_open(answers))
    finally:
        gc.set_threshold(*_COLLECTORS["usual"])
    threads = answers * _CHUNKS
    return {
        "open threads": threads,
        "answers": answers,
        "garbage collector": collector,
        "process MiB": held / 2**20,
        "KB a thread": (held - before) / threads / 1000,
        "CPU s to open them": opened - began,
        "CPU s to leave them": process_time() - opened,
    }


async def _hold_open(answers: int) -> tuple[int, float]:
    """Open all threads of so many answers, on a backend whose chunks stall.

    Returns:
        The process's bytes meanwhile, and the CPU time (`process_time`) at which all were open.
    """
    faults = [Fault(k, _WRITTEN, "stall", times=answers) for k in range(1, _CHUNKS + 1)]
    backend = ScriptedBackend(_script(_CHUNKS, 10 * _WRITTEN), faults=faults, record=False)

    async def read() -> None:
        async with client.stream("Go.", sampling=_UNLIMITED) as stream:
            async for _ in stream:
                pass

    async with Client(backend, limits=_limits((_CHUNKS + 1) * answers)) as client:
        tasks = [asyncio.create_task(read()) for _ in range(answers)]
        while sum(len(play.ids) == _WRITTEN for play in backend.open) < answers * _CHUNKS:
            await asyncio.sleep(0.05)
            if broken := [task for task in tasks if task.done()]:
                broken[0].result()
        opened = process_time()
        gc.collect()
        held = own_memory("VmRSS")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return held, opened


def _limits(threads: int) -> Limits:
    return Limits(max_threads=threads, client_threads=threads)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--answers", type=int, default=32, help="answers in a round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, after one that warms up")
    parser.add_argument("--crowd", type=int, default=100_000, help="threads open at once")
    parser.add_argument(
        "--collector", default="off", choices=_COLLECTORS, help="the garbage collector meanwhile"
    )
    parser.add_argument("--telemetry", action="store_true", help="with metrics, traces and logs")
    settings = parser.parse_args()
    observers = _telemetry() if settings.telemetry else []
    costs = [_token_cost(settings, together, observers) for together in (1, 16)]
    crowd = _crowd(settings.crowd // _CHUNKS, settings.collector)
    print(environment(), markdown_table(costs), markdown_table([crowd]), sep="\n\n")
