"""`command`: how every command reads its line, and how it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import BaseSettings

from pasta_async.cli.command import command
from pasta_async.errors import BackendError, InvalidRequestError


class Copy(BaseModel):
    """Settings with every kind of option."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    source: Path = Field(description="What is copied.")
    times: int = Field(default=1, ge=1, description="How often.")
    names: tuple[str, ...] = Field(default=(), description="Names of the copies.")
    sizes: tuple[int, ...] = Field(default=(), description="Their sizes.")
    limit: float | None = Field(default=None, description="Seconds.")
    pause: float = Field(default=0.0, description="Seconds between two copies.")
    verify: bool = Field(default=True, description="Read them again.")
    mode: Literal["fast", "safe"] = Field(default="safe", description="How.")


def run(work: Callable[[Copy], object], *line: str, resumes: bool = False) -> int | str | None:
    """The exit code of a command that does the work."""
    with pytest.raises(SystemExit) as caught:
        command(Copy, work, "copy", "Copies a file.", positional=["source"], resumes=resumes)(line)
    return caught.value.code


def test_every_kind_of_option() -> None:
    line = "there --times 3 --names a --names b --sizes 4 --sizes 5 --limit 2.5 --no-verify --mode fast"
    read: list[Copy] = []
    assert run(read.append, *line.split()) == 0
    lists: dict[str, Any] = {"names": ("a", "b"), "sizes": (4, 5)}
    assert read == [Copy(source=Path("there"), times=3, limit=2.5, verify=False, mode="fast", **lists)]


class Environment(BaseSettings):
    """Settings that the environment has too."""

    copy_port: int = 1
    copy_host: str = "here"


def test_what_the_line_leaves_out_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COPY_PORT", "2")
    monkeypatch.setenv("COPY_HOST", "there")
    read: list[Environment] = []
    with pytest.raises(SystemExit):
        command(Environment, read.append, "x", "")(["--copy-host", "here"])
    assert read[0].model_dump() == {"copy_port": 2, "copy_host": "here"}


def test_the_help_has_every_field_and_its_description(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(print, "--help") == 0
    shown = capsys.readouterr().out
    for name, field in Copy.model_fields.items():
        assert (f"--{name}" in shown) == (name != "source")
        assert field.description and field.description in shown
    assert "Copies a file." in shown and "--no-verify" in shown
    assert "Seconds between two copies. (default: 0.0)" in shown
    assert "default: None" not in shown and "default: ()" not in shown


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("", "source"),
        ("there --times 0", "--times"),
        ("there --times many", "--times"),
        ("there --mode slow", "--mode"),
        ("there --nonsense", "--nonsense"),
        ("there twice", "twice"),
    ],
)
def test_misuse_is_2_and_names_the_option(line: str, names: str, capsys: pytest.CaptureFixture[str]) -> None:
    read: list[Copy] = []
    assert run(read.append, *line.split()) == 2
    assert not read
    assert names in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InvalidRequestError("too many"), 2, "copy: too many\n"),
        (BackendError("it failed"), 1, "copy: it failed\n"),
        (ModuleNotFoundError("no rsync"), 1, "copy: no rsync\n"),
        (OSError("the disk is full"), 1, "copy: the disk is full\n"),
        (BrokenPipeError("nobody reads"), 1, ""),
    ],
)
def test_an_error_is_a_line_without_a_traceback(
    error: Exception, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Copy) -> None:
        raise error

    assert run(fail, "there") == code
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("resumes", [False, True])
def test_ctrl_c_is_130_and_tells_if_the_same_command_goes_on(
    resumes: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(lambda _: os.kill(os.getpid(), signal.SIGINT), "there", resumes=resumes) == 130
    assert ("goes on" in capsys.readouterr().err) == resumes


class Measurement(BaseModel):
    """Settings of a command that keeps its work in a file, if it is given one."""

    out: Path | None = None


@pytest.mark.parametrize("kept", [False, True])
def test_a_command_without_its_file_does_not_claim_to_go_on(
    kept: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: Measurement) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(SystemExit):
        command(Measurement, interrupted, "measure", None, resumes=True)(["--out", "file"] if kept else [])
    assert ("goes on" in capsys.readouterr().err) == kept
