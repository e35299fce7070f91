"""Jobs of the embedded engine, run to their end without a backend."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Unpack

import torch

from pasta_async.backends.local.adapter import open_checkpoint
from pasta_async.backends.local.batch import Floats
from pasta_async.backends.local.engine import Engine
from pasta_async.backends.local.sampler import TokenSampler
from pasta_async.backends.local.scheduler import Job
from pasta_async.backends.options import EngineOptions
from pasta_async.options import Sampling
from tests.helpers.cache_checks import check_scheduler


class Watched(NamedTuple):
    """The output of a greedy job."""

    logits: list[torch.Tensor]
    """Float32, a row for each token."""
    ids: list[int]


def open_engine(path: Path, **options: Unpack[EngineOptions]) -> Engine:
    """The engine for a folder or a file, on the CPU."""
    options.setdefault("device", "cpu")
    return Engine(open_checkpoint(path), options)


def job(ids: Sequence[int], count: int, *, group: object = 0) -> Job:
    """A greedy job."""
    return Job(group, ids, count, TokenSampler(Sampling(), None), ())


def run(engine: Engine, *jobs: Job) -> None:
    """Add the jobs and step to the end, checking every invariant after each step."""
    for task in jobs:
        engine.scheduler.add(task)
    while engine.step() is not None:
        check_scheduler(engine.scheduler)


def decoded(task: Job) -> list[int]:
    return task.ids[task.prompt_length : task.length].tolist()


def watched(engine: Engine, *prompts: Sequence[int], count: int) -> list[Watched]:
    """Decode so many tokens behind each prompt, all together."""
    outputs = [Watched([], []) for _ in prompts]
    jobs = [
        Job(0, ids, count, TokenSampler(Sampling(), 0, _Noting(output.logits)), ())
        for ids, output in zip(prompts, outputs, strict=True)
    ]
    run(engine, *jobs)
    for task, output in zip(jobs, outputs, strict=True):
        output.ids.extend(decoded(task))
    return outputs


class _Noting:
    """A logits processor that changes nothing."""

    def __init__(self, noted: list[torch.Tensor]) -> None:
        self._noted = noted

    def __call__(self, generated: Sequence[int], logits: Floats) -> Floats:
        self._noted.append(torch.tensor(logits))
        return logits
