"""`command`: how every command reads its line, and how it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import BaseSettings

from pasta_async import BackendConnectError
from pasta_async.cli.command import command


class Copy(BaseModel):
    """Settings with every kind of option."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    source: Path = Field(description="What is copied.")
    times: int = Field(default=1, ge=1, description="How often.")
    names: tuple[str, ...] = Field(default=(), description="Names of the copies.")
    sizes: tuple[int, ...] = Field(default=(), description="Their sizes.")
    limit: float | None = Field(default=None, description="Seconds.")
    verify: bool = Field(default=True, description="Read them again.")
    mode: Literal["fast", "safe"] = Field(default="safe", description="How.")


def nothing(settings: Copy) -> None:
    """Work that is done at once."""


def code_of(work: Callable[[Copy], object], *line: str, resumes: bool = False) -> int | str | None:
    with pytest.raises(SystemExit) as caught:
        command(Copy, work, "copy", "Copies a file.", positional=["source"], resumes=resumes)(line)
    return caught.value.code


def read(*line: str) -> Copy:
    found: list[Copy] = []
    assert code_of(found.append, *line) == 0
    return found[0]


def test_every_kind_of_option() -> None:
    line = "there --times 3 --names a --names b --sizes 4 --sizes 5 --limit 2.5 --no-verify --mode fast"
    expected = Copy(
        source=Path("there"),
        times=3,
        names=("a", "b"),
        sizes=(4, 5),
        limit=2.5,
        verify=False,
        mode="fast",
    )
    assert read(*line.split()) == expected


class Environment(BaseSettings):
    """Settings that the environment has too."""

    copy_port: int = 1
    copy_host: str = "here"


def test_what_the_line_leaves_out_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COPY_PORT", "2")
    monkeypatch.setenv("COPY_HOST", "there")
    found: list[Environment] = []
    with pytest.raises(SystemExit):
        command(Environment, found.append, "x", "")(["--copy-host", "here"])
    assert found[0].model_dump() == {"copy_port": 2, "copy_host": "here"}


def test_the_help_has_every_field_and_what_it_means(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert code_of(nothing, "--help") == 0
    shown = capsys.readouterr().out
    assert "Copies a file." in shown
    for name, field in Copy.model_fields.items():
        assert (f"--{name}" in shown) == (name != "source")
        assert field.description
        assert field.description in shown
    assert "--no-verify" in shown


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ([], "SOURCE"),
        (["there", "--times", "0"], "--times"),
        (["there", "--times", "many"], "--times"),
        (["there", "--sizes", "x"], "--sizes"),
        (["there", "--mode", "slow"], "--mode"),
        (["there", "--nonsense"], "--nonsense"),
        (["there", "twice"], "twice"),
    ],
)
def test_misuse_is_2_and_names_the_option(
    line: list[str], names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[Copy] = []
    assert code_of(done.append, *line) == 2
    assert not done
    assert names.lower() in capsys.readouterr().err.lower()


def test_an_error_of_the_library_is_1_with_its_name() -> None:
    def work(settings: Copy) -> None:
        raise BackendConnectError("nothing answers")

    code = code_of(work, "there")  # a text as the code: Python prints it on stderr and exits with 1
    assert isinstance(code, str)
    assert code.startswith("BackendConnectError: ")


def test_a_main_prints_the_text_that_its_work_returns(capsys: pytest.CaptureFixture[str]) -> None:
    main = command(Copy, lambda settings: f"from {settings.source}", "copy", "", positional=["source"])
    with pytest.raises(SystemExit) as ended:
        main(["there"])
    assert not ended.value.code
    assert capsys.readouterr().out == "from there\n"


@pytest.mark.parametrize("resumes", [False, True])
def test_ctrl_c_is_130_and_says_whether_the_same_command_goes_on(
    resumes: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(settings: Copy) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    assert code_of(work, "there", resumes=resumes) == 130
    assert ("goes on" in capsys.readouterr().err) == resumes
