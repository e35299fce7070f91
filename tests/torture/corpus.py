"""Inputs that are kept in `corpus.jsonl`, and tried again by every run of the suite.

    python -m tests.torture.corpus    # draws them anew

A line is a kind of `inputs` and a case of it. Those with a `why` were written by hand, or found something;
each of the others was the first of many that were drawn to take some step from one line of the library's code
to another, so that together they go wherever all of those went.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pasta_async
from tests.torture.inputs import KINDS, possible

CORPUS = Path(__file__).with_name("corpus.jsonl")
DRAWN = 20_000
"""Inputs of each kind."""

LIBRARY = str(Path(pasta_async.__file__).parent)
Step = tuple[str, int, int]
"""A file of the library, and two of its lines, one behind the other."""


def replay() -> int:
    """Try all that is kept; how many that is."""
    rows = read()
    for row in rows:
        KINDS[row["kind"]].check(row["case"])
        if row["kind"] == "guard" and "guard of pasta-smol" in possible():
            KINDS["guard of pasta-smol"].check(row["case"])
    return len(rows)


def read() -> list[dict[str, Any]]:
    """The rows of the file."""
    return [json.loads(line) for line in CORPUS.read_text(encoding="utf-8").splitlines()]


def collect() -> None:
    """Draw the file anew; what has a reason stays."""
    steps = set[Step]()
    rows = [row for row in read() if "why" in row]
    for row in rows:
        steps |= _steps_of(row["kind"], row["case"])
    for kind in ("text", "tokens", "guard", "schema"):
        rows += _that_go_further(kind, steps)
    CORPUS.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def _that_go_further(kind: str, steps: set[Step]) -> Iterator[dict[str, Any]]:
    for number in range(DRAWN):
        case = KINDS[kind].draw(random.Random(f"{kind} {number}"))
        if not (new := _steps_of(kind, case)) <= steps:
            steps |= new
            yield {"kind": kind, "case": case}


def _steps_of(kind: str, case: Any) -> set[Step]:
    steps = set[Step]()
    with _traced(lambda file, before, line: steps.add((file, before, line))):
        KINDS[kind].check(case)
    return steps


@contextmanager
def _traced(step: Callable[[str, int, int], None]) -> Generator[None]:
    def enter(frame: FrameType, event: str, _: object) -> Any:
        file, before = frame.f_code.co_filename, frame.f_lineno
        if not file.startswith(LIBRARY):
            return None

        def follow(frame: FrameType, event: str, _: object) -> Any:
            nonlocal before
            step(file, before, frame.f_lineno)
            before = frame.f_lineno
            return follow

        return follow

    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(None)


if __name__ == "__main__":
    collect()
