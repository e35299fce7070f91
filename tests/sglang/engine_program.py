"""A program that uses SGLang's engine in its own process, and says what became of the process.

usage: engine_program.py MODEL PROMPTS RESULT (JSON files)
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import on_cpu  # noqa: F401  # pyright: ignore[reportUnusedImport] - stands in for the GPU packages

from pasta_async import BackendError, Client, InvalidRequestError
from pasta_async.backends.local import LocalBackend
from pasta_async.backends.sglang import EngineBackend
from pasta_async.options import Sampling
from pasta_async.protocol import Backend, DecodeRequest


async def answers(backend: Backend, prompts: list[str]) -> list[Any]:
    async with Client(backend) as client:
        return await asyncio.gather(*(client.generate(prompt) for prompt in prompts))


async def first_loop(backend: EngineBackend, local: LocalBackend, prompts: list[str]) -> dict[str, Any]:
    """Answer all prompts; leave one request early."""
    here = await answers(local, prompts)
    await local.aclose()
    there = await answers(backend, prompts)
    said: dict[str, Any] = {
        "written": [generation.document.format() for generation in there],
        "local": [generation.document.format() for generation in here],
        "caches": [
            {
                "prompt": generation.usage.prompt_tokens,
                "threads": [[list(sent) for sent in requests(thread)] for thread in generation.threads],
            }
            for generation in there
        ],
    }
    try:
        await anext(backend.decode(DecodeRequest("a", 0, (10**6,), 5, Sampling())))
    except InvalidRequestError as error:
        said["refused"] = type(error).__name__
    task = asyncio.create_task(answers(backend, prompts[:1]))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    said["cancelled"] = task.cancelled()
    return said


def requests(thread: Any) -> list[tuple[int, int, int]]:
    return [(sent.prompt_tokens, sent.cached_tokens, sent.completion_tokens) for sent in thread.requests]


async def second_loop(backend: EngineBackend, prompts: list[str]) -> str:
    """The same backend under another event loop."""
    [generation] = await answers(backend, prompts[:1])
    await backend.aclose()
    return generation.document.format()


async def refusal(folder: Path) -> str:
    """What is said of a folder that cannot be used."""
    backend = EngineBackend(folder, device="cpu")
    try:
        await backend.connect()
    except BackendError as error:
        return str(error)
    finally:
        await backend.aclose()
    return ""


def broken_copy(model: Path, folder: Path) -> Path:
    """A model whose weights are cut off: a worker of the engine fails on it."""
    copy = shutil.copytree(model, folder / "broken")
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    return copy


def main(model: str, prompts: str, result: str) -> None:
    """Run everything and write what happened."""
    questions: list[str] = json.loads(Path(prompts).read_text())
    policy = asyncio.get_event_loop_policy()  # pyright: ignore[reportDeprecated]
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    backend = EngineBackend(model, device="cpu", max_total_tokens=65536)
    said = asyncio.run(first_loop(backend, LocalBackend(model, dtype="float32"), questions))
    said["again"] = asyncio.run(second_loop(backend, questions))
    folder = Path(result).parent
    said["no model"] = asyncio.run(refusal(folder))
    said["broken"] = asyncio.run(refusal(broken_copy(Path(model), folder)))
    said["policy kept"] = asyncio.get_event_loop_policy() is policy  # pyright: ignore[reportDeprecated]
    said["handlers kept"] = all(signal.getsignal(number) == kept for number, kept in handlers.items())
    said["children left"] = len(multiprocessing.active_children())
    said["other child alive"] = other.poll() is None
    other.communicate(b"\n")
    Path(result).write_text(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
