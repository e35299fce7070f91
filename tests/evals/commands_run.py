"""Run a command in this process, as its command line does."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

import pytest

Main = Callable[[Sequence[str]], None]


def status(main: Main, *arguments: object) -> int | str | None:
    """Run a command; returns what it ends the process with: a status, or the line that it prints with 1."""
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments)])
    return ended.value.code


def run(main: Main, command: str, *more: object) -> None:
    """Run a command that has to end well."""
    code = status(main, *shlex.split(command), *more)
    assert not code, code


def refused(main: Main, command: str, *more: object) -> str:
    """Run a command that has to fail; returns what it ends with."""
    code = status(main, *shlex.split(command), *more)
    assert code
    return str(code)
