"""Runs a stage of training in two processes that find each other as torchrun's do.

They are forked from a process that has imported torch and transformers, which takes longer than the training.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from pasta_async.training.trainer.settings import TrainerSettings

__all__ = ["run_in_two"]

S = TypeVar("S", bound="TrainerSettings")

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["pasta_async.training.prefer", "pasta_async.training.pretrain"])


def run_in_two(stage: Callable[[S], bool], settings: S) -> None:
    """Run it in both to the end."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    processes = [_CONTEXT.Process(target=_run, args=(rank, port, stage, settings)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]


def _run(rank: int, port: int, stage: Callable[[S], bool], settings: S) -> None:
    found = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
    os.environ.update({name: str(value) for name, value in found.items()}, MASTER_ADDR="127.0.0.1")
    assert stage(settings)
