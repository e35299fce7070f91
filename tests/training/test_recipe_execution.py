"""Steps of a plan: what is skipped, done again, gone on with, and what ends a run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import recipe_runner

from pasta_async.errors import TrainingError
from pasta_async.training.recipe.execution import execute
from pasta_async.training.recipe.ledger import Ledger

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def step_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m recipe_step` is found."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(HERE.parents[1])]))


def run(out: Path, *told: str, jobs: int = 1) -> list[str]:
    """Run a plan; the names of the steps that it ran."""
    steps = recipe_runner.steps(out, *told)
    ledger = Ledger(out, steps)
    due = [step.name for step in steps if not ledger.finished(step)]
    execute(steps, ledger, out, jobs)
    assert all(ledger.finished(step) for step in steps)
    return due


def starts(ledger: Ledger, name: str, steps: list[recipe_runner.Step]) -> int:
    done = ledger.read(next(step for step in steps if step.name == name))
    return done.starts if done else 0


def background(out: Path, *told: str, jobs: int = 1) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(HERE / "recipe_runner.py"), str(out), str(jobs), *told])


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A pipe that a step waits at until somebody opens it to write."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


def test_what_is_done_is_skipped(tmp_path: Path) -> None:
    plan = ("a:pieces=2", "b:pieces=3:a")
    assert run(tmp_path, *plan) == ["a", "b"]
    assert (tmp_path / "b/result").read_text() == "23"
    assert run(tmp_path, *plan) == []


def test_changed_settings_redo_a_step_and_what_depends_on_it(tmp_path: Path) -> None:
    assert run(tmp_path, "a:pieces=4", "b:pieces=1:a", "c:pieces=1") == ["a", "b", "c"]
    assert run(tmp_path, "a:pieces=2", "b:pieces=1:a", "c:pieces=1") == ["a", "b"]
    assert (tmp_path / "a/work").read_text().split() == ["0", "1"]  # from the start: nothing is left over
    assert (tmp_path / "b/result").read_text() == "21"


def test_flags_that_change_nothing_of_the_result_redo_nothing(tmp_path: Path) -> None:
    run(tmp_path, "a:threads=1")
    assert run(tmp_path, "a:threads=2") == []


def test_a_file_that_changed_redoes_what_reads_it(tmp_path: Path) -> None:
    read = tmp_path / "read"
    read.write_text("one")
    plan = ("reads:hold=" + str(read), "b:pieces=1:reads")
    assert run(tmp_path / "out", *plan) == ["reads", "b"]
    assert run(tmp_path / "out", *plan) == []
    read.write_text("two")
    assert run(tmp_path / "out", *plan) == ["reads", "b"]


def test_a_run_that_was_moved_is_still_done(tmp_path: Path) -> None:
    plan = ("a:pieces=1", "b:pieces=1:a")
    run(tmp_path / "there", *plan)
    (tmp_path / "there").rename(tmp_path / "here")
    assert run(tmp_path / "here", *plan) == []


def test_what_is_there_without_a_record_is_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/work").write_text("0\nadopted\n")
    assert run(tmp_path, "a:pieces=3") == ["a"]
    assert (tmp_path / "a/work").read_text().split() == ["0", "adopted", "2"]


def test_a_failed_step_ends_the_run_with_its_last_words(tmp_path: Path) -> None:
    plan = ("a:pieces=1", "b:fail=no-such-thing:a", "c:pieces=1:b")
    with pytest.raises(TrainingError, match=r"b failed(.|\n)*no-such-thing"):
        run(tmp_path, *plan)
    assert run(tmp_path, "a:pieces=1", "b:pieces=1:a", "c:pieces=1:b") == ["b", "c"]


def test_a_step_that_leaves_no_result_is_not_done(tmp_path: Path) -> None:
    """A trainer that was asked to leave does so with status 0."""
    steps = recipe_runner.steps(tmp_path, "a:pieces=1")
    flags = {**steps[0].flags, "nothing": True}
    step = recipe_runner.Step("a", "recipe_step", flags, steps[0].output, steps[0].result)
    with pytest.raises(TrainingError, match="left without"):
        execute([step], Ledger(tmp_path, [step]), tmp_path)
    assert not Ledger(tmp_path, [step]).finished(step)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path: Path, gate: Path, how: signal.Signals) -> None:
    """Also when only the run is killed: its step does not live on beside the next one."""
    out = tmp_path / "out"
    plan = ("a:pieces=1", f"b:pieces=3,hold={gate},at=2:a", "c:pieces=1:b")
    runner = background(out, *plan)
    with gate.open("w"):  # the step is at work, and waits for what is written
        runner.send_signal(how)
        assert runner.wait(60) == (-how if how == signal.SIGKILL else 130)
        again = background(out, *plan)  # waits for the step to leave
    with gate.open("w"):
        pass
    assert again.wait(60) == 0
    assert (out / "b/work").read_text().split() == ["0", "1", "2"]
    steps = recipe_runner.steps(out, *plan)
    ledger = Ledger(out, steps)
    assert [starts(ledger, name, steps) for name in "abc"] == [1, 2, 1]
    assert all(ledger.finished(step) for step in steps)
    assert ledger.seconds > 0


def test_steps_run_together_and_those_that_measure_alone(tmp_path: Path, gate: Path) -> None:
    out = tmp_path / "out"
    other = tmp_path / "other"
    os.mkfifo(other)
    runner = background(out, f"a:hold={gate}", f"b:hold={other}", "time:pieces=1", jobs=2)
    with gate.open("w"), other.open("w"):  # both are at work
        assert not (out / "time").exists()
    assert runner.wait(60) == 0
    assert (out / "time/result").exists()
