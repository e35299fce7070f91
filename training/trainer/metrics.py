"""Metrics: a local file of JSON lines always, TensorBoard where it is installed."""

# torch leaves some of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import importlib
import importlib.util
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["Metrics"]


class Metrics:
    """Appends a line for each update; lines of updates that are computed anew are dropped.

    Args:
        folder: The run's folder; the file is `metrics.jsonl` in it.
        start: The update the run goes on from: later lines are removed.
        board: Whether TensorBoard gets the same, where it is installed.
    """

    def __init__(self, folder: Path, start: int, board: bool) -> None:
        path = folder / "metrics.jsonl"
        # Lines are of rising steps, so those behind the start, and one that a kill cut short, are at the end.
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.is_file() else []
        kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= start]
        path.write_text("".join(kept), encoding="utf-8")
        self._file = path.open("a", encoding="utf-8")
        self._board: Any = None
        if board and importlib.util.find_spec("tensorboard"):
            tensorboard: Any = importlib.import_module("torch.utils.tensorboard")
            self._board = tensorboard.SummaryWriter(str(folder / "tensorboard"), purge_step=start + 1)

    def write(self, values: Mapping[str, float]) -> None:
        """Write the values of an update; `step` is one of them."""
        self._file.write(json.dumps(values) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name, value, int(values["step"]))

    def close(self) -> None:
        """Close the file and TensorBoard's."""
        self._file.close()
        if self._board is not None:
            self._board.close()
