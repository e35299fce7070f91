"""The engine's step, the thread that runs it, and the streams that its readers get.

`Engine` moves every job on by a token. `EngineLoop` runs its steps in a thread as long as there are jobs.
A `Stream` is one request, as the event loop that opened it reads it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from pasta_async.backends.local.batch import Entry
from pasta_async.backends.local.checkpoint import Checkpoint, ModelConfig, Read, expected_shapes, weight_count
from pasta_async.backends.local.int8 import BYTES, Array, choose_dtype, kv_dtype
from pasta_async.backends.local.machine import affordable_slots, available_cores, keep_freed_memory
from pasta_async.backends.local.sampler import sample
from pasta_async.backends.local.scheduler import Job, Scheduler
from pasta_async.backends.local.stored import stored_arrays
from pasta_async.backends.options import DType, EngineOptions
from pasta_async.clock import wait_out
from pasta_async.engine_load import StepTimes
from pasta_async.errors import BackendError, InvalidRequestError
from pasta_async.progress import progress
from pasta_async.protocol import Piece, RequestEnd

if TYPE_CHECKING:
    import torch

    from pasta_async.backends.local.compiled import CompiledLM
    from pasta_async.backends.local.model import CausalLM

_SLOW_TO_LOAD = 10**9  # weights from which on a progress bar is shown
_SLOW_TO_CONVERT = 10**8  # the same for weights that are converted to int8
_ONE_THREAD_BELOW = 10**8  # weights, of which the products are too small to share between threads


class Output(NamedTuple):
    """The outcome of a step for one job."""

    job: Job
    token: int | BackendError
    """The chosen token, or the reason why none could be chosen."""
    finish_reason: RequestEnd | None = None


class Engine:
    """Model, cache and scheduler. Not thread-safe: one thread at a time.

    Args:
        checkpoint: The model.
        options: Where and how to run it.

    Raises:
        UnsupportedModelError: The checkpoint cannot be used, or needs more memory than there is.
        InvalidRequestError: torch cannot use the device, or int8 is asked for on another one than a CPU.
    """

    def __init__(self, checkpoint: Checkpoint, options: EngineOptions) -> None:
        self.config: ModelConfig = checkpoint.config
        self.weights: int = weight_count(self.config)
        self._options = options
        self._device = _usable_device(options.get("device"))
        is_small = self.weights < _ONE_THREAD_BELOW
        self._threads = options.get("threads") or (1 if is_small else available_cores())
        self.dtype: DType = choose_dtype(options.get("dtype") or "auto", self.config, self._device)
        self.slots: int = affordable_slots(
            checkpoint,
            weight_bytes=BYTES[self.dtype],
            kv_bytes=BYTES[kv_dtype(self.dtype)],
            wanted=options.get("slots"),
            device=self._device,
        )
        self.context_length: int = min(self.config.positions, self.slots)
        keep_freed_memory()
        compiled = self.dtype == "int8"
        self._model: CompiledLM | CausalLM = (
            self._compiled(checkpoint) if compiled else self._plain(checkpoint)
        )
        self.step_times: StepTimes = StepTimes()
        """Times of the steps that only decode."""
        self.reset()
        if compiled:
            # numba compiles the kernels, or loads them, now rather than in an answer.
            token = Entry(np.zeros(1, np.int64), 0, np.zeros(1, np.int64))
            self._model.forward([token])  # in a slot that is nobody's yet

    def reset(self) -> None:
        """Forget every job and everything cached."""
        self.scheduler: Scheduler = Scheduler(
            self.slots,
            self._options.get("max_running", 256),
            self._options.get("max_prefill_tokens", 256),
        )
        self._model.clear(self.slots)

    def step(self) -> list[Output] | None:
        """Run the model once over the jobs that run; None if there are none.

        A job whose output has a `finish_reason` or an error is gone already.
        """
        # 1. The scheduler says which job computes how many tokens, and gives each token a slot.
        began = perf_counter()
        tasks = self.scheduler.plan()
        if not tasks:
            return None
        # 2. One forward pass over all of them; row i of the logits is of the last token of task i.
        logits = self._model.forward(
            [Entry(job.ids, job.computed, job.slots[: job.computed + count]) for job, count in tasks]
        )
        for job, count in tasks:
            job.computed += count
        # 3. A job whose whole context is computed now gets its next token; a prompt may need more steps.
        ready = [i for i, (job, _) in enumerate(tasks) if not job.uncomputed]
        if not ready:
            return []
        if len(ready) < len(tasks):
            logits = logits[ready]
        jobs = [tasks[i].job for i in ready]
        tokens = sample(logits, [job.sampler for job in jobs], [job.ids[: job.length] for job in jobs])
        outputs = [self._advance(job, token) for job, token in zip(jobs, tokens, strict=True)]
        if all(count == 1 for _, count in tasks):
            seconds = perf_counter() - began
            requests = len(tasks)
            self.step_times.add(1, requests, seconds, requests**2, requests * seconds)
        return outputs

    def _compiled(self, checkpoint: Checkpoint) -> CompiledLM:
        """The model for the int8 kernels; its arrays are made of the checkpoint once."""
        from pasta_async.backends.local.compiled import CompiledLM

        def make() -> Iterator[tuple[str, Array]]:
            from pasta_async.backends.local.conversion import MOST_LAYERS, int8_arrays

            with self._reading(checkpoint, "converting", _SLOW_TO_CONVERT) as read:
                yield from int8_arrays(self.config, read, min(self._threads, MOST_LAYERS))

        arrays = stored_arrays(checkpoint, make)
        return CompiledLM(self.config, arrays, self.context_length, self._threads)

    def _plain(self, checkpoint: Checkpoint) -> CausalLM:
        """The model in floating-point numbers, computed by torch."""
        from pasta_async.backends.local.conversion import use_threads
        from pasta_async.backends.local.model import CausalLM

        use_threads(self._threads)
        with self._reading(checkpoint, "loading", _SLOW_TO_LOAD) as read:
            return CausalLM(self.config, read, self.context_length, self.dtype)

    @contextmanager
    def _reading(self, checkpoint: Checkpoint, label: str, slow: int) -> Generator[Read]:
        """A function that reads tensors, which a progress bar counts for models of `slow` weights or more."""
        tensors = len(expected_shapes(self.config))
        with progress(tensors, f"{label} {checkpoint.path.name}", shown=self.weights >= slow) as advance:

            def read(name: str) -> torch.Tensor:
                advance()
                return checkpoint.tensor(name).to(self._device)

            yield read

    def _advance(self, job: Job, token: int | BackendError) -> Output:
        """Add a job's chosen token to it, and end it if that is its last one."""
        if isinstance(token, BackendError):
            self.scheduler.remove(job)
            return Output(job, token)
        if job.length == job.prompt_length:  # its first token: forks of it may come any time now
            self.scheduler.publish(job)
        job.ids[job.length] = token
        job.length += 1
        finish_reason: RequestEnd | None = None
        if token in job.stop_ids or job.sampler.over:
            finish_reason = "stop"
        elif job.length == job.max_length:
            finish_reason = "length"
        if finish_reason:
            self.scheduler.remove(job)
        return Output(job, token, finish_reason)


def _usable_device(name: str | None) -> str:
    if name is None or name.startswith("cpu"):
        return "cpu"
    import torch

    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:  # the second: torch was built without CUDA
        reason = str(error).splitlines()[0]
        raise InvalidRequestError(f"torch cannot use the device {name!r} here: {reason}") from error
    return name


class Stream:
    """A job, and the pieces for its reader, who is on the running event loop."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.ended: asyncio.Event = asyncio.Event()
        """Set once the engine is done with the job."""
        self._pieces: asyncio.Queue[Piece | BackendError] = asyncio.Queue()

    def post(self, piece: Piece | BackendError) -> None:
        """Hand the reader a piece, or the error that ends the stream."""
        self._pieces.put_nowait(piece)
        if isinstance(piece, BackendError) or piece.finish_reason:
            self.ended.set()

    async def read(self) -> Piece:
        """The next piece. Cancelling it loses nothing."""
        piece = await self._pieces.get()
        if isinstance(piece, BackendError):
            raise piece
        return piece


_Delivery: TypeAlias = tuple[Stream, Piece | BackendError]


class EngineLoop:
    """Steps an engine in the one thread of an executor, as long as there are jobs.

    Public methods may be called in any thread and on any event loop. They leave commands, which run between
    two steps, so that the engine's thread alone touches the engine.
    """

    def __init__(self, engine: Engine, executor: Executor) -> None:
        self._engine = engine
        self._executor = executor
        self._commands: deque[Callable[[], None]] = deque()
        self._streams: dict[Job, Stream] = {}
        self._lock = threading.Lock()  # for `_running`, `_closed`, and adding commands
        self._running = False
        self._closed = False
        self._broken = False  # a step failed, and the engine could not be reset

    def open(self, stream: Stream) -> None:
        """Start a stream.

        Raises:
            BackendError: The loop is closed.
        """
        self._submit(lambda: self._add(stream))

    async def close(self, stream: Stream) -> None:
        """End a stream. When this returns its slots are free. A cancellation is raised only after that."""
        if not stream.ended.is_set():
            with suppress(BackendError):  # whoever closed the loop ends the stream
                self._submit(lambda: self._remove(stream))
        if cancelled := await wait_out(stream.ended.is_set, stream.ended.wait):
            raise cancelled

    async def aclose(self, error: BackendError) -> None:
        """End every stream with an error. A cancellation is raised only after that."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def end() -> None:
            self._fail(error)
            _call_soon(loop, done.set)

        self._submit(end, last=True)
        if cancelled := await wait_out(done.is_set, done.wait):
            raise cancelled

    def _submit(self, command: Callable[[], None], *, last: bool = False) -> None:
        with self._lock:
            if self._closed:
                raise BackendError("the backend was closed")
            self._closed = last
            self._commands.append(command)
            if self._running:
                return
            self._running = True
        self._executor.submit(self._run)

    def _run(self) -> None:
        """Step until every job has ended."""
        while True:
            try:
                self._step_while_possible()
            except BaseException as error:  # else nobody would step for those who wait
                self._recover(error)
            with self._lock:  # a command that comes from now on starts another run
                if not self._commands:
                    self._running = False
                    return

    def _step_while_possible(self) -> None:
        while True:
            while self._commands:
                command = self._commands.popleft()
                command()
            outputs = self._engine.step()
            if outputs is None:
                return
            self._hand_out(outputs)

    def _recover(self, error: BaseException) -> None:
        """End all streams with the error of a step that failed, and begin with an empty engine."""
        failure = BackendError(f"the embedded engine failed: {error!r}")
        failure.__cause__ = error
        self._broken = True
        with suppress(Exception):  # no memory, say; the next request tries it again
            self._reset()
        streams = [*self._streams.values()]
        self._streams.clear()
        for stream in streams:
            _call_soon(stream.loop, stream.post, failure)

    def _reset(self) -> None:
        self._engine.reset()
        self._broken = False

    def _add(self, stream: Stream) -> None:
        for other in [*self._streams.values()]:
            if other.loop.is_closed():  # nobody will read it
                self._remove(other)
        self._streams[stream.job] = stream
        if self._broken:
            self._reset()
        self._engine.scheduler.add(stream.job)

    def _remove(self, stream: Stream) -> None:
        if self._streams.pop(stream.job, None):
            self._engine.scheduler.remove(stream.job)
        _call_soon(stream.loop, stream.ended.set)

    def _fail(self, error: BackendError) -> None:
        for stream in [*self._streams.values()]:
            _call_soon(stream.loop, stream.post, error)
            self._remove(stream)

    def _hand_out(self, outputs: Sequence[Output]) -> None:
        """Give the readers their tokens, by one call to each event loop: waking one is costly."""
        deliveries: defaultdict[asyncio.AbstractEventLoop, list[_Delivery]] = defaultdict(list)
        for job, token, finish_reason in outputs:
            stream = self._streams[job]
            piece = token
            if not isinstance(piece, BackendError):
                # The first piece and the last say how much of the prompt was cached.
                has_count = finish_reason or job.length == job.prompt_length + 1
                piece = Piece((piece,), finish_reason, job.cached if has_count else None)
            if finish_reason or isinstance(piece, BackendError):
                del self._streams[job]
            deliveries[stream.loop].append((stream, piece))
        for loop, delivery in deliveries.items():
            if not _call_soon(loop, _post_all, delivery):  # closed meanwhile
                for stream in [stream for stream in self._streams.values() if stream.loop is loop]:
                    self._remove(stream)


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *arguments: Any) -> bool:
    """Have a loop call something, from another thread; False if it was closed meanwhile."""
    try:
        loop.call_soon_threadsafe(callback, *arguments)
    except RuntimeError:
        return False
    return True


def _post_all(deliveries: Sequence[_Delivery]) -> None:
    for stream, piece in deliveries:
        stream.post(piece)
