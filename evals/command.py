"""What the commands have in common: numbers that make sense, and errors in a line."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from pasta_async.errors import PastaError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["count", "positive", "run_command"]


def count(text: str) -> int:
    """A whole number of at least 1 (`type` of an argument)."""
    return int(_checked(text, int(text), 1, "a whole number, 1 or more"))


def positive(text: str) -> float:
    """A number above 0 (`type` of an argument)."""
    return _checked(text, float(text), 1e-300, "a number above 0")


def _checked(text: str, value: float, least: float, what: str) -> float:
    if not least <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not {what}")
    return value


def run_command(main: Callable[[], None]) -> None:
    """Run a command: what its user can mend ends it with a line, not with a traceback."""
    try:
        main()
    except PastaError as error:
        sys.exit(f"error: {error}")
