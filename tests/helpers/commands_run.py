"""Run a command in this process, as its command line does, on files that are made for it."""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest

Main = Callable[[Sequence[str]], None]


def status(main: Main, command: str, *more: object) -> int | str | None:
    """Run a command line, and further arguments; returns the status that it ends the process with."""
    with pytest.raises(SystemExit) as ended:
        main([*shlex.split(command), *map(str, more)])
    return ended.value.code


def run(main: Main, command: str, *more: object) -> None:
    """Run a command that has to end well."""
    code = status(main, command, *more)
    assert not code, code


def failed(main: Main, command: str, *more: object) -> str:
    """Run a command that has to fail; returns what it says on standard error."""
    with redirect_stderr(io.StringIO()) as said:
        assert status(main, command, *more)
    return said.getvalue()


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write JSON lines."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path
