"""Runs a command's `main` in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest


def run(main: Callable[[Sequence[str]], None], *arguments: object) -> int | str | None:
    """Run a command; returns what it ends the process with: a status, or the line that it prints with 1."""
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    return left.value.code
