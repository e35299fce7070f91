"""The command that starts a server."""

from __future__ import annotations

import sys

import pytest

from pasta_async.backends.sglang.launch import server_command
from pasta_async.errors import BackendError


def test_a_gpu_gets_flashinfer_and_the_usual_server() -> None:
    command = server_command("a/model", device="cuda", host="0.0.0.0", port=7)
    assert command.argv[:5] == [sys.executable, "-m", "sglang.launch_server", "--model-path", "a/model"]
    assert command.argv[5:9] == ["--host", "0.0.0.0", "--port", "7"]
    assert "--attention-backend flashinfer" in " ".join(command.argv)


def test_a_cpu_gets_what_runs_there() -> None:
    command = server_command("a/model", device="cpu")
    words = " ".join(command.argv)
    assert command.environment == {"PASTA_SGLANG_PLUGIN": "1", "SGLANG_USE_CPU_ENGINE": "1"}
    assert "--attention-backend torch_native" in words and "flashinfer" not in words


def test_every_flag_has_its_reason_and_gives_way_to_ones_own() -> None:
    command = server_command("m", device="cpu", extra=["--page-size=16", "--schedule-policy", "fcfs"])
    words = " ".join(command.argv)
    assert words.count("--page-size") == words.count("--schedule-policy") == 1
    assert words.endswith("--page-size=16 --schedule-policy fcfs")
    assert all(flag in words and reason for flag, reason in command.reasons.items())
    assert not any("--page-size" in flag for flag in command.reasons)


def test_a_missing_sglang_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sglang", None)
    with pytest.raises(BackendError, match=r"pip install 'pasta_async\[sglang\]'"):
        server_command("a/model", device="cpu")
