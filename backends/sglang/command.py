"""The command that starts SGLang to suit pasta_async, and a server that belongs to a backend."""

from __future__ import annotations

import asyncio
import atexit
import importlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, Unpack, cast
from urllib.request import getproxies

import anyio

from pasta_async.backends.options import LaunchOptions
from pasta_async.backends.sglang.backend import NEVER, SGLangBackend
from pasta_async.errors import BackendError, InvalidRequestError, UnsupportedModelError
from pasta_async.model_folder import GenerationDefaults, read_object
from pasta_async.protocol import Model
from pasta_async_sglang import VARIABLE

_ENVIRONMENT = {
    VARIABLE: "1",  # forks find what their parent has decoded
    "SGLANG_TIMEOUT_KEEP_ALIVE": "60",  # seconds; SGLang's 5 can close a connection as it is used again
}
"""Environment variables of a server; values that are set already are kept."""

_END_WITH_PARENT = """\
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""
"""A program that asks Linux for SIGTERM when the thread that started it ends, and becomes another program."""

_POLL_SECONDS = 0.25
"""Time between two looks at a server that is not ready yet."""

_STOP_SECONDS = 30.0
"""Time for a server to end before it is killed."""

_REACHED_BY = ("host", "port", "model_path", "api_key", "admin_api_key")
"""Options by which a `LaunchedBackend` reaches its server."""

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
    """A command with its environment, and the reason for each flag."""

    argv: list[str]
    reasons: dict[str, str]
    """Each flag that was chosen here, with the reason."""
    environment: dict[str, str]
    """Variables that it needs."""


def server_command(
    model: str,
    *,
    device: str | None = None,
    host: str = "127.0.0.1",
    port: int = 30000,
    extra: Sequence[str] = (),
    without: Collection[str] = (),
) -> ServerCommand:
    """The command that serves `model` by SGLang.

    Args:
        model: A folder, or a name on the Hugging Face hub.
        device: "cpu" or "cuda"; None looks for a GPU.
        host: Address to listen at.
        port: Port to listen at.
        extra: Further arguments of SGLang, which win over those chosen here.
        without: Names of settings that are not to be chosen here.

    Raises:
        BackendError: SGLang is not installed.
        UnsupportedModelError: The folder's `generation_config.json` is malformed.
    """
    if importlib.util.find_spec("sglang") is None:
        raise BackendError("SGLang is not installed here: pip install 'pasta_async[sglang]'")
    if device is None:
        device = "cuda" if importlib.import_module("torch").cuda.is_available() else "cpu"
    extra_flags = {argument.partition("=")[0] for argument in extra}
    chosen: dict[str, str] = {}
    flags: list[str] = []
    settings = _COMMON | (_CUDA if device == "cuda" else _CPU) | _model_settings(model)
    for name, (value, why) in settings.items():
        flag = "--" + name.replace("_", "-")
        if flag not in extra_flags and name not in without:
            parts = [flag] if value is True else [flag, str(value)]
            flags += parts
            chosen[" ".join(parts)] = why
    base = [sys.executable, "-m", "sglang.launch_server", "--model-path", model]
    argv = [*base, "--host", host, "--port", str(port), *flags, *extra]
    environment = {name: os.environ.get(name, value) for name, value in _ENVIRONMENT.items()}
    environment |= _direct_loopback()
    if device == "cpu":
        environment["SGLANG_USE_CPU_ENGINE"] = "1"  # else SGLang does not see a CPU as a device
    return ServerCommand(argv, chosen, environment)


def _direct_loopback() -> dict[str, str]:
    """Variables that keep the requests by which the server warms up from going through a proxy."""
    proxies = getproxies()
    excepted = proxies.pop("no", "").replace(" ", "")
    if not proxies or excepted == "*":
        return {}
    value = ",".join(filter(None, [excepted, "127.0.0.1", "localhost"]))
    return {"no_proxy": value, "NO_PROXY": value}


def _model_settings(model: str) -> _Settings:
    """Flags for those parts of a model folder's `generation_config.json` that SGLang does not read by itself.

    With a repetition penalty its scheduler does not overlap: it would count a running request's last token
    again instead of the next one whenever another request, a fork say, is prefilled
    (`ScheduleBatch.cumulate_penalty_output_tokens`, 0.5.23).

    Raises:
        UnsupportedModelError: The file is malformed.
    """
    defaults = GenerationDefaults.read(Path(model) / "generation_config.json")
    penalty, suppressed = defaults.repetition_penalty, defaults.suppress_tokens
    if penalty == 1 and not suppressed:
        return {}
    preferred = {
        "repetition_penalty": penalty,
        "logit_bias": dict.fromkeys(map(str, suppressed), NEVER),
    }
    value = json.dumps(preferred, separators=(",", ":"))
    settings: _Settings = {"preferred_sampling_params": (value, "as the model's generation_config.json says")}
    if penalty != 1:
        settings["disable_overlap_schedule"] = (
            True,
            "else the repetition penalty misses tokens where forks come",
        )
    return settings


class LaunchedBackend(SGLangBackend):
    """An SGLang server of this program's own, started by `connect` and ended by `aclose`.

    It listens on a free port of the loopback interface, writes to standard error, and ends with the program,
    however that ends. Cancelling `connect` stops the wait, not the start: a later call takes it up.

    Args:
        path: A model folder.
        options: See `LaunchOptions`.

    Raises:
        InvalidRequestError: An option is bad.
        BackendError: SGLang is missing or could not start; `connect` raises it.
    """

    def __init__(self, path: str | Path, **options: Unpack[LaunchOptions]) -> None:
        self._device = options.get("device")
        if self._device not in (None, "cpu", "cuda"):
            raise InvalidRequestError(f"sglang: device is cpu or cuda, not {self._device!r}")
        server_args = options.get("server_args", {})
        if taken := [name for name in server_args if name in _REACHED_BY or name.startswith("ssl_")]:
            raise InvalidRequestError(f"sglang: {taken[0]} in server_args: the server is reached by it")
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self._port: int = probe.getsockname()[1]
        super().__init__(f"http://127.0.0.1:{self._port}", tokenizer=path)
        self._path = Path(path)
        self._flags = [*_flags({"log_level": "error", **server_args})]
        self._without = [name for name, value in server_args.items() if value is None or value is False]
        self._process: subprocess.Popen[bytes] | None = None

    async def _handshake(self) -> Model:
        if read_object(self._path / "config.json") is None:
            raise UnsupportedModelError(f"{self._path} is no model folder: it has no config.json")
        process = self._process  # `aclose` may end and forget it meanwhile
        if process is None:
            # In a thread: to look for a GPU imports torch, which takes seconds.
            command = await asyncio.to_thread(
                server_command,
                str(self._path),
                device=self._device,
                port=self._port,
                extra=self._flags,
                without=self._without,
            )
            self._http.check_open()
            process = self._start(command)
        while True:
            try:
                await self._http.text(f"{self.url}/model_info")
                break
            except BackendError:
                self._http.check_open()  # after `aclose` the ended process is no failed start
            if (status := process.poll()) is not None:
                self._stop()
                raise BackendError(
                    f"SGLang could not start on {self._path}: it ended with status {status}, and says why in "
                    "this program's standard error"
                )
            await asyncio.sleep(_POLL_SECONDS)
        return await super()._handshake()

    def _start(self, command: ServerCommand) -> subprocess.Popen[bytes]:
        """Start the server in a process group of its own, which ends if this program is killed."""
        guard = [sys.executable, "-c", _END_WITH_PARENT, str(os.getpid())]
        start = partial(
            subprocess.Popen[bytes],
            [*(guard if sys.platform == "linux" else []), *command.argv],
            env={**os.environ, **command.environment},
            stdin=subprocess.DEVNULL,
            stdout=2,  # standard output is the program's
            start_new_session=True,
        )
        process: Future[subprocess.Popen[bytes]] = Future()
        # The server ends with the thread that starts it: with one that waits for it, not the caller's.
        Thread(target=_start_and_wait, args=(start, process), name="pasta-sglang", daemon=True).start()
        self._process = process.result()
        atexit.register(self._stop)
        return self._process

    async def aclose(self) -> None:
        """End open requests with an error, and the server. Cancelling it does not stop the ending."""
        with anyio.CancelScope(shield=True):
            try:
                await super().aclose()
            finally:
                await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        """End the server; processes that it leaves behind are killed."""
        process, self._process = self._process, None
        if process is None:
            return
        atexit.unregister(self._stop)
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _start_and_wait(
    start: Callable[[], subprocess.Popen[bytes]], process: Future[subprocess.Popen[bytes]]
) -> None:
    """Start a process, hand it over, or the error, and wait until it ends."""
    try:
        process.set_result(start())
    except BaseException as error:
        process.set_exception(error)
    else:
        process.result().wait()


def _flags(arguments: Mapping[str, Any]) -> Iterator[str]:
    """The flags of SGLang's command line for arguments by their names in Python."""
    for name, value in arguments.items():
        if value is None or value is False:
            continue
        yield "--" + name.replace("_", "-")
        if isinstance(value, list | tuple):
            yield from map(str, cast("Sequence[object]", value))
        elif value is not True:
            yield json.dumps(value) if isinstance(value, dict) else str(value)
