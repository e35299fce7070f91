"""Runs the steps of a recipe in this process, as `python -m` would: torch is imported once, not by each."""

from __future__ import annotations

import runpy
import sys
import warnings
from collections.abc import Sequence
from typing import Any, Self


class StepHere:
    """Takes the place of `subprocess.Popen`; the command has ended when it is made."""

    def __init__(self, command: Sequence[str], **_: Any) -> None:
        module, *arguments = command[command.index("-m") + 1 :]
        before = sys.argv
        sys.argv = [module, *arguments]
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", ".*found in sys.modules", RuntimeWarning)
                runpy.run_module(module, run_name="__main__", alter_sys=True)
            self.status: int = 0
        except SystemExit as left:
            self.status = left.code if isinstance(left.code, int) else int(left.code is not None)
            if self.status:
                print(left.code, file=sys.stderr)
        finally:
            sys.argv = before

    def __enter__(self) -> Self:
        """The command."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Nothing is left to end."""

    def wait(self) -> int:
        """Its status."""
        return self.status

    def terminate(self) -> None:
        """Nothing is left to end."""
