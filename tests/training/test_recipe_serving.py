"""Models are served while a command runs, and no longer."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

HERE = Path(__file__).parent


@pytest.fixture
def port() -> int:
    """A port that is free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def serve(port: int, *words: str) -> subprocess.CompletedProcess[str]:
    command = f"{sys.executable} {HERE / 'stand_in_server.py'} {{model}} {{port}} {{gpu}}"
    options = ["--command", command, "--port", str(port), "--gpus", "4"]
    return subprocess.run(
        [sys.executable, "-m", "pasta_async.training.recipe.serving", *options, "--", *words],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])])},
    )


def gone(port: int) -> bool:
    try:
        httpx.get(f"http://127.0.0.1:{port}")
    except httpx.ConnectError:
        return True
    return False


def test_each_model_is_served_on_gpus_of_its_own_while_the_command_runs(port: int) -> None:
    done = serve(port, "ask_servers", "served:a/model", "--flag", "served:b", "served:a/model")
    assert done.stdout.splitlines() == ["a/model on 0", "--flag", "b on 4", "a/model on 0"]
    assert done.returncode == 0
    assert gone(port)
    assert gone(port + 1)


def test_the_commands_status_is_its_own(port: int) -> None:
    assert serve(port, "no_such_module", "served:a").returncode == 1
    assert gone(port)


def test_a_server_that_ends_is_told_of(port: int) -> None:
    done = serve(port, "ask_servers", "served:a", "served:broken")
    assert done.returncode == 1
    assert "BackendConnectError" in done.stderr
    assert "broken" in done.stderr
    assert "ended with status 3" in done.stderr
    assert gone(port)
