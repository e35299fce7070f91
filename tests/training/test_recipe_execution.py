"""Steps of a recipe: what is skipped, done again, gone on with, and what ends a run."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import recipe_runner

from pasta_async.errors import BackendConnectError, TrainingError
from pasta_async.training.recipe import Serving
from pasta_async.training.run import SERVED, Step, run_steps

HERE = Path(__file__).parent

Run = Callable[..., list[str]]


@pytest.fixture(autouse=True)
def step_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m recipe_step` is found."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(HERE.parents[1])]))


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs steps; gives the names of those that were not done before."""

    def ran(out: Path, *described: str) -> list[str]:
        run_steps(recipe_runner.steps(out, *described), out)
        return re.findall(r"^\[\d+/\d+\] (\S+)$", capfd.readouterr().out, re.MULTILINE)

    return ran


def background(out: Path, *described: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(HERE / "recipe_runner.py"), str(out), *described])


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A pipe that a step waits at until somebody opens it to write."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


def test_what_is_done_is_skipped_also_where_the_run_was_moved(tmp_path: Path, run: Run) -> None:
    plan, there, here = ("a:pieces=2", "b:pieces=3:a"), tmp_path / "there", tmp_path / "here"
    assert run(there, *plan) == ["a", "b"]
    assert (there / "b/result").read_text() == "23"
    assert run(there, *plan) == []
    assert run(there, "a:pieces=2,threads=4", plan[1]) == []  # changes nothing of the result
    there.rename(here)
    assert run(here, *plan) == []


def test_a_result_that_is_gone_is_made_again_with_what_depends_on_it(tmp_path: Path, run: Run) -> None:
    plan = ("a:pieces=2", "b:pieces=3:a", "c:pieces=1")
    assert run(tmp_path, *plan) == ["a", "b", "c"]
    (tmp_path / "a/result").unlink()
    assert run(tmp_path, *plan) == ["a", "b"]


def test_changed_settings_redo_a_step_and_what_depends_on_it(tmp_path: Path, run: Run) -> None:
    assert run(tmp_path, "a:pieces=4", "b:pieces=1:a", "c:pieces=1") == ["a", "b", "c"]
    assert run(tmp_path, "a:pieces=2", "b:pieces=1:a", "c:pieces=1") == ["a", "b"]
    assert (tmp_path / "a/work").read_text().split() == ["0", "1"]  # from the start: nothing is left over
    assert (tmp_path / "b/result").read_text() == "21"


def test_a_file_that_changed_redoes_what_reads_it(tmp_path: Path, run: Run) -> None:
    read = tmp_path / "read"
    read.write_text("one")
    plan = ("reads:hold=" + str(read), "b:pieces=1:reads")
    assert run(tmp_path / "out", *plan) == ["reads", "b"]
    read.write_text("two")
    os.utime(read, (1, 1))  # older than before, and yet another
    assert run(tmp_path / "out", *plan) == ["reads", "b"]


@pytest.mark.parametrize("prefix", ["", "local:"])
def test_a_model_that_was_made_anew_redoes_what_reads_it_and_a_note_beside_it_nothing(
    tmp_path: Path, run: Run, prefix: str
) -> None:
    model = tmp_path / "base"
    model.mkdir()
    (model / "config.json").write_text("{}")
    weights = model / "model.safetensors"
    weights.write_bytes(b"one")
    step = f"reads:model={prefix}{model}"
    assert run(tmp_path / "out", step) == ["reads"]
    (model / "notes.txt").write_text("Mine.")
    assert run(tmp_path / "out", step) == []
    weights.write_bytes(b"two")
    os.utime(model, (1, 1))
    assert run(tmp_path / "out", step) == ["reads"]


def test_a_file_that_changed_in_a_folder_of_data_redoes_what_reads_it(tmp_path: Path, run: Run) -> None:
    data = tmp_path / "data" / "train"
    data.mkdir(parents=True)
    (data / "rows.jsonl").write_text("one")
    plan = f"reads:model={data.parent}"
    assert run(tmp_path / "out", plan) == ["reads"]
    assert run(tmp_path / "out", plan) == []
    later = (data / "rows.jsonl").stat().st_mtime + 9
    os.utime(data / "rows.jsonl", (later, later))
    assert run(tmp_path / "out", plan) == ["reads"]


def test_what_is_there_without_a_record_is_gone_on_with(tmp_path: Path, run: Run) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/work").write_text("0\nadopted\n")
    assert run(tmp_path, "a:pieces=3") == ["a"]
    assert (tmp_path / "a/work").read_text().split() == ["0", "adopted", "2"]


def test_a_failed_step_ends_the_run_and_is_not_done(
    tmp_path: Path, run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nor is one that leaves no result, as a trainer does that was asked to leave."""
    for fault in ("fail=reason", "nothing=1"):
        with pytest.raises(TrainingError, match=r"^b "):
            run(tmp_path, "a:pieces=1", f"b:{fault}:a", "c:pieces=1:b")
    capfd.readouterr()
    assert run(tmp_path, "a:pieces=1", "b:pieces=1:a", "c:pieces=1:b") == ["b", "c"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path: Path, gate: Path, how: signal.Signals) -> None:
    """When only the run is killed, its step works on, and the next run waits for it."""
    out = tmp_path / "out"
    plan = ("a:pieces=1", f"b:pieces=3,hold={gate},at=2:a", "c:pieces=1:b")
    runner = background(out, *plan)
    with gate.open("w"):  # the step is at work, and waits for what is written
        runner.send_signal(how)
        assert runner.wait(60) == (-how if how == signal.SIGKILL else 130)
        again = background(out, *plan)
    if how != signal.SIGKILL:
        with gate.open("w"):
            pass
    assert again.wait(60) == 0
    assert (out / "b/work").read_text().split() == ["0", "1", "2"]
    assert (out / "c/result").exists()


def test_two_runs_share_a_folder(tmp_path: Path, gate: Path) -> None:
    """The second waits for the step that the first is at, and does not do it again."""
    out = tmp_path / "out"
    runs = [background(out, f"a:pieces=1,hold={gate}")]
    with gate.open("w"):
        runs.append(background(out, f"a:pieces=1,hold={gate}", "b:pieces=1:a"))
    assert [one.wait(60) for one in runs] == [0, 0]
    assert (out / "a/work").read_text().split() == ["0"]
    assert (out / "b/result").exists()


# Servers


@pytest.fixture
def serving() -> Serving:
    """A server that says what it serves, on ports that are free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = int(found.getsockname()[1])
    command = f"{sys.executable} {HERE / 'stand_in_server.py'} {{model}} {{port}} {{gpu}}"
    return Serving(command=command, gpus=4, port=port)


def asking(out: Path, *models: str) -> Step:
    """A step that asks its servers what they are."""
    options = {"backend": [f"{SERVED}{model}" for model in models], "out": out / "said/result"}
    return Step("said", "ask_servers", options, out / "said/result")


def gone(port: int) -> bool:
    try:
        httpx.get(f"http://127.0.0.1:{port}")
    except httpx.ConnectError:
        return True
    return False


def test_each_model_is_served_on_gpus_of_its_own_while_the_step_runs(
    tmp_path: Path, serving: Serving
) -> None:
    run_steps([asking(tmp_path, "a/model", "b", "a/model")], tmp_path, serving)
    said = (tmp_path / "said/result").read_text().splitlines()
    assert said == ["a/model on 0", "b on 4", "a/model on 0"]
    assert gone(serving.port)
    assert gone(serving.port + 1)


def test_a_server_that_ends_ends_the_run(tmp_path: Path, serving: Serving) -> None:
    with pytest.raises(BackendConnectError):
        run_steps([asking(tmp_path, "a", "broken")], tmp_path, serving)
    assert gone(serving.port)
