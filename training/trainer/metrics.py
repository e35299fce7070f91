"""Metrics: a local file of JSON lines always, TensorBoard or Weights & Biases where wanted."""

# torch leaves some of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import importlib
import importlib.util
import json
from typing import TYPE_CHECKING, Any

from pasta_async.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["Metrics", "check_tracker"]


class Metrics:
    """Appends a line for each logged update; lines of updates that are computed anew are dropped.

    Args:
        folder: The run's folder; the file is `metrics.jsonl` in it.
        start: The update the run goes on from: later lines are removed.
        track: As `check_tracker` returned it.
        settings: Told to Weights & Biases.
    """

    def __init__(self, folder: Path, start: int, track: str, settings: Mapping[str, Any]) -> None:
        path = folder / "metrics.jsonl"
        # Lines are of rising steps, so those behind the start, and one that a kill cut short, are at the end.
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.is_file() else []
        kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= start]
        path.write_text("".join(kept), encoding="utf-8")
        self._file = path.open("a", encoding="utf-8")
        self._board: Any = None
        self._run: Any = None
        if track == "tensorboard":
            board: Any = importlib.import_module("torch.utils.tensorboard")
            self._board = board.SummaryWriter(str(folder / "tensorboard"), purge_step=start + 1)
        elif track == "wandb":
            wandb: Any = importlib.import_module("wandb")
            self._run = wandb.init(dir=str(folder), config=dict(settings), resume="allow")

    def write(self, values: Mapping[str, float]) -> None:
        """Write the values of an update; `step` is one of them."""
        self._file.write(json.dumps(values) + "\n")
        self._file.flush()
        step = int(values["step"])
        rest = {name: value for name, value in values.items() if name != "step"}
        if self._board is not None:
            for name, value in rest.items():
                self._board.add_scalar(name, value, step)
        if self._run is not None:
            self._run.log(rest, step=step)

    def close(self) -> None:
        """Close the file, and what else is open."""
        self._file.close()
        if self._board is not None:
            self._board.close()
        if self._run is not None:
            self._run.finish()


def check_tracker(track: str) -> str:
    """Where metrics go beside the file: `"none"`, `"tensorboard"` or `"wandb"`.

    Args:
        track: One of these, or `"auto"` for TensorBoard where it is installed.

    Raises:
        InvalidRequestError: What is asked for is not installed.
    """
    installed = track == "none" or importlib.util.find_spec("tensorboard" if track == "auto" else track)
    if track == "auto":
        return "tensorboard" if installed else "none"
    if not installed:
        raise InvalidRequestError(f"track {track} needs a package that is missing: pip install {track}")
    return track
