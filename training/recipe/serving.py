"""Run a command whose models are served meanwhile: `python -m pasta_async.training.recipe.serving`.

    ... --command "pasta-async sglang {model} --port {port} --base-gpu-id {gpu}" --gpus 4 -- \
        pasta_async.training.sample --backend served:round1/lambda4/model --baseline served:baseline/model ...

Every `served:FOLDER` among the arguments gets a server of its own; when all are ready the command is run with
their addresses in these places. When it ends, or this process is told to, the servers are ended.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import httpx

from pasta_async.cli.command import ending
from pasta_async.errors import BackendConnectError

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

__all__ = ["SERVED", "main", "serving"]

SERVED = "served:"
"""What comes before the folder of a model that is to be served."""

_LOOK = 1.0
"""Seconds between two looks at a server that is loading."""
_LEAVE = 30.0
"""Seconds that a server has to leave in."""


@contextmanager
def serving(command: str, model: str, port: int, gpu: int, patience: float) -> Generator[str]:
    """Serve a model; its address, once the server says that it is healthy.

    Args:
        command: The server's, with `{model}`, `{port}` and `{gpu}`.
        model: The folder.
        port: On which it is to listen.
        gpu: The first GPU that it may use.
        patience: Seconds that it may take to load.

    Raises:
        BackendConnectError: It ended, or is not ready in time.
    """
    words = [word.format(model=model, port=port, gpu=gpu) for word in shlex.split(command)]
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + patience
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL)
    try:
        while not _healthy(url):
            if process.poll() is not None:
                raise BackendConnectError(f"{shlex.join(words)} ended with status {process.returncode}")
            if time.monotonic() > deadline:
                raise BackendConnectError(f"{shlex.join(words)} is not ready after {patience:g} s")
            time.sleep(_LOOK)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(_LEAVE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=10).is_success
    except httpx.HTTPError:
        return False


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; ends with the command's own status."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("serving", description=__doc__, formatter_class=form)
    parser.add_argument("--command", required=True, help="of a server: {model}, {port}, {gpu}")
    parser.add_argument("--gpus", type=int, default=1, help="of each server: {gpu} rises by so many")
    parser.add_argument("--port", type=int, default=31000, help="of the first server; the others follow")
    parser.add_argument("--patience", type=float, default=1800, help="seconds that a server may take to load")
    parser.add_argument("run", nargs=argparse.REMAINDER, help="-- MODULE ARGUMENTS")
    options = parser.parse_args(arguments)
    words: list[str] = options.run[options.run[:1] == ["--"] :]
    models = list(dict.fromkeys(word for word in words if word.startswith(SERVED)))
    signal.signal(signal.SIGTERM, _leave)
    with ending(), ExitStack() as stack:
        urls = {
            word: stack.enter_context(
                serving(
                    options.command,
                    word.removeprefix(SERVED),
                    options.port + number,
                    number * options.gpus,
                    options.patience,
                )
            )
            for number, word in enumerate(models)
        }
        status = _run([sys.executable, "-m", *(urls.get(word, word) for word in words)])
    sys.exit(status)


def _run(command: list[str]) -> int:
    """Run the command; when this process is told to leave, so is it."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        try:
            return process.wait()
        finally:
            process.terminate()


def _leave(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
