"""The processes of a run, one alone or those that torchrun started, and what they write: checkpoints."""

# torch and transformers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import fcntl
import json
import os
import shutil
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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

_NOTE = "run.json"
_TRAINED = StateDictOptions(ignore_frozen_params=True, strict=False)
"""What is frozen comes from the base model."""
_KEPT = 2
"""Checkpoints that are kept."""


@dataclass(frozen=True, slots=True)
class Processes:
    """This process among those of the run. Every process must call what talks to the others."""

    rank: int
    world: int
    device: torch.device
    mesh: DeviceMesh

    @property
    def first(self) -> bool:
        """Whether this process writes what is written once."""
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, by rank."""
        values: list[Any] = [None] * self.world
        distributed.all_gather_object(values, value)
        return values

    def sums(self, values: Sequence[float]) -> list[float]:
        """Sums over all processes, in float64."""
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        distributed.all_reduce(total)
        return total.tolist()

    def wait(self) -> None:
        """Wait for all processes."""
        distributed.barrier()


@contextmanager
def open_processes(device: str) -> Generator[Processes]:
    """Join torchrun's processes, or be the only one; leave them at the end.

    The device is `"cpu"`, `"cuda"`, or `"auto"` for CUDA where there is one.

    Raises:
        InvalidRequestError: CUDA is asked for and missing.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise InvalidRequestError("device cuda: torch finds no CUDA device here")
    cuda = device != "cpu" and torch.cuda.is_available()
    place = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if cuda else "cpu")
    if cuda:
        torch.cuda.set_device(place)
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        distributed.init_process_group(backend)
    else:
        store = distributed.HashStore()  # pyright: ignore[reportPrivateImportUsage]
        distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        world = distributed.get_world_size()
        yield Processes(distributed.get_rank(), world, place, init_device_mesh(place.type, (world,)))
    finally:
        distributed.destroy_process_group()


def is_first() -> bool:
    """Whether this process writes what is written once; known before the processes have joined."""
    return int(os.environ.get("RANK", "0")) == 0


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
    what `identity` has, by the name of the setting, must be the same then.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any], processes: Processes) -> None:
        self._folder = folder
        self._identity: dict[str, Any] = json.loads(json.dumps(identity))
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
            if (old := note["identity"].get(name)) != value:
                raise InvalidRequestError(
                    f"{self._folder} holds checkpoints of a run with {name} {old!r}, now it is {value!r}: "
                    "take the old value to go on, or another --out to start anew"
                )
        return steps[-1]

    def save(self, step: int, model: Any, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Write a checkpoint and remove old ones."""
        place = self._place(step)
        partial = place.with_name(f"{place.name}.partial")
        if self._processes.first:
            shutil.rmtree(partial, ignore_errors=True)
        self._processes.wait()
        save(_state(model, optimizers), checkpoint_id=partial)
        self._processes.wait()
        if self._processes.first:
            note = {"step": step, "identity": self._identity}
            write_json(partial / _NOTE, note)
            shutil.rmtree(place, ignore_errors=True)
            partial.replace(place)
            for old in self._steps()[:-_KEPT]:
                shutil.rmtree(self._place(old))
        self._processes.wait()

    def load(self, step: int, model: Any, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Read a checkpoint into model and optimizers."""
        state = _state(model, optimizers)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about a single process
            load(state, checkpoint_id=self._place(step))
        weights, moments = state["model"], state["optimizer"]
        set_state_dict(
            model, optimizers, model_state_dict=weights, optim_state_dict=moments, options=_TRAINED
        )

    def _steps(self) -> list[int]:
        places = self._folder.glob("step-*")
        return sorted(int(place.name[5:]) for place in places if place.name[5:].isdigit())

    def _place(self, step: int) -> Path:
        return self._folder / f"step-{step:07d}"


def _state(model: Any, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizers, options=_TRAINED)
    return {"model": weights, "optimizer": moments}
