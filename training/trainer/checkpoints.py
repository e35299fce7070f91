"""Sharded checkpoints: each process writes its part, and any number of processes reads them again."""

# torch and transformers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
import shutil
import warnings
from typing import TYPE_CHECKING, Any

from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from pasta_async.errors import InvalidRequestError

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from pasta_async.training.trainer.processes import Processes

__all__ = ["Checkpoints"]

_NOTE = "run.json"


class Checkpoints:
    """The checkpoints of a run, below one folder.

    A checkpoint is complete when its folder has its name: it is written under another one first. So a run
    that is killed at any moment goes on from the last complete one.

    Args:
        folder: Where they lie.
        keep: How many to keep.
        identity: What must be the same when a run goes on, by the name of the setting.
        processes: The run's.
    """

    def __init__(self, folder: Path, keep: int, identity: dict[str, Any], processes: Processes) -> None:
        self._folder = folder
        self._keep = keep
        self._identity = json.loads(json.dumps(identity))
        self._processes = processes

    def latest(self) -> int | None:
        """The update after which the last complete checkpoint was written.

        Raises:
            InvalidRequestError: It belongs to a run with other settings or data.
        """
        steps = self._steps()
        if not steps:
            return None
        note = json.loads((self._place(steps[-1]) / _NOTE).read_text(encoding="utf-8"))
        for name, value in self._identity.items():
            old = note["identity"].get(name)
            if old != value:
                raise InvalidRequestError(
                    f"{self._folder} holds checkpoints of a run with {name} {old!r}, now it is {value!r}: "
                    "take the old value to go on, or another --out to start anew"
                )
        return steps[-1]

    def save(self, step: int, model: Any, optimizer: torch.optim.Optimizer) -> None:
        """Write a checkpoint and remove old ones. Every process must call it."""
        place = self._place(step)
        partial = place.with_name(f"{place.name}.partial")
        if self._processes.first:
            shutil.rmtree(partial, ignore_errors=True)
        self._processes.wait()
        save(_state(model, optimizer), checkpoint_id=partial)
        self._processes.wait()
        if self._processes.first:
            note = {"step": step, "identity": self._identity}
            (partial / _NOTE).write_text(json.dumps(note, indent=2) + "\n", encoding="utf-8")
            shutil.rmtree(place, ignore_errors=True)
            partial.replace(place)
            for old in self._steps()[: -self._keep]:
                shutil.rmtree(self._place(old))
        self._processes.wait()

    def load(self, step: int, model: Any, optimizer: torch.optim.Optimizer) -> None:
        """Read a checkpoint into model and optimizer. Every process must call it."""
        state = _state(model, optimizer)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about a single process
            load(state, checkpoint_id=self._place(step))
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])

    def _steps(self) -> list[int]:
        places = self._folder.glob("step-*")
        return sorted(int(place.name[5:]) for place in places if place.name[5:].isdigit())

    def _place(self, step: int) -> Path:
        return self._folder / f"step-{step:07d}"


def _state(model: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}
