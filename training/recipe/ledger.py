"""What a run has done: a file for each step, OUT/steps/NAME.json."""

from __future__ import annotations

import shutil
import time
from contextlib import contextmanager
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from pasta_async.training.recipe.step import fingerprints

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from pasta_async.training.recipe.step import Step

__all__ = ["KEEP", "Done", "Ledger"]

KEEP = 5.0
"""Seconds of a step, or of a run, that a kill may leave out of the count."""


class Done(BaseModel):
    """How far a step is."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    fingerprint: str
    command: list[str]
    """What it was begun with, without the flags that change nothing."""
    finished: bool = False
    seconds: float = 0.0
    """Wall time, over all starts."""
    starts: int = 0


class Ledger:
    """The files of a run.

    Args:
        out: The folder of the run.
        steps: All steps of its plan.
    """

    def __init__(self, out: Path, steps: Sequence[Step]) -> None:
        self.folder: Path = out / "steps"
        self._wanted = fingerprints(steps, out)

    def finished(self, step: Step) -> bool:
        """Whether it is done, from the same inputs and with the same settings."""
        done = self.read(step)
        return done is not None and done.finished and done.fingerprint == self._wanted[step.name]

    def begin(self, step: Step) -> Done:
        """Make ready to run it: what another command, or other inputs, left is taken away."""
        done = self.read(step)
        wanted = Done(fingerprint=self._wanted[step.name], command=step.same())
        if done is not None and (done.fingerprint, done.command) == (wanted.fingerprint, wanted.command):
            wanted = done
        elif done is not None:
            shutil.rmtree(step.output, ignore_errors=True)
        wanted.finished = False
        wanted.starts += 1
        self.write(step, wanted)
        return wanted

    def read(self, step: Step) -> Done | None:
        """How far it is; None if it was never begun here."""
        try:
            return Done.model_validate_json(self._path(step).read_bytes())
        except (FileNotFoundError, ValidationError):
            return None

    def write(self, step: Step, done: Done) -> None:
        """Keep how far it is."""
        _write(self._path(step), done.model_dump_json(indent=1) + "\n")

    @property
    def seconds(self) -> float:
        """Wall time of the run so far, over all its starts: less than its steps' if some ran together."""
        try:
            return float(self._clock.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return 0.0

    @contextmanager
    def running(self) -> Generator[Callable[[], None]]:
        """Count the run's wall time; call what this gives from time to time, lest a kill loses it."""
        before, began = self.seconds, time.monotonic()
        kept = began

        def keep(every: float = KEEP) -> None:
            nonlocal kept
            if (now := time.monotonic()) - kept >= every:
                kept = now
                _write(self._clock, f"{before + now - began:.1f}\n")

        try:
            yield keep
        finally:
            keep(0)

    @property
    def _clock(self) -> Path:
        return self.folder / "seconds"

    def _path(self, step: Step) -> Path:
        return self.folder / f"{step.name}.json"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.part")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
