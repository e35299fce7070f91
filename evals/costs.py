"""Micro-benchmarks: what single parts and decisions cost.

    python -m pasta_async.evals.costs interpreter       CPU for a streamed token, memory for an open thread
    python -m pasta_async.evals.costs server            an answer through the server, many streams at once
    python -m pasta_async.evals.costs streams --backend http://127.0.0.1:30000     chunks streamed, or whole
    python -m pasta_async.evals.costs forks --backend http://127.0.0.1:30000       cut at a promise, or not
    python -m pasta_async.evals.costs packing           training on packed views against one by one

`interpreter` runs on a scripted backend that takes no time; what that costs is measured alone and reported
apart. `server` compares, with an SGLang server as its backend, with that server's own OpenAI endpoint too.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import multiprocessing
import os
import socket
import tracemalloc
from contextlib import aclosing, contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

import httpx
from numpy import quantile
from pydantic import Field

from pasta_async import Client, DecodeRequest, Limits, Sampling
from pasta_async.clock import REAL_CLOCK
from pasta_async.evals import fork_modes
from pasta_async.evals.commands import Count, Positive, Settings, command, run_sub_command
from pasta_async.evals.documents import held_out
from pasta_async.evals.engines import cold_backend
from pasta_async.evals.records import environment, markdown_table, write_rows
from pasta_async.evals.statistics import estimate, format_estimate
from pasta_async.testing import Fault, ScriptedBackend

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Sequence

    from pasta_async import Backend
    from pasta_async.observers import Observer

    Work = Callable[[], Awaitable[None]]

__all__ = ["main"]

_UNLIMITED = Sampling(max_tokens=10**9)


def _script(chunks: int, tokens: int) -> str:
    """An answer with some text, chunks of so many tokens (of a `WordTokenizer`), a sync, and text again."""
    body = "word" + " word" * (tokens - 1)
    promises = (f'<promise topic="part {k}" tokens="{tokens}"/><async>{body}</async>' for k in range(chunks))
    return f"Here it comes. {' '.join(promises)}<sync/> {body}"


def _report(out: Path | None, rows: Sequence[dict[str, Any]], where: dict[str, Any]) -> None:
    print(markdown_table(rows), end="\n\n", flush=True)
    if out:
        write_rows(out, [where, *rows])


# The interpreter ----------------------------------------------------------------------------------

_CHUNKS, _TOKENS = 8, 200
_WRITTEN = 20
"""Tokens that each open thread has put out when its memory is measured."""


class InterpreterSettings(Settings):
    """How much is decoded."""

    answers: int = Field(default=32, ge=1, description="answers in a round")
    together: tuple[Count, ...] = Field(default=(1, 16), description="answers that run at the same time")
    rounds: int = Field(default=5, ge=1, description="rounds, after one that warms up")
    telemetry: bool = Field(default=False, description="with metrics, traces and logs, which go nowhere")
    threads: int = Field(default=10_000, ge=8, description="threads that are open at once")
    prompt_words: tuple[Count, ...] = Field(default=(16, 1000), description="words of the prompt")
    out: Path | None = Field(default=None, description="file for the figures of a token, as JSON lines")


def _interpreter(settings: InterpreterSettings) -> None:
    where = environment()
    observers = _telemetry() if settings.telemetry else []
    rows = [_token_cost(settings, together, observers) for together in settings.together]
    memory = [_thread_memory(settings.threads // _CHUNKS, words) for words in settings.prompt_words]
    print(markdown_table(rows), end="\n\n")
    print(markdown_table(memory))
    if settings.out:
        write_rows(settings.out, [where, *rows, *memory])


def _telemetry() -> list[Observer]:
    from opentelemetry.sdk.trace import TracerProvider
    from prometheus_client import CollectorRegistry

    from pasta_async.telemetry.logs import Logs
    from pasta_async.telemetry.metrics import Metrics
    from pasta_async.telemetry.tracing import Tracing

    return [Metrics(CollectorRegistry()), Tracing(TracerProvider()), Logs()]


def _token_cost(
    settings: InterpreterSettings, together: int, observers: Sequence[Observer]
) -> dict[str, Any]:
    """CPU microseconds of a streamed token: medians over rounds that alternate with the backend alone."""
    totals, alone = list[float](), list[float]()
    tokens = events = 0
    for _ in range(settings.rounds + 1):
        seconds, tokens, events = asyncio.run(_stream_answers(settings.answers, together, observers))
        totals.append(1e6 * seconds / tokens)
        alone.append(1e6 * asyncio.run(_decode_alone(settings.answers, together)) / tokens)
    total, backend = median(totals[1:]), median(alone[1:])
    return {
        "answers at once": together,
        "threads at once": together * _CHUNKS,
        "tokens": tokens,
        "events": events,
        "us a token": total,
        "of it backend": backend,
        "interpreter": total - backend,
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
        seconds = await _cpu_seconds(read, answers, together)
    return seconds, tokens, events


async def _decode_alone(answers: int, together: int) -> float:
    """CPU seconds of the same requests without an interpreter, with a task for each thread."""
    script = _script(_CHUNKS, _TOKENS)
    backend = ScriptedBackend(script, record=False)
    recorder = ScriptedBackend(script, tokenizer=backend.tokenizer)
    async with Client(recorder) as client:
        await client.generate("Go.", sampling=_UNLIMITED)
    threads = {
        one.thread: [r for r in recorder.requests if r.thread == one.thread] for one in recorder.requests
    }

    async def decode(thread: int) -> None:
        for request in threads[thread]:
            await _count_tokens(backend, request)

    async def answer() -> None:
        await asyncio.gather(*map(decode, threads))

    return await _cpu_seconds(answer, answers, together)


async def _cpu_seconds(work: Work, times: int, together: int) -> float:
    gc.collect()
    began = process_time()
    for _ in range(0, times, together):
        await asyncio.gather(*(work() for _ in range(together)))
    return process_time() - began


def _thread_memory(answers: int, prompt_words: int) -> dict[str, Any]:
    """Bytes that Python allocates for each open thread, what its answer needs included."""
    prompt = "word" + " word" * (prompt_words - 1)
    tracemalloc.start()
    asyncio.run(_hold_open(1, prompt))  # loads what is loaded late
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    held = asyncio.run(_hold_open(answers, prompt)) - before
    tracemalloc.stop()
    threads = answers * _CHUNKS
    return {
        "open threads": threads,
        "answers": answers,
        "prompt words": prompt_words,
        "KB a thread": held / threads / 1000,
    }


async def _hold_open(answers: int, prompt: str) -> int:
    """Bytes in use while all threads of so many answers are open, on a backend whose chunks stall."""
    faults = [Fault(k, _WRITTEN, "stall", times=answers) for k in range(1, _CHUNKS + 1)]
    backend = ScriptedBackend(_script(_CHUNKS, 10 * _WRITTEN), faults=faults, record=False)

    async def read() -> None:
        async with client.stream(prompt, sampling=_UNLIMITED) as stream:
            async for _ in stream:
                pass

    async with Client(backend, limits=_limits((_CHUNKS + 1) * answers)) as client:
        tasks = [asyncio.create_task(read()) for _ in range(answers)]
        while sum(len(play.ids) == _WRITTEN for play in backend.open) < answers * _CHUNKS:
            await asyncio.sleep(0.05)
            if broken := [task for task in tasks if task.done()]:
                broken[0].result()
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return held


def _limits(threads: int) -> Limits:
    return Limits(max_threads=threads, client_threads=threads)


# Streams of chunks --------------------------------------------------------------------------------


class StreamSettings(Settings):
    """How many requests are read in both ways."""

    backend: str = Field(description="URL of an SGLang server")
    at_once: tuple[Count, ...] = Field(default=(1, 4, 16), description="requests at once")
    tokens: int = Field(default=64, ge=1, description="tokens of each request, at most")
    rounds: int = Field(default=8, ge=1, description="rounds each way, in the order A B B A")
    out: Path | None = Field(default=None, description="file for the figures, as JSON lines")


def _streams(settings: StreamSettings) -> None:
    where = environment()
    _report(settings.out, asyncio.run(_stream_rows(settings)), {"backend": settings.backend, **where})


async def _stream_rows(settings: StreamSettings) -> list[dict[str, Any]]:
    async with cold_backend(settings.backend) as backend:
        prompt = held_out(["describe"], 1)[0].text
        ids = tuple(await backend.encode_chat([{"role": "user", "content": prompt}], {"pasta": False}))
        return [await _stream_row(backend, ids, count, settings) for count in settings.at_once]


async def _stream_row(
    backend: Backend, ids: tuple[int, ...], at_once: int, settings: StreamSettings
) -> dict[str, Any]:
    """The same requests streamed and as whole replies; CPU time is that of this process."""
    taken: dict[bool, list[tuple[int, float, float]]] = {True: [], False: []}
    for number in range(settings.rounds + 1):
        for stream in (True, False) if number % 2 else (False, True):
            requests = [
                DecodeRequest(f"chunk {k}", 1, ids, settings.tokens, Sampling(), stream=stream)
                for k in range(at_once)
            ]
            seconds, cpu = perf_counter(), process_time()
            tokens = sum(await asyncio.gather(*(_count_tokens(backend, one) for one in requests)))
            if number:  # the first round warms up
                taken[stream].append((tokens, perf_counter() - seconds, process_time() - cpu))
    ratios = [whole[1] / streamed[1] for streamed, whole in zip(taken[True], taken[False], strict=True)]
    costs = [1e6 * sum(cpu for *_, cpu in one) / sum(tokens for tokens, *_ in one) for one in taken.values()]
    return {
        "requests at once": at_once,
        "tokens": sum(tokens for tokens, *_ in taken[True]),
        "CPU us a token, streamed": costs[0],
        "CPU us a token, whole": costs[1],
        "seconds whole / streamed": format_estimate(estimate(ratios), ".2f"),
    }


async def _count_tokens(backend: Backend, request: DecodeRequest) -> int:
    async with aclosing(backend.decode(request)) as pieces:
        return sum([len(piece.ids) async for piece in pieces])


# The server ---------------------------------------------------------------------------------------

_PROMPT = (
    "Add up the fruits. Mireko has 2 apples, 3 plums and 2 figs. Sotani has 4 pears, 2 lemons and 5 melons."
)
_STREAMED = _script(4, 20)


class ServerSettings(Settings):
    """What is asked of the server."""

    backend: str = Field(default="local:", description="for the costs of an answer")
    rounds: int = Field(default=20, ge=1, description="answers of each way")
    streams: int = Field(default=1000, ge=0, description="streams at once; 0: skip")
    latency: Positive = Field(default=1.0, description="seconds that a token takes there")
    out: Path | None = Field(default=None, description="file for the figures, as JSON lines")


def _server(settings: ServerSettings) -> None:
    where = environment()
    rows = asyncio.run(_answer_rows(settings.backend, settings.rounds))
    _report(settings.out, rows, {"backend": settings.backend, **where})
    if settings.streams:
        print(markdown_table([_many_streams(settings.streams, settings.latency)]))


async def _answer_rows(backend: str, rounds: int) -> list[dict[str, Any]]:
    """Median seconds of a whole streamed answer, each way in turn, so that other load hits all alike."""
    seconds: dict[str, list[float]] = {}
    with _served(backend) as (url, _):
        async with Client(backend) as client, httpx.AsyncClient(timeout=300) as http:
            own = {"model": await _model(http, url)}
            ways: dict[str, Work] = {
                "library": lambda: _ask_library(client, baseline=False),
                "server": lambda: _ask_http(http, url, own),
                "library, baseline": lambda: _ask_library(client, baseline=True),
                "server, baseline": lambda: _ask_http(http, url, {**own, "pasta": {"baseline": True}}),
            }
            if backend.startswith("http"):
                body = {"model": await _model(http, backend), "chat_template_kwargs": {"pasta": False}}
                ways["SGLang's own endpoint, baseline"] = lambda: _ask_http(http, backend, body)
            for turn in range(rounds + 1):
                for name, way in ways.items():
                    began = perf_counter()
                    await way()
                    if turn:  # the first warms up
                        seconds.setdefault(name, []).append(perf_counter() - began)
    return [
        {"way": name, "answers": len(taken), "ms": 1000 * median(taken)} for name, taken in seconds.items()
    ]


async def _ask_library(client: Client, *, baseline: bool) -> None:
    async with client.stream(_PROMPT, baseline=baseline) as answer:
        await answer.result()


async def _model(http: httpx.AsyncClient, url: str) -> str:
    return (await http.get(f"{url}/v1/models")).json()["data"][0]["id"]


async def _ask_http(http: httpx.AsyncClient, url: str, fields: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": _PROMPT}]
    body = {"messages": messages, "temperature": 0, "stream": True, **fields}
    async with http.stream("POST", f"{url}/v1/chat/completions", json=body) as reply:
        reply.raise_for_status()
        async for _ in reply.aiter_bytes():
            pass


def _many_streams(count: int, latency: float) -> dict[str, Any]:
    """So many streams at once, of a scripted model whose tokens take `latency` seconds, over real sockets."""
    with _served("scripted", latency=latency) as (url, process):
        asyncio.run(_read_streams(url, 1))  # everything is loaded
        before = _peak_memory(process)
        read = asyncio.run(_read_streams(url, count))
        peak = _peak_memory(process)
    done = [(first, whole) for first, whole, complete in read if complete]
    row: dict[str, Any] = {
        "streams": count,
        "complete": len(done),
        "seconds of one alone": asyncio.run(_seconds_alone(latency)),
    }
    for name, taken in (("first text s", [one for one, _ in done]), ("whole s", [two for _, two in done])):
        row |= {f"{name}, p{share}": quantile(taken, share / 100) for share in (50, 99)}
    return {**row, "server MiB": peak / 2**20, "KiB a stream": (peak - before) / count / 1024}


def _peak_memory(process: int) -> int:
    """Resident bytes of a process at most (Linux)."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


async def _seconds_alone(latency: float) -> float:
    backend = ScriptedBackend(_STREAMED, latency=latency)
    async with Client(backend, clock=backend.clock) as client:
        return (await client.generate("Go.")).elapsed


async def _read_streams(url: str, count: int) -> list[tuple[float, float, bool]]:
    """Seconds to the first text and to the end of each stream, and whether it came to its end."""
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Go."}], "stream": True}

    async def read() -> tuple[float, float, bool]:
        began, first, end = perf_counter(), 0.0, b""
        async with http.stream("POST", f"{url}/v1/chat/completions", json=body) as reply:
            async for piece in reply.aiter_bytes():
                first = first or perf_counter() - began
                end = (end + piece)[-64:]
        return first, perf_counter() - began, b"[DONE]" in end

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=600, limits=limits) as http:
        return await asyncio.gather(*(read() for _ in range(count)))


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
    from pasta_async.server.app import uvicorn_server

    model: str | ScriptedBackend = backend
    if backend == "scripted":
        model = ScriptedBackend(_STREAMED, latency=latency, clock=REAL_CLOCK, record=False)
    settings = ServerSettings(max_answers=100_000, log_level="error")
    server = uvicorn_server(create_app(model, settings, limits=Limits(client_threads=100_000)), settings)
    asyncio.run(server.serve(sockets=[listener]))


# The commands -------------------------------------------------------------------------------------


def _packing(arguments: Sequence[str] | None) -> None:
    importlib.import_module("pasta_async.evals.packed_training").main(arguments)  # needs the extra `train`


_COMMANDS = {
    "interpreter": command(InterpreterSettings, _interpreter, "costs interpreter", __doc__),
    "server": command(ServerSettings, _server, "costs server", __doc__),
    "streams": command(StreamSettings, _streams, "costs streams", __doc__),
    "forks": fork_modes.main,
    "packing": _packing,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the micro-benchmark that the first argument names."""
    run_sub_command(_COMMANDS, arguments)


if __name__ == "__main__":
    main()
