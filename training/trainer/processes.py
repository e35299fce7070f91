"""The processes of a run: one alone, or those that torchrun started."""

# torch and transformers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

from pasta_async.errors import InvalidRequestError, PastaError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["Processes", "is_first", "open_processes"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Processes:
    """This process among those of the run."""

    rank: int
    world: int
    device: torch.device
    mesh: DeviceMesh

    @property
    def first(self) -> bool:
        """Whether this process writes what is written once."""
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, by rank. Every process must call it."""
        values: list[Any] = [None] * self.world
        distributed.all_gather_object(values, value)
        return values

    def share(self, value: Any) -> Any:
        """The first process's value. Every process must call it."""
        box: list[Any] = [value]
        distributed.broadcast_object_list(box, src=0)
        return box[0]

    def once(self, work: Callable[[], T]) -> T:
        """Let the first process do some work, and give its result, or its error, to all.

        Every process must call it.

        Raises:
            PastaError: What the work raised.
        """
        done: tuple[Any, PastaError | None] = (None, None)
        if self.first:
            try:
                done = (work(), None)
            except PastaError as error:
                done = (None, error)
        result, error = self.share(done)
        if error is not None:
            raise error
        return result

    def sums(self, values: Sequence[float]) -> list[float]:
        """Sums over all processes, in float64. Every process must call it."""
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        distributed.all_reduce(total)
        return total.tolist()

    def wait(self) -> None:
        """Wait for all processes."""
        distributed.barrier()


@contextmanager
def open_processes(device: str) -> Generator[Processes]:
    """Join torchrun's processes, or be the only one; leave them at the end.

    Args:
        device: `"cpu"`, `"cuda"`, or `"auto"` for CUDA where there is one.

    Raises:
        InvalidRequestError: CUDA is asked for and missing.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise InvalidRequestError("device cuda: torch finds no CUDA device here")
    kind = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
    place = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if kind == "cuda" else "cpu")
    if kind == "cuda":
        torch.cuda.set_device(place)
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        distributed.init_process_group(backend)
    else:
        store = distributed.HashStore()  # pyright: ignore[reportPrivateImportUsage]
        distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        world = distributed.get_world_size()
        yield Processes(distributed.get_rank(), world, place, init_device_mesh(kind, (world,)))
    finally:
        distributed.destroy_process_group()


def is_first() -> bool:
    """Whether this process writes what is written once; known before the processes have joined."""
    return int(os.environ.get("RANK", "0")) == 0
