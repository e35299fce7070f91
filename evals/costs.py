"""Micro-benchmarks: what single parts and decisions cost.

    python -m pasta_async.evals.costs interpreter       CPU for a streamed token, memory for an open thread
    python -m pasta_async.evals.costs server            many streams at once through the server

Both run on a scripted backend; that of `interpreter` takes no time.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import socket
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from statistics import median
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

import httpx
from numpy import quantile
from pydantic import Field

from pasta_async import Client, Limits, Sampling
from pasta_async.cli.command import CommandSettings, Count, Positive, command
from pasta_async.clock import REAL_CLOCK
from pasta_async.evals.records import environment, markdown_table, memory_of, write_rows
from pasta_async.testing import Fault, ScriptedBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from pasta_async.observers import Observer

    Row = dict[str, Any]

__all__ = ["main"]

_UNLIMITED = Sampling(max_tokens=10**9)


class CostSettings(CommandSettings):
    """What every micro-benchmark takes."""

    out: Path | None = Field(default=None, description="file for the figures, as JSON lines")


def _script(chunks: int, tokens: int) -> str:
    """An answer with some text, chunks of so many tokens (of a `WordTokenizer`), a sync, and text again."""
    body = "word" + " word" * (tokens - 1)
    promises = (f'<promise topic="part {k}" tokens="{tokens}"/><async>{body}</async>' for k in range(chunks))
    return f"Here it comes. {' '.join(promises)}<sync/> {body}"


# The interpreter ----------------------------------------------------------------------------------

_CHUNKS, _TOKENS = 8, 200
_WRITTEN = 20
"""Tokens that each open thread has put out when its memory is measured."""


class InterpreterSettings(CostSettings):
    """How much is decoded."""

    answers: int = Field(default=32, ge=1, description="answers in a round")
    together: tuple[Count, ...] = Field(default=(1, 16), description="answers that run at the same time")
    rounds: int = Field(default=5, ge=1, description="rounds, after one that warms up")
    telemetry: bool = Field(default=False, description="with metrics, traces and logs, which go nowhere")
    crowd: int = Field(default=100_000, ge=8, description="threads open at once")


def _interpreter(settings: InterpreterSettings) -> list[list[Row]]:
    observers = _telemetry() if settings.telemetry else []
    return [
        [_token_cost(settings, together, observers) for together in settings.together],
        [_crowd(settings.crowd // _CHUNKS)],
    ]


def _telemetry() -> list[Observer]:
    from opentelemetry.sdk.trace import TracerProvider
    from prometheus_client import CollectorRegistry

    from pasta_async.telemetry.logs import Logs
    from pasta_async.telemetry.metrics import Metrics
    from pasta_async.telemetry.tracing import Tracing

    return [Metrics(CollectorRegistry()), Tracing(TracerProvider()), Logs()]


def _token_cost(settings: InterpreterSettings, together: int, observers: Sequence[Observer]) -> Row:
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


def _crowd(answers: int) -> Row:
    """Memory and CPU time of a process with so many threads open: what they take of it, and to get there.

    The garbage collector is off meanwhile: its passes would take longer than all else.
    """
    asyncio.run(_hold_open(1))  # loads what is loaded late
    gc.collect()
    before, began = memory_of(os.getpid(), "VmRSS"), process_time()
    gc.disable()
    try:
        held, opened = asyncio.run(_hold_open(answers))
    finally:
        gc.enable()
    threads = answers * _CHUNKS
    return {
        "open threads": threads,
        "answers": answers,
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
        held = memory_of(os.getpid(), "VmRSS")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return held, opened


def _limits(threads: int) -> Limits:
    return Limits(max_threads=threads, client_threads=threads)


# The server ---------------------------------------------------------------------------------------


class ServerSettings(CostSettings):
    """What is asked of the server."""

    streams: Count = Field(default=1000, description="streams at once")
    latency: Positive = Field(default=1.0, description="seconds that a token takes there")


def _server(settings: ServerSettings) -> list[list[Row]]:
    return [[asyncio.run(_many_streams(settings))]]


async def _read_stream(http: httpx.AsyncClient, url: str) -> tuple[float, float, bool]:
    """Seconds to the first text and to the end of a stream, and whether it came to its end."""
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Go."}], "stream": True}
    began, first, end = perf_counter(), 0.0, b""
    async with http.stream("POST", f"{url}/v1/chat/completions", json=body) as reply:
        reply.raise_for_status()
        async for piece in reply.aiter_bytes():
            first = first or perf_counter() - began
            end = (end + piece)[-64:]
    return first, perf_counter() - began, b"[DONE]" in end


async def _many_streams(settings: ServerSettings) -> Row:
    """Streams at once, of a scripted model whose tokens take `latency` seconds, over real sockets."""
    with _served(settings.latency) as (url, process):
        async with httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=None)) as http:
            alone = await _read_stream(http, url)  # and everything is loaded
            before = memory_of(process, "VmHWM")
            streams = (_read_stream(http, url) for _ in range(settings.streams))
            read = await asyncio.gather(*streams)
        peak = memory_of(process, "VmHWM")
    row: Row = {"streams": len(read), "complete": sum(done for *_, done in read), "one alone s": alone[1]}
    for name, place in (("first text s", 0), ("whole s", 1)):
        row |= {
            f"{name}, p{share}": quantile([one[place] for one in read], share / 100) for share in (50, 99)
        }
    return {**row, "server MiB": peak / 2**20, "KiB a stream": (peak - before) / len(read) / 1024}


@contextmanager
def _served(latency: float) -> Generator[tuple[str, int]]:
    """A server in a process of its own, of a scripted model: its URL and its id."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_serve, args=(listener, latency), daemon=True)
    process.start()
    try:
        httpx.get(f"{url}/health", timeout=300).raise_for_status()
        yield url, process.pid or os.getpid()
    finally:
        process.terminate()
        process.join()
        listener.close()


def _serve(listener: socket.socket, latency: float) -> None:
    from pasta_async.server import ServerSettings, create_app
    from pasta_async.server.app import uvicorn_server

    model = ScriptedBackend(_script(4, 20), latency=latency, clock=REAL_CLOCK, record=False)
    settings = ServerSettings(max_answers=100_000, log_level="error")
    server = uvicorn_server(create_app(model, settings, limits=Limits(client_threads=100_000)), settings)
    asyncio.run(server.serve(sockets=[listener]))


def _run(work: Callable[[Any], list[list[Row]]], settings: CostSettings) -> str:
    where = {"settings": settings.model_dump(mode="json"), **environment()}
    tables = work(settings)
    if settings.out:
        write_rows(settings.out, [where, *(row for table in tables for row in table)])
    return "\n\n".join(map(markdown_table, tables))


_COMMANDS = {
    "interpreter": command(InterpreterSettings, partial(_run, _interpreter), "costs interpreter", __doc__),
    "server": command(ServerSettings, partial(_run, _server), "costs server", __doc__),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the micro-benchmark that the first argument names."""
    name, *others = (sys.argv[1:] if arguments is None else arguments) or [""]
    if name not in _COMMANDS:
        sys.stderr.write(f"name one of these, and --help for its options: {', '.join(_COMMANDS)}\n")
        sys.exit(0 if name == "--help" else 2)
    _COMMANDS[name](others)


if __name__ == "__main__":
    main()
