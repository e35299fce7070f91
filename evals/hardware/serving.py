"""Start SGLang on a model folder, for as long as something is measured."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import httpx

from pasta_async.backends.sglang.launch import server_command
from pasta_async.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

__all__ = ["FLAGS", "started_server"]

FLAGS = ("--enable-custom-logit-processor", "--enable-cache-report", "--skip-server-warmup")
"""What forced decoding needs, what `by hand` needs, and no request that was not asked for."""


@contextmanager
def started_server(
    model: Path, log: Path, *, port: int, extra: Sequence[str] = (), seconds: float = 900
) -> Generator[str]:
    """SGLang's own server, from when it is ready; its URL. It and all that it started is stopped in the end.

    Args:
        model: The model folder.
        log: Where it writes what it has to say.
        port: Port to listen at.
        extra: More of its arguments.
        seconds: How long it may take to be ready.

    Raises:
        BackendError: SGLang is not installed, ended, or was not ready in time.
    """
    command = server_command(str(model), port=port, extra=(*FLAGS, *extra))
    with log.open("wb") as output:
        process = subprocess.Popen(
            command.argv, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(url, process, log, seconds)
        yield url
    finally:
        _stop(process)


def _wait(url: str, process: subprocess.Popen[bytes], log: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise BackendError(f"SGLang ended with {process.returncode}: see {log}")
        try:
            if httpx.get(f"{url}/model_info", timeout=5).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise BackendError(f"SGLang was not ready in {seconds:g} s: see {log}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(15)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()
