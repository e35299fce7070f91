"""Start, ask and stop a real SGLang server."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from pasta_async import Sampling
from pasta_async.backends.sglang import SGLangBackend
from pasta_async.backends.sglang import command as sglang_command
from pasta_async.protocol import DecodeRequest

START_SECONDS = 420
"""A free machine needs 15 s, one that is busy with other things far more."""

FLAGS = ("--skip-server-warmup", "--enable-custom-logit-processor")
"""No test request at the start; answers may be forced."""

ENDLESS: Mapping[str, Any] = {"sampling_params": {"ignore_eos": True}}
"""`DecodeRequest.extra` of a request that goes on to its last token."""


class SGLangServer(NamedTuple):
    """A running SGLang server."""

    url: str
    model: Path
    block: int = 1
    endless: Mapping[str, Any] = ENDLESS

    def running(self) -> int:
        """Requests that it decodes or holds in its queue."""
        return self._count("num_running_reqs", "num_waiting_reqs")

    def held(self) -> int:
        """Those requests, and KV slots that are in use, other than the prefix cache's."""
        return self._count("num_running_reqs", "num_waiting_reqs", "num_used_tokens")

    def _count(self, *names: str) -> int:
        loads: list[dict[str, Any]] = httpx.get(f"{self.url}/v1/loads", timeout=30).json()["loads"]
        return sum(load[name] for load in loads for name in names)

    def flush(self) -> None:
        """Empty the prefix cache."""
        httpx.post(f"{self.url}/flush_cache", params={"timeout": 10}).raise_for_status()


class Forked(NamedTuple):
    """A request that was forked while it ran."""

    main: list[int]
    """Its own tokens."""
    outputs: list[list[int]]
    """Tokens of its forks."""
    computed: list[int]
    """Tokens that each fork found nowhere in the prefix cache."""


def greedy(ids: Sequence[int], tokens: int, *, thread: int = 0, answer: str = "a") -> DecodeRequest:
    """A greedy request that goes on to its last token."""
    return DecodeRequest(answer, thread, tuple(ids), tokens, Sampling(), extra=ENDLESS)


async def read(backend: SGLangBackend, wanted: DecodeRequest) -> tuple[list[int], int]:
    """The ids, and how many tokens of the context were computed."""
    pieces = [piece async for piece in backend.decode(wanted)]
    assert pieces[-1].cached_tokens is not None
    return [i for piece in pieces for i in piece.ids], len(wanted.ids) - pieces[-1].cached_tokens


async def fork_running(
    backend: SGLangBackend, prompt: Sequence[int], marks: Sequence[int], *, answer: str = "a"
) -> Forked:
    """Decode behind a prompt, and fork that when it has so many tokens; `answer` is the forks'."""
    forked = Forked([], [], [])
    async with aclosing(backend.decode(greedy(prompt, marks[-1] + 40))) as pieces:
        async for piece in pieces:
            forked.main.extend(piece.ids)
            while len(forked.outputs) < len(marks) and len(forked.main) >= marks[len(forked.outputs)]:
                number = len(forked.outputs)
                context = [*prompt, *forked.main[: marks[number]], 5]
                ids, computed = await read(backend, greedy(context, 12, thread=1 + number, answer=answer))
                forked.outputs.append(ids)
                forked.computed.append(computed)
    return forked


def require_sglang(module: str = "sglang") -> None:
    """Fail where the suite must be complete, else skip, if SGLang, or its router, is missing."""
    if importlib.util.find_spec(module) is not None:
        return
    missing = f"{module} is not installed (make test installs it): these tests talk to the real one"
    if os.environ.get("CI"):
        pytest.fail(missing)
    pytest.skip(missing)


def server_command(model: str, **options: Any) -> sglang_command.ServerCommand:
    """The library's command, with stand-ins for the GPU packages."""
    command = launch_command(model, **options)
    program = str(Path(__file__).with_name("on_cpu.py"))
    return replace(command, argv=[sys.executable, program, *command.argv[2:]])  # instead of `python -m`


launch_command = sglang_command.server_command


@contextmanager
def running_server(model: Path, log: Path, *flags: str) -> Generator[tuple[str, int]]:
    """Serve a model on a CPU, with further flags; the server's URL, and the process group that it is."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = server_command(str(model), device="cpu", port=port, extra=[*FLAGS, *flags])

    def ready() -> bool:
        return httpx.get(f"{url}/model_info", timeout=5).is_success

    with running_program(command.argv, log, ready, command.environment) as group:
        yield url, group


@contextmanager
def running_router(workers: Sequence[str], log: Path) -> Generator[str]:
    """SGLang's router, keeping together what has one key, in front of servers; its URL."""
    port, metrics = free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    program = (sys.executable, "-m", "sglang_router.launch_router")
    flags = (
        *("--policy", "manual", "--assignment-mode", "min_load"),
        *("--health-check-interval-secs", "1", "--health-failure-threshold", "1"),
        *("--port", str(port), "--prometheus-port", str(metrics)),
    )

    def ready() -> bool:
        listed: list[Any] = httpx.get(f"{url}/workers", timeout=5).json()["workers"]
        return len(listed) == len(workers)

    with running_program([*program, *flags, "--worker-urls", *workers], log, ready):
        yield url


@contextmanager
def running_program(
    argv: Sequence[str], log: Path, ready: Callable[[], bool], environment: Mapping[str, str] | None = None
) -> Generator[int]:
    """A program, from when it is ready; its process group, which is ended."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
        try:
            _wait(ready, process, log)
            yield process.pid
        finally:
            _stop(process)


def free_port() -> int:
    """A port that nothing listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait(ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if ready():
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    ended = process.poll()
    what = f"ended with {ended}" if ended is not None else f"did not answer in {START_SECONDS} s"
    end = "\n".join(line[:200] for line in log.read_text().splitlines()[-20:])
    pytest.fail(f"{process.args} {what}; the end of its log:\n{end}", pytrace=False)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and everything it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            continue
    process.wait(10)
