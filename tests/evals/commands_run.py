"""Run a command as its command line does."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def run(main: Callable[[Sequence[str]], None], command: str, *more: object) -> None:
    """A command that has to end well."""
    with pytest.raises(SystemExit) as ended:
        main([*shlex.split(command), *map(str, more)])
    assert not ended.value.code, ended.value.code


def refused(main: Callable[[Sequence[str]], None], command: str, *more: object) -> str:
    """What a command ends with that has to fail."""
    with pytest.raises(SystemExit) as ended:
        main([*shlex.split(command), *map(str, more)])
    assert ended.value.code
    return str(ended.value.code)
