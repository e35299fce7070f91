"""What the benchmarks' command lines have in common."""

from __future__ import annotations

import argparse

__all__ = ["count", "positive"]


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
