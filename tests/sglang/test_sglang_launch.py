"""The command that starts a server."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any
from urllib.request import getproxies

import pytest

from pasta_async.backends.sglang import LaunchedBackend, command
from pasta_async.backends.sglang.command import ServerCommand, server_command
from pasta_async.cli.commands import main
from pasta_async.errors import BackendError, UnsupportedModelError
from tests.pasta_tiny import PASTA_TINY


def test_a_device_gets_what_runs_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in getproxies():
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name}_proxy".upper(), raising=False)
    gpu = server_command("a/model", device="cuda", host="0.0.0.0", port=7)
    assert gpu.argv[:5] == [sys.executable, "-m", "sglang.launch_server", "--model-path", "a/model"]
    assert gpu.argv[5:9] == ["--host", "0.0.0.0", "--port", "7"]
    assert "--attention-backend flashinfer" in " ".join(gpu.argv)
    assert gpu.environment == {"PASTA_SGLANG_PLUGIN": "1", "SGLANG_TIMEOUT_KEEP_ALIVE": "60"}
    cpu = server_command("a/model", device="cpu")
    assert cpu.environment == {**gpu.environment, "SGLANG_USE_CPU_ENGINE": "1"}
    assert "--attention-backend torch_native" in " ".join(cpu.argv)


@pytest.mark.parametrize("excepted", [None, "corp.example"])
def test_a_server_asks_itself_past_a_proxy(monkeypatch: pytest.MonkeyPatch, excepted: str | None) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", excepted or "")
    environment = server_command("a/model", device="cpu").environment
    expected = ["127.0.0.1", "localhost"] if excepted is None else [excepted, "127.0.0.1", "localhost"]
    assert environment["no_proxy"].split(",") == environment["NO_PROXY"].split(",") == expected


def test_every_flag_has_its_reason_and_gives_way_to_ones_own() -> None:
    command = server_command("m", device="cpu", extra=["--page-size=16", "--schedule-policy", "fcfs"])
    words = " ".join(command.argv)
    assert words.count("--page-size") == words.count("--schedule-policy") == 1
    assert words.endswith("--page-size=16 --schedule-policy fcfs")
    assert all(flag in words and reason for flag, reason in command.reasons.items())
    assert not any("--page-size" in flag for flag in command.reasons)
    without = server_command("m", device="cpu", without=["schedule_policy"])
    assert "--schedule-policy" not in without.argv


def test_a_server_is_told_what_it_does_not_read_of_a_model_folder(tmp_path: Path) -> None:
    file = tmp_path / "generation_config.json"
    file.write_text('{"eos_token_id": [2]}')
    assert "--preferred-sampling-params" not in server_command(str(tmp_path), device="cpu").argv
    file.write_text('{"repetition_penalty": 1.1, "suppress_tokens": [7]}')
    argv = server_command(str(tmp_path), device="cpu").argv
    preferred = json.loads(argv[argv.index("--preferred-sampling-params") + 1])
    assert preferred == {"repetition_penalty": 1.1, "logit_bias": {"7": -1e4}}
    assert "--disable-overlap-schedule" in argv


@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": "1.1 --trust-remote-code"},
        {"suppress_tokens": ["7 --host 0.0.0.0"]},
        {"suppress_tokens": 5},
    ],
)
def test_a_model_folder_adds_no_flags(settings: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    with pytest.raises(UnsupportedModelError):
        server_command(str(tmp_path), device="cpu")


def test_the_value_of_an_option_of_sglang_is_not_taken_for_the_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["sglang", "--dry-run", "--tp-size", "2", "a/model"])
    assert ended.value.code == 2 and "--tp-size" in capsys.readouterr().err


def test_a_missing_sglang_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sglang", None)
    with pytest.raises(BackendError, match=r"pip install 'pasta_async\[sglang\]'"):
        server_command("a/model", device="cpu")


async def test_a_backend_that_is_closed_while_its_server_starts_starts_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, started = asyncio.get_running_loop(), asyncio.Event()
    count = 0

    def never_ready(*_: object, **__: object) -> ServerCommand:
        nonlocal count
        count += 1
        loop.call_soon_threadsafe(started.set)
        return ServerCommand([sys.executable, "-c", "import signal; signal.pause()"], {}, {})

    monkeypatch.setattr(command, "server_command", never_ready)
    backend = LaunchedBackend(PASTA_TINY, device="cpu")
    callers = [asyncio.create_task(backend.connect()) for _ in range(2)]
    await started.wait()
    await backend.aclose()
    for caller in callers:
        with pytest.raises(BackendError, match="closed"):
            await caller
    assert count == 1


async def test_a_server_that_ends_as_it_starts_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> ServerCommand:
        return ServerCommand([sys.executable, "-c", "raise SystemExit(1)"], {}, {})

    monkeypatch.setattr(command, "server_command", broken)
    backend = LaunchedBackend(PASTA_TINY, device="cpu")
    with pytest.raises(BackendError, match="ended with status 1"):
        await backend.connect()
    await backend.aclose()


async def test_a_folder_without_a_model_starts_no_server(tmp_path: Path) -> None:
    backend = LaunchedBackend(tmp_path, device="cpu")
    with pytest.raises(UnsupportedModelError):
        await backend.connect()
    await backend.aclose()
