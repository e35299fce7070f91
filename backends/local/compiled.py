"""A model computed by the int8 kernels (`kernels`): their threads and their calls."""

# torch leaves some of its types open.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import math
import queue
import threading
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pasta_async.backends.local.batch import RowBatch
from pasta_async.backends.local.cache import KVCache
from pasta_async.backends.local.checkpoint import ModelConfig
from pasta_async.backends.local.int8 import (
    BLOCK,
    GROUP,
    LANES,
    PRODUCT_ARRAYS,
    PRODUCTS,
    VNNI,
    Array,
    rotations,
)

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


class CompiledLM:
    """A decoder-only model in int8: one call computes new tokens of many sequences, through all layers.

    Args:
        config: Its shape.
        arrays: Those that `int8_layout` names. They are only read.
        positions: Rotary tables are made for this many.
        threads: CPU threads of the kernels.
    """

    def __init__(
        self, config: ModelConfig, arrays: Mapping[str, Array], positions: int, threads: int
    ) -> None:
        from pasta_async.backends.local.kernels import step

        self._config, self._arrays, self._kernel = config, arrays, step
        self._team = Team(min(threads, config.hidden // GROUP))  # each has outputs of every product
        layers = range(config.layers)
        table = [[self._product(f"{i}.{name}") for name in PRODUCTS] for i in layers]
        self._table, self._head = np.array(table, np.int64), np.array(self._product("head"), np.int64)
        self._outputs = len(arrays["head.sums"])  # rounded up to whole groups
        norms = [arrays[f"{i}.qk_norm"] for i in layers if config.qk_norm]
        none = np.empty((config.layers, 0, config.head_dim), np.float32)
        self._qk_norms = np.stack(norms) if norms else none
        self._rotations = torch.view_as_real(rotations(config, positions)).reshape(positions, -1).numpy()
        # The norm's epsilon as a length: sqrt(|x|^2 + hidden * eps) is hypot(|x|, this).
        length = math.sqrt(config.hidden * config.norm_eps)
        self._epsilons = np.float32(length), np.float32(config.norm_eps)
        self._shape = (0,) * (config.heads // config.kv_heads), (0,) * (config.head_dim // LANES)
        self._scratch_rows = 0
        self._scratch: tuple[Array, ...] = ()

    def forward(self, batch: RowBatch, cache: KVCache) -> torch.Tensor:
        """Compute keys and values of the batch's tokens, which go into the cache.

        Returns logits, float32 `[len(batch.last), vocabulary]`. Row i belongs to the i-th of `batch.last`, a
        row of the batch.
        """
        c, rows, outputs = self._config, len(batch.ids), len(batch.last)
        half, kv = cache.whole.dtype == torch.bfloat16, cache.whole
        stored = kv.view(torch.int16).numpy().view(np.uint16) if half else kv.numpy()
        widths = (c.heads + 2 * c.kv_heads) * c.head_dim, c.heads * c.head_dim, 2 * c.intermediate
        logits = np.empty((outputs, self._outputs), np.float32)
        self._team.run(
            self._kernel,
            *self._shape,
            self._table,
            self._arrays["embedding.weights"][batch.ids] * self._arrays["embedding.scales"][batch.ids],
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
            self._head,
            logits,
        )
        return torch.from_numpy(logits)[:, : c.vocab_size]

    def _product(self, name: str) -> list[int]:
        """Addresses of a product's arrays, and the number of steps of 4 inputs."""
        arrays = [self._arrays[f"{name}.{array}"] for array in PRODUCT_ARRAYS]
        return [*(array.ctypes.data for array in arrays), arrays[0].shape[1]]

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


def _room(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """A new array that begins at a multiple of 64 bytes, a line of the processor's cache."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)
