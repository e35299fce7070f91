"""How SGLang is started, as a server or in this process, to suit pasta_async."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Literal

import httpx

from pasta_async.errors import BackendConnectError, BackendError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

__all__ = [
    "CPU_ENVIRONMENT",
    "Device",
    "ServerCommand",
    "engine_arguments",
    "find_device",
    "running_server",
    "server_command",
]

Device = Literal["cuda", "cpu"]

CPU_ENVIRONMENT = {"SGLANG_USE_CPU_ENGINE": "1"}
"""Without this SGLang does not see a CPU as a device."""

_Settings = dict[str, tuple[str | int | bool, str]]
_COMMON: _Settings = {
    "incremental_streaming_output": (True, "events hold what is new, not the whole answer again"),
    "schedule_policy": ("lpm", "threads of one answer are served next to the prefix they share"),
}
_CUDA: _Settings = {"attention_backend": ("flashinfer", "attention by flashinfer")}
_CPU: _Settings = {
    "device": ("cpu", "no GPU"),
    "attention_backend": ("torch_native", "attention by torch itself; flashinfer needs a GPU"),
    "sampling_backend": ("pytorch", "sampling by torch itself"),
    "dtype": ("float32", "the same numbers as the embedded engine"),
    "page_size": (1, "forks share their prefix to the last token"),
    "sleep_on_idle": (True, "an idle scheduler leaves its core to others"),
    "max_total_tokens": (65536, "a KV cache of so many tokens, not of most of the memory"),
}


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """A command, and why it is what it is."""

    argv: list[str]
    device: Device
    reasons: dict[str, str]
    """Each flag that was chosen here, with the reason."""
    environment: dict[str, str]
    """Variables that it needs."""


def server_command(
    model: str,
    *,
    device: Device | None = None,
    host: str = "127.0.0.1",
    port: int = 30000,
    extra: Sequence[str] = (),
) -> ServerCommand:
    """The command that serves `model` by SGLang.

    Args:
        model: A folder, or a name on the Hugging Face hub.
        device: Where to run; None looks for a GPU.
        host: Address to listen at.
        port: Port to listen at.
        extra: Further arguments of SGLang, which win over those chosen here.

    Raises:
        BackendError: SGLang is not installed.
    """
    device = find_device(device)
    given = {argument.partition("=")[0] for argument in extra}
    chosen: dict[str, str] = {}
    for name, (value, why) in _settings(device).items():
        flag = "--" + name.replace("_", "-")
        if flag not in given:
            chosen[flag if value is True else f"{flag} {value}"] = why
    base = [sys.executable, "-m", "sglang.launch_server", "--model-path", model]
    argv = [*base, "--host", host, "--port", str(port), *" ".join(chosen).split(), *extra]
    return ServerCommand(argv, device, chosen, CPU_ENVIRONMENT if device == "cpu" else {})


def engine_arguments(device: Device) -> dict[str, str | int | bool]:
    """The same settings as arguments of `sglang.Engine`."""
    return {name: value for name, (value, _) in _settings(device).items()}


def find_device(wanted: Device | None = None) -> Device:
    """Where SGLang is to run: as wanted, else on a GPU if there is one.

    Raises:
        BackendError: SGLang is not installed.
    """
    if importlib.util.find_spec("sglang") is None:
        raise BackendError("SGLang is not installed here: pip install 'pasta_async[sglang]'")
    return wanted or ("cuda" if importlib.import_module("torch").cuda.is_available() else "cpu")


def _settings(device: Device) -> _Settings:
    return _COMMON | (_CUDA if device == "cuda" else _CPU)


@contextmanager
def running_server(
    argv: Sequence[str],
    ready: str,
    *,
    timeout: float,
    output: IO[bytes] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Generator[None]:
    """A server, from when it is ready; it and all that it started is stopped in the end.

    Args:
        argv: Its command.
        ready: URL that it answers with success when it is ready.
        timeout: Seconds that it may take until then.
        output: Where it writes to (None: where this process does).
        environment: Variables beside those of this process.

    Raises:
        BackendConnectError: Something answers there already, or the server ended, or was not ready in time.
    """
    if _answers(ready):
        raise BackendConnectError(f"{ready} is taken already: end that server, or choose another port")
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output and subprocess.STDOUT,
        start_new_session=True,
        env={**os.environ, **(environment or {})},
    )
    deadline = time.monotonic() + timeout
    try:
        while not _answers(ready):
            if process.poll() is not None or time.monotonic() > deadline:
                ended = process.returncode is not None
                why = (
                    f"ended with status {process.returncode}"
                    if ended
                    else f"is not ready after {timeout:g} s"
                )
                raise BackendConnectError(f"{shlex.join(argv)} {why}")
            time.sleep(0.5)
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, number)
                process.wait(30)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=10).is_success
    except httpx.HTTPError:
        return False
