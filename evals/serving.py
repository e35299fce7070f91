"""What the server costs: an answer through it against the library in process, and a thousand streams at once.

    python -m pasta_async.evals serving
    python -m pasta_async.evals serving --backend http://127.0.0.1:30000 --streams 0

With an SGLang server the second also compares with its own OpenAI endpoint, for the same tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import socket
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import httpx

from pasta_async import Client, Limits
from pasta_async.cli.command import ending
from pasta_async.clock import REAL_CLOCK
from pasta_async.evals.command import count, positive
from pasta_async.evals.statistics import quantile
from pasta_async.evals.workload import document
from pasta_async.testing import ScriptedBackend

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

__all__ = ["main", "measure_costs", "measure_streams"]

_PROMPT = (
    "Add up the fruits. Mireko has 2 apples, 3 plums and 2 figs. Sotani has 4 pears, 2 lemons and 5 melons."
)
_CHUNKS, _TOKENS = 4, 20


@ending()
def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print it."""
    parser = argparse.ArgumentParser(prog="serving", description="What the server costs.")
    parser.add_argument("--backend", default="local:", help="for the costs of an answer")
    parser.add_argument("--rounds", type=count, default=20, help="answers of each way")
    parser.add_argument("--streams", type=int, default=1000, help="streams at once; 0: skip")
    parser.add_argument("--latency", type=positive, default=1.0, help="seconds that a token takes there")
    options = parser.parse_args(arguments)
    for name, seconds in asyncio.run(measure_costs(options.backend, options.rounds)).items():
        print(f"{name:40} {1000 * median(seconds):8.1f} ms (median of {len(seconds)})")
    if options.streams:
        print(measure_streams(options.streams, options.latency))


# An answer -------------------------------------------------------------------------------------------------


async def measure_costs(backend: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of a whole streamed answer, each way in turn, so that whatever else goes on hits all alike."""
    seconds: dict[str, list[float]] = {}
    with _served(backend) as (url, _):
        async with Client(backend) as client, httpx.AsyncClient(timeout=300) as http:
            own = {"model": await _model(http, url)}
            ways = {
                "library": lambda: _by_library(client, baseline=False),
                "server": lambda: _by_http(http, url, own),
                "library, baseline": lambda: _by_library(client, baseline=True),
                "server, baseline": lambda: _by_http(http, url, {**own, "pasta": {"baseline": True}}),
            }
            if backend.startswith("http"):
                body = {"model": await _model(http, backend), "chat_template_kwargs": {"pasta": False}}
                ways["SGLang's own endpoint, baseline"] = lambda: _by_http(http, backend, body)
            for turn in range(rounds + 1):
                for name, way in ways.items():
                    began = perf_counter()
                    await way()
                    if turn:  # the first warms up
                        seconds.setdefault(name, []).append(perf_counter() - began)
    return seconds


async def _by_library(client: Client, *, baseline: bool) -> None:
    async with client.stream(_PROMPT, baseline=baseline) as answer:
        await answer.result()


async def _model(http: httpx.AsyncClient, url: str) -> str:
    return (await http.get(f"{url}/v1/models")).json()["data"][0]["id"]


async def _by_http(http: httpx.AsyncClient, url: str, fields: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": _PROMPT}]
    body = {"messages": messages, "temperature": 0, "stream": True, **fields}
    async with http.stream("POST", f"{url}/v1/chat/completions", json=body) as reply:
        reply.raise_for_status()
        async for _ in reply.aiter_bytes():
            pass


# Many streams ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Streams:
    """How it went with many streams at once."""

    count: int
    complete: int
    ideal: float
    """Seconds that one stream takes alone, by its script."""
    first: list[float]
    """Seconds to each stream's first text."""
    whole: list[float]
    """Seconds of each whole stream."""
    memory_before: int
    memory_peak: int
    """Of the server's process, bytes."""

    def __str__(self) -> str:
        rows = [f"{self.complete} of {self.count} streams complete; alone one takes {self.ideal:.1f} s"]
        for name, values in (("first text", self.first), ("whole stream", self.whole)):
            told = ", ".join(f"p{share:g} {quantile(values, share / 100):.2f} s" for share in (50, 95, 99))
            rows.append(f"{name}: {told}")
        grown = (self.memory_peak - self.memory_before) / self.count / 1024
        rows.append(
            f"memory of the server: {self.memory_peak / 2**20:.0f} MiB at most, {grown:.0f} KiB for a stream"
        )
        return "\n".join(rows)


def measure_streams(count: int, latency: float) -> Streams:
    """So many streams at once, of a scripted model whose tokens take their time, read over real sockets.

    Args:
        count: Streams.
        latency: Seconds that a token takes.
    """
    text = document(_CHUNKS, _TOKENS)
    with _served("scripted", latency=latency) as (url, process):
        asyncio.run(_read(url))  # everything is loaded
        before, _ = _memory(process)
        times = asyncio.run(_read_all(url, count))
        _, peak = _memory(process)
    ideal = asyncio.run(_alone(text, latency))
    done = [(first, whole) for first, whole, complete in times if complete]
    return Streams(count, len(done), ideal, [one for one, _ in done], [two for _, two in done], before, peak)


async def _alone(text: str, latency: float) -> float:
    backend = ScriptedBackend(text, latency=latency)
    async with Client(backend, clock=backend.clock) as client:
        return (await client.generate("Go.")).elapsed


async def _read_all(url: str, count: int) -> list[tuple[float, float, bool]]:
    return await asyncio.gather(*(_read(url) for _ in range(count)))


async def _read(url: str) -> tuple[float, float, bool]:
    """Seconds to the first text and to the end of a stream, and whether it came to its end."""
    body = json.dumps({"model": "scripted", "messages": [{"role": "user", "content": "Go."}], "stream": True})
    host = httpx.URL(url)
    began = perf_counter()
    reader, writer = await asyncio.open_connection(host.host, host.port)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host.host}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write((head + body).encode())
    first, end = 0.0, b""
    while piece := await reader.read(2**16):
        if not first and b"data:" in piece:
            first = perf_counter() - began
        end = (end + piece)[-64:]
    writer.close()
    return first, perf_counter() - began, b"[DONE]" in end


def _memory(process: int) -> tuple[int, int]:
    """Bytes of a process now and at most (Linux)."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    now, most = (int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    return now, most


# The server ------------------------------------------------------------------------------------------------


@contextmanager
def _served(backend: str, latency: float = 0.0) -> Generator[tuple[str, int]]:
    """A server in a process of its own: its URL and its id."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_serve, args=(listener, backend, latency), daemon=True)
    process.start()
    try:
        httpx.get(f"{url}/health", timeout=300).raise_for_status()
        yield url, process.pid or os.getpid()
    finally:
        process.terminate()
        process.join()
        listener.close()


def _serve(listener: socket.socket, backend: str, latency: float) -> None:
    from pasta_async.server import ServerSettings, create_app
    from pasta_async.server.run import uvicorn_server

    model: str | ScriptedBackend = backend
    if backend == "scripted":
        script = document(_CHUNKS, _TOKENS)
        model = ScriptedBackend(script, latency=latency, clock=REAL_CLOCK, record=False)
    settings = ServerSettings(max_answers=100_000, log_level="error")
    server = uvicorn_server(create_app(model, settings, limits=Limits(client_threads=100_000)), settings)
    asyncio.run(server.serve(sockets=[listener]))


if __name__ == "__main__":
    main()
