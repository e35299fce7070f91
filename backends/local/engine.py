"""The embedded engine: one call of `step` moves every job on by a token (or a part of its prompt)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from pasta_async.backends.local.batch import BatchMaker, Entry, RowBatch
from pasta_async.backends.local.cache import KVCache
from pasta_async.backends.local.checkpoint import Checkpoint, ModelConfig, expected_shapes, weight_count
from pasta_async.backends.local.linear import DType, choose_dtype, kv_dtype
from pasta_async.backends.local.memory import affordable_slots, keep_freed_memory
from pasta_async.backends.local.model import CausalLM
from pasta_async.backends.local.opening import open_checkpoint
from pasta_async.backends.local.sampler import sample
from pasta_async.backends.local.scheduler import Job, Scheduler
from pasta_async.errors import BackendError, InvalidRequestError
from pasta_async.jobs import progress
from pasta_async.load import StepTimes
from pasta_async.results import FinishReason

_LARGE = 10**9  # weights; how far the loading of such a model is gets shown


class EngineOptions(NamedTuple):
    """What can be set; None: what suits the model and the machine."""

    device: str | None = None
    dtype: DType | Literal["auto"] | None = None
    slots: int | None = None
    context_length: int | None = None
    max_running: int = 256
    max_prefill_tokens: int = 256
    threads: int | None = None


class Output(NamedTuple):
    """A token that a job decoded in a step."""

    job: Job
    token: int | None
    """None if it decodes nothing, and its context is computed; or on an error."""
    finish_reason: FinishReason | None
    error: BackendError | None = None
    """Why no token could be chosen for it."""


class Engine:
    """Model, cache and scheduler. Not thread-safe: one thread at a time.

    Args:
        model: A checkpoint, or the path of one (`open_checkpoint`).
        options: Where and how to run it.

    Raises:
        UnsupportedModelError: The checkpoint cannot be used, or needs more memory than there is.
        InvalidRequestError: torch cannot use the device.
    """

    def __init__(self, model: Path | Checkpoint, options: EngineOptions) -> None:
        checkpoint = open_checkpoint(model) if isinstance(model, Path) else model
        config = checkpoint.config
        self.config: ModelConfig = config
        self._device = _usable_device(options.device)
        self.weights: int = weight_count(config)
        self._threads = options.threads or torch.get_num_threads()
        self.dtype: DType = choose_dtype(options.dtype or "auto", self.weights, self._device)
        self._options = options
        self.slots: int = affordable_slots(checkpoint, self.dtype, options.slots, self._device)
        self.context_length: int = min(config.positions, self.slots, options.context_length or self.slots)
        keep_freed_memory()
        label, tensors = f"loading {checkpoint.path.name}", len(expected_shapes(config))
        with progress(tensors, label, shown=self.weights >= _LARGE) as advance:

            def read(name: str) -> torch.Tensor:
                advance()
                return checkpoint.tensor(name).to(self._device)

            self._model = CausalLM(config, read, self.context_length, self.dtype, self._threads)
        self.step_times: StepTimes = StepTimes()  # of steps that only decode, from whoever calls `step`
        self.latest: tuple[int, int] = 0, 0
        """Requests that the latest step decoded for, and tokens of prompts that it computed."""
        self.reset()
        if self._model.compiled:  # numba compiles the kernels, or loads them, now rather than in an answer
            token = Entry(0, np.zeros(1, np.int64), 0, np.zeros(1, np.int64))
            self._model.forward(RowBatch.of([token]), self._cache)  # in a slot that is nobody's yet

    @property
    def torch_threads(self) -> int:
        """With how many threads torch should compute.

        Behind each operator they wait for the next one actively, on the cores that our kernels' threads need:
        a prompt took three times as long.
        """
        return 1 if self._model.compiled else self._threads

    def reset(self) -> None:
        """Forget every job and everything cached."""
        options, slots, dtype = self._options, self.slots, kv_dtype(self.dtype, self._device)
        self.scheduler: Scheduler = Scheduler(slots, options.max_running, options.max_prefill_tokens)
        maker = BatchMaker(slots, self._device, dtype)
        self._batch = RowBatch.of if self._model.compiled else maker.make
        vars(self).pop("_cache", None)  # there may be no room for two
        self._cache = KVCache(self.config, slots, self._device, dtype)

    def add(self, job: Job) -> None:
        """Take a job in, for the next `step`."""
        self.scheduler.add(job)

    def remove(self, job: Job) -> None:
        """Let a job go before its end; what it computed stays cached."""
        self.scheduler.remove(job)

    def step(self) -> list[Output] | None:
        """Run the model once over all jobs that can move; None if there are none.

        A job whose output has `finish_reason` set is gone already.
        """
        tasks = self.scheduler.plan()
        if not tasks:
            return None
        decoding = sum(count == 1 for _, count in tasks)
        self.latest = decoding, sum(count for _, count in tasks) - decoding
        batch = self._batch(
            [Entry(job.group, job.ids, job.filled, job.slots[: job.filled + count]) for job, count in tasks]
        )
        logits = self._model.forward(batch, self._cache)
        for job, count in tasks:
            job.filled += count
        outputs = [self._end(job) for job, _ in tasks if job.decodes_nothing and not job.missing]
        ready = [i for i, (job, _) in enumerate(tasks) if not job.missing and not job.decodes_nothing]
        if not ready:
            return outputs
        if len(ready) < len(tasks):
            logits = logits[ready]
        jobs = [tasks[i].job for i in ready]
        tokens = sample(logits, [job.sampler for job in jobs], [job.ids[: job.length] for job in jobs])
        return [*outputs, *(self._advance(job, token) for job, token in zip(jobs, tokens, strict=True))]

    def _end(self, job: Job, error: BackendError | None = None) -> Output:
        """The context of a job that decodes nothing is computed, or its next token could not be chosen."""
        self.scheduler.remove(job)
        return Output(job, None, "error" if error else "length", error)

    def _advance(self, job: Job, token: int | BackendError) -> Output:
        if isinstance(token, BackendError):
            return self._end(job, token)
        if job.length == job.prompt:
            self.scheduler.publish(job)
        job.ids[job.length] = token
        job.length += 1
        finish_reason: FinishReason | None = None
        if token in job.stops:
            finish_reason = "stop"
        elif job.length == job.limit:
            finish_reason = "length"
        if finish_reason:
            self.scheduler.remove(job)
        return Output(job, token, finish_reason)


def _usable_device(name: str | None) -> torch.device:
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:  # torch raises the second where it was built without CUDA
        reason = str(error).splitlines()[0]
        raise InvalidRequestError(f"torch cannot use the device {name!r} here: {reason}") from error
    return device
