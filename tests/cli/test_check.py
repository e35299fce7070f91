"""`pasta-async check` prints as compilers do."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result
from written import WRITTEN

import pasta_async
from pasta_async.cli.app import app


def check(*files: str | Path, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["check", *map(str, files)], input=stdin, catch_exceptions=False)


def test_a_clean_file_says_nothing(tmp_path: Path) -> None:
    file = tmp_path / "answer.pasta"
    file.write_text(WRITTEN)
    result = check(file)
    assert (result.exit_code, result.output) == (0, "")


def test_findings_have_file_line_column_code_message_and_hint(tmp_path: Path) -> None:
    file = tmp_path / "answer.pasta"
    file.write_text("One line.\nTwo <sync/> lines.")
    result = check(file)
    assert result.exit_code == 1
    assert (
        result.stdout == f"{file}:2:5: sync-idle: <sync/> with no open promise; it is ignored (remove it)\n"
    )


def test_several_files_are_all_checked(tmp_path: Path) -> None:
    names = [tmp_path / name for name in ("a", "b", "c")]
    for name, text in zip(names, ("</async>", WRITTEN, "<sync/>"), strict=True):
        name.write_text(text)
    result = check(*names)
    assert result.exit_code == 1
    assert [line.rsplit(":", 4)[0] for line in result.stdout.splitlines()] == [str(names[0]), str(names[2])]


def test_a_dash_is_standard_input() -> None:
    result = check("-", stdin="<sync/>")
    assert result.exit_code == 1
    assert result.stdout.startswith("<stdin>:1:1: sync-idle: ")


def test_what_cannot_be_read_is_told_in_words(tmp_path: Path) -> None:
    missing = check(tmp_path / "missing")
    assert missing.exit_code == 1
    assert missing.stderr == f"pasta-async: {tmp_path / 'missing'}: No such file or directory\n"
    binary = check("-", stdin=b"ab\xff")
    assert binary.exit_code == 1
    assert binary.stderr == "pasta-async: -: not UTF-8 at byte 2\n"


def test_no_file_is_a_misuse() -> None:
    assert check().exit_code == 2


def test_the_version_is_that_of_the_package() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"pasta-async {pasta_async.__version__}\n"
