"""The int8 kernels' weights, threads and calls: a step of the whole model is one call (`kernels`)."""

# torch leaves some of its types open.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import math
import queue
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pasta_async.backends.local.batch import RowBatch
from pasta_async.backends.local.cache import KVCache
from pasta_async.backends.local.checkpoint import ModelConfig
from pasta_async.backends.local.int8 import BLOCK, GROUP, LANES, PANEL, VNNI

Task = tuple[Any, int, int, NDArray[np.int64], int, tuple[Any, ...]]


class Team:
    """Threads that run a kernel together: the caller's own, and workers that wait for its next call.

    They wait actively for some milliseconds, longer than between two steps, and then sleep.

    Args:
        size: The number of threads, the caller's included.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._sync, self._turn = np.zeros(16, np.int64), 0  # two counts, see `kernels._CALLS`
        self._queues: list[queue.SimpleQueue[Task | None]] = [queue.SimpleQueue() for _ in range(size - 1)]
        for tasks in self._queues:
            threading.Thread(target=_work, args=(tasks,), name="pasta-kernels", daemon=True).start()
        weakref.finalize(self, _dismiss, self._queues)

    def run(self, kernel: Any, *args: Any) -> None:
        """Call ``kernel(thread, threads, sync, turn, *args)`` in each thread; returns when all are through.

        `sync` is the address of the number of all waits so far, of all threads, and `turn` of those of each.
        A kernel tells the others that a call begins, ends with `kernels._end`, and returns its next turn.
        """
        for number, tasks in enumerate(self._queues, 1):
            tasks.put((kernel, number, self.size, self._sync, self._turn, args))
        self._turn = kernel(0, self.size, self._sync.ctypes.data, self._turn, *args)


def _work(tasks: queue.SimpleQueue[Task | None]) -> None:
    while (task := tasks.get()) is not None:
        kernel, number, size, sync, turn, args = task
        kernel(number, size, sync.ctypes.data, turn, *args)
        del task, args  # they may be all that keeps the model


def _dismiss(queues: list[queue.SimpleQueue[Task | None]]) -> None:
    for tasks in queues:
        tasks.put(None)


class CompiledLinear:
    """8-bit weights with a scale for each output, laid out for the kernels.

    Args:
        rounded: int8 `[out, in]`.
        scales: `[out, 1]`, the value of a row's 1.
        bias: `[out]`, or None.
    """

    def __init__(self, rounded: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None) -> None:
        weights = _padded(rounded.numpy(), np.int8)
        fours = weights.view(np.int32)  # that one instruction takes together
        packed = fours.reshape(-1, PANEL, fours.shape[1]).swapaxes(1, 2)
        aligned = _room(packed.shape, packed.dtype)
        aligned[...] = packed
        self._arrays: tuple[NDArray[Any], ...] = (
            aligned,
            _padded(scales[:, 0].numpy(), np.float32),
            weights.sum(1, dtype=np.int32),
            _padded(np.zeros(0) if bias is None else bias.float().numpy(), np.float32, len(weights)),
        )
        self.padded: int = len(weights)
        """Outputs, rounded up to whole groups."""
        self.kernel_arguments: NDArray[np.int64] = np.array(
            [*(array.ctypes.data for array in self._arrays), weights.shape[1] // 4]
        )
        """Addresses of the weights, scales, sums and biases, and the number of steps of 4 inputs."""


class CompiledStep:
    """All layers and the head in one call.

    Args:
        config: The model's shape.
        team: Threads that compute.
        layers: The four products of each layer: queries, keys and values; out; gate and up; down.
        qk_norms: `[layers, heads + kv_heads, head_dim]`; `[layers, 0, head_dim]` without them.
        head: The last product.
        rotations: `exp(i * position * frequency)`, complex64 `[positions, 1, head_dim / 2]`.
        epsilon: The norm's, as a length.
    """

    def __init__(
        self,
        config: ModelConfig,
        team: Team,
        layers: Sequence[Sequence[CompiledLinear]],
        qk_norms: torch.Tensor,
        head: CompiledLinear,
        rotations: torch.Tensor,
        epsilon: float,
    ) -> None:
        from pasta_async.backends.local.kernels import step

        self._config, self._team, self._head = config, team, head
        self._table = np.stack([np.stack([each.kernel_arguments for each in layer]) for layer in layers])
        self._layers = layers  # the table has the addresses of their arrays
        self._qk_norms = qk_norms.float().numpy()
        self._rotations = torch.view_as_real(rotations).reshape(len(rotations), -1).numpy()
        self._epsilons = np.float32(epsilon), np.float32(config.norm_eps)
        self._kernel = step
        self._shape = (0,) * (config.heads // config.kv_heads), (0,) * (config.head_dim // LANES)
        self._scratch_rows = 0
        self._scratch: tuple[NDArray[Any], ...] = ()

    def __call__(self, x: torch.Tensor, batch: RowBatch, cache: KVCache) -> torch.Tensor:
        """Logits, float32 `[len(batch.last), vocabulary]`.

        Args:
            x: Embedded tokens, float32 `[rows, hidden]`; they are changed.
            batch: Their positions and slots.
            cache: Gets their keys and values.
        """
        c, rows, outputs = self._config, len(x), len(batch.last)
        half, kv = cache.whole.dtype == torch.bfloat16, cache.whole
        stored = kv.view(torch.int16).numpy().view(np.uint16) if half else kv.numpy()
        widths = (c.heads + 2 * c.kv_heads) * c.head_dim, c.heads * c.head_dim, 2 * c.intermediate
        logits = np.empty((outputs, self._head.padded), np.float32)
        self._team.run(
            self._kernel,
            *self._shape,
            self._table,
            x.numpy(),
            self._rotations[batch.positions],
            batch.slots,
            batch.seen,
            batch.starts,
            batch.positions + 1,
            batch.single,
            batch.prompts,
            stored,
            self._qk_norms,
            *self._epsilons,
            *(_room((rows, width), np.float32) for width in widths),
            *self._private(rows),
            self._transposed(batch),
            batch.last,
            self._head.kernel_arguments,
            logits,
        )
        return torch.from_numpy(logits)[:, : c.vocab_size]

    def _transposed(self, batch: RowBatch) -> NDArray[np.float32]:
        """Memory for the keys of a prompt in columns, `[kv_heads, blocks, head_dim, BLOCK]`."""
        seen = batch.positions[batch.prompts[:, 1] - 1]
        blocks = (int(seen.max()) // BLOCK + 1) if len(seen) else 0
        return _room((self._config.kv_heads, blocks, self._config.head_dim, BLOCK), np.float32)

    def _private(self, rows: int) -> tuple[NDArray[Any], ...]:
        """Scratch memory of each thread: quantised rows, their sizes and zeros, scores of a row's heads."""
        if rows > self._scratch_rows:
            c, threads = self._config, self._team.size
            widest = max(c.hidden, c.heads * c.head_dim, c.intermediate)
            self._scratch_rows = rows
            self._scratch = (
                _room((threads, rows, widest), np.uint8 if VNNI else np.int16),
                _room((threads, rows), np.float32),
                _room((threads, rows), np.int32),
                _room((threads, c.heads // c.kv_heads, len(self._rotations) + BLOCK), np.float32),
            )
        return self._scratch


def _padded(array: NDArray[Any], dtype: Any, size: int | None = None) -> NDArray[Any]:
    """A copy with zeros behind it, up to whole groups."""
    result = np.zeros((-(-(size or len(array)) // GROUP) * GROUP, *array.shape[1:]), dtype)
    result[: len(array)] = array
    return result


def _room(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """A new array that begins at a multiple of 64 bytes, a line of the processor's cache."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)
