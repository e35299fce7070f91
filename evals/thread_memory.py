"""Memory of open threads: many answers are held open at once by a backend that stalls."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import tracemalloc
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasta_async import Client
from pasta_async.evals.workload import UNLIMITED, document, limits, requests
from pasta_async.testing import Fault, ScriptedBackend

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from pasta_async.protocol import DecodeRequest

    Open = Callable[[], Awaitable[None]]
    Setting = Callable[[int, int, str], AbstractAsyncContextManager[tuple[ScriptedBackend, list[Open]]]]

__all__ = ["ThreadMemory", "measure_memory"]

_WRITTEN = 20
"""Tokens that each thread has put out when memory is measured."""


@dataclass(frozen=True)
class ThreadMemory:
    """Bytes for each of some threads that are all open at once; what their answers need is in it."""

    answers: int
    threads: int
    """Open threads over all answers, mains (which wait) not counted."""
    prompt_tokens: int
    """Tokens of each prompt. A request's ids are its whole context, so a thread holds them all."""
    allocated: float
    """Interpreter, streams, readers and scripted backend, by Python's count (tracemalloc)."""
    backend: float
    """The same without an interpreter: what the scripted backend and a task for each thread allocate."""
    resident: float
    """Growth of the resident set, by the system's count."""


def measure_memory(*, answers: int = 1250, chunks: int = 8, prompt_words: int = 16) -> ThreadMemory:
    """Memory of `answers * chunks` open threads; each of the counts is taken in a fresh process."""
    shape = (answers, chunks, "word" + " word" * (prompt_words - 1))
    threads = answers * chunks
    (resident,) = _in_fresh_process(_resident_growth, *shape)
    allocated, backend = _in_fresh_process(_allocations, *shape)
    return ThreadMemory(
        answers, threads, prompt_words + 3, allocated / threads, backend / threads, resident / threads
    )


def _in_fresh_process(work: Callable[..., list[int]], *shape: Any) -> list[int]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, shape)


def _resident_growth(answers: int, chunks: int, prompt: str) -> list[int]:
    return [asyncio.run(_grown(answers, chunks, prompt, _readers, _resident))]


def _allocations(answers: int, chunks: int, prompt: str) -> list[int]:
    """With the interpreter, and without."""
    tracemalloc.start()
    return [asyncio.run(_grown(answers, chunks, prompt, held, _allocated)) for held in (_readers, _players)]


async def _grown(answers: int, chunks: int, prompt: str, setting: Setting, count: Callable[[], int]) -> int:
    """Bytes that all threads take together."""
    async with setting(1, chunks, prompt) as (backend, work):  # loads what is loaded late
        await _hold(backend, work, chunks, count)
    async with setting(answers, chunks, prompt) as (backend, work):
        gc.collect()
        before = count()
        return await _hold(backend, work * answers, answers * chunks, count) - before


async def _hold(backend: ScriptedBackend, work: list[Open], threads: int, count: Callable[[], int]) -> int:
    """Bytes in use while all threads are open."""
    tasks = [asyncio.ensure_future(one()) for one in work]
    while sum(len(play.ids) == _WRITTEN for play in backend.open) < threads:
        await asyncio.sleep(0.05)
        if broken := [task for task in tasks if task.done()]:
            broken[0].result()
    gc.collect()
    held = count()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return held


def _stalling(answers: int, chunks: int) -> ScriptedBackend:
    """A backend whose chunks stop after some tokens and stay open."""
    faults = [Fault(k, _WRITTEN, "stall", times=answers) for k in range(1, chunks + 1)]
    return ScriptedBackend(document(chunks, 10 * _WRITTEN), faults=faults, record=False)


@asynccontextmanager
async def _readers(
    answers: int, chunks: int, prompt: str
) -> AsyncGenerator[tuple[ScriptedBackend, list[Open]]]:
    """Somebody who reads an answer's stream."""
    backend = _stalling(answers, chunks)

    async def read() -> None:
        async with client.stream(prompt, sampling=UNLIMITED) as stream:
            async for _ in stream:
                pass

    async with Client(backend, limits=limits((chunks + 1) * answers)) as client:
        yield backend, [read]


@asynccontextmanager
async def _players(
    answers: int, chunks: int, prompt: str
) -> AsyncGenerator[tuple[ScriptedBackend, list[Open]]]:
    """The requests of an answer's chunks, each iterated alone."""
    backend = _stalling(answers, chunks)
    sent = await requests(backend, document(chunks, 10 * _WRITTEN), prompt)

    def player(request: DecodeRequest) -> Open:
        async def play() -> None:
            async with aclosing(backend.decode(request)) as pieces:
                async for _ in pieces:
                    pass

        return play

    yield backend, [player(request) for request in sent if request.thread]


def _allocated() -> int:
    return tracemalloc.get_traced_memory()[0]


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
