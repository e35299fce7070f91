"""The processes of a run, one alone or those that torchrun started, and the checkpoints that they write."""

# torch leaves some of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import fcntl
import json
import os
import shutil
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from pasta_async.errors import InvalidRequestError, TrainingError
from pasta_async.jobs import write_json
from pasta_async.training.model import own_device

_KEPT = 2
"""Checkpoints that are kept."""
_NOTE = "run.json"
_TRAINED = StateDictOptions(ignore_frozen_params=True, strict=False)
"""Checkpoints have what is trained; what is frozen comes from the base model."""


def is_first() -> bool:
    """True in the process that writes what is written once; known before the processes have joined."""
    return int(os.environ.get("RANK", "0")) == 0


def sums(values: Sequence[float], mesh: DeviceMesh) -> list[float]:
    """Sums over all processes, in float64. Every process must call it."""
    total = torch.tensor(values, dtype=torch.float64, device=own_device(mesh))
    distributed.all_reduce(total)
    return total.tolist()


def gather(value: Any) -> list[Any]:
    """The values of all processes, by rank. Every process must call it."""
    values: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(values, value)
    return values


@contextmanager
def open_processes(device: str) -> Generator[DeviceMesh]:
    """Join torchrun's processes, or be the only one; leave them at the end.

    The device is `"cpu"`, `"cuda"`, or `"auto"` for CUDA where there is one.

    Raises:
        InvalidRequestError: CUDA is asked for and missing.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise InvalidRequestError("device cuda: torch finds no CUDA device here")
    cuda = device != "cpu" and torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        distributed.init_process_group(backend)
    else:
        store = distributed.HashStore()  # pyright: ignore[reportPrivateImportUsage]
        distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        yield init_device_mesh("cuda" if cuda else "cpu", (distributed.get_world_size(),))
    finally:
        distributed.destroy_process_group()


@contextmanager
def only_run(folder: Path) -> Generator[None]:
    """Hold a run's folder against other runs, before anything is read or written.

    The first process holds a lock, which ends with it, however it ends.

    Raises:
        TrainingError: Another run holds the folder.
    """
    if not is_first():
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            told = f"another run trains in {folder}: wait for it, or take another --out"
            raise TrainingError(told) from None
        yield


class Checkpoints:
    """The checkpoints of a run, below one folder. Every process must call `save` and `load`.

    One is written under another name first, so a run that is killed at any moment goes on from a whole one;
    the `identity`, by the names of settings, must be the same then.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self._folder = folder
        self._identity: dict[str, Any] = json.loads(json.dumps(identity))

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
            if (old := note["identity"].get(name)) != value:
                raise InvalidRequestError(
                    f"{self._folder} holds checkpoints of a run with {name} {old!r}, now it is {value!r}: "
                    "take the old value to go on, or another --out to start anew"
                )
        return steps[-1]

    def save(self, step: int, model: Any, optimizer: torch.optim.Optimizer) -> None:
        """Write a checkpoint and remove old ones."""
        place = self._place(step)
        partial = place.with_name(f"{place.name}.partial")
        if is_first():
            shutil.rmtree(partial, ignore_errors=True)
        distributed.barrier()
        save(_state(model, optimizer), checkpoint_id=partial)
        distributed.barrier()
        if is_first():
            write_json(partial / _NOTE, {"step": step, "identity": self._identity})
            shutil.rmtree(place, ignore_errors=True)
            partial.replace(place)
            for old in self._steps()[:-_KEPT]:
                shutil.rmtree(self._place(old))
        distributed.barrier()

    def load(self, step: int, model: Any, optimizer: torch.optim.Optimizer) -> None:
        """Read a checkpoint into model and optimizer."""
        state = _state(model, optimizer)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about a single process
            load(state, checkpoint_id=self._place(step))
        weights, moments = state["model"], state["optimizer"]
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments, options=_TRAINED)

    def _steps(self) -> list[int]:
        places = self._folder.glob("step-*")
        return sorted(int(place.name[5:]) for place in places if place.name[5:].isdigit())

    def _place(self, step: int) -> Path:
        return self._folder / f"step-{step:07d}"


def _state(model: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer, options=_TRAINED)
    return {"model": weights, "optimizer": moments}
