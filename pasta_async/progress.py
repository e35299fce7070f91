"""A progress bar for long work."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Protocol


class Advance(Protocol):
    """Moves the progress bar of `progress`; does nothing where no bar is shown."""

    def __call__(self, steps: int = 1, note: str | None = None) -> None:
        """Count further steps as done; `note` is shown behind the bar (the loss, for instance)."""
        ...


@contextmanager
def progress(total: int, label: str, *, done: int = 0, shown: bool = True) -> Generator[Advance]:
    """Show a progress bar on stderr, where rich is installed and stderr is a terminal.

    Args:
        total: Steps of the work.
        label: Text in front of the bar.
        done: Steps that an earlier run has done.
        shown: True for the process that shows the bar, of several that do the work.
    """
    if not shown or find_spec("rich") is None:
        yield lambda steps=1, note=None: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    bars = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    columns = "{task.description}", *bars, "{task.fields[note]}"
    drawn = Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    with drawn as bar:
        task = bar.add_task(label, total=total, completed=done, note="")

        def advance(steps: int = 1, note: str | None = None) -> None:
            if note is not None:
                bar.update(task, note=note)
            bar.advance(task, steps)

        yield advance
