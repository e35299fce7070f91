"""Runs a stage of training in two processes that find each other as torchrun's do.

They are forked from a process that has imported torch and transformers, which takes longer than the training.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["pasta_async.training.prefer", "pasta_async.training.sft"])


def run_in_two(stage: Callable[[Any], bool], settings: object) -> list[int | None]:
    """Run a stage in both until they end; the statuses by rank, 0 if it came to its end."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    processes = [_CONTEXT.Process(target=_run, args=(rank, port, stage, settings)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def _run(rank: int, port: int, stage: Callable[[Any], bool], settings: object) -> None:
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
    os.environ.update({name: str(value) for name, value in variables.items()}, MASTER_ADDR="127.0.0.1")
    assert stage(settings)
