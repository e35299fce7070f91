"""A model computed by the int8 kernels (`kernels`): their threads and their calls."""

from __future__ import annotations

import math
import queue
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pasta_async.backends.local.batch import Entry, new_tokens
from pasta_async.backends.local.cache import kv_shape, mapped
from pasta_async.backends.local.checkpoint import ModelConfig
from pasta_async.backends.local.int8 import (
    LANES,
    OUTPUT_GROUP,
    PRODUCT_ARRAYS,
    PRODUCTS,
    VNNI,
    Array,
    kv_dtype,
)

Call = tuple[Any, int, int, NDArray[np.int64], int, tuple[Any, ...]]


class Team:
    """Threads that run a kernel together: the caller's own, and workers that wait for its next call.

    They spin for some milliseconds, longer than the time between two steps, and then sleep.

    Args:
        size: The number of threads, the caller's included.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._sync = np.zeros(16, np.int64)  # two counts, of waits and of calls; see `kernels._CALLS`
        self._waits = 0  # waits of each thread so far
        self._queues: list[queue.SimpleQueue[Call | None]] = [queue.SimpleQueue() for _ in range(size - 1)]
        for tasks in self._queues:
            threading.Thread(target=_work, args=(tasks,), name="pasta-kernels", daemon=True).start()
        weakref.finalize(self, _dismiss, self._queues)

    def run(self, kernel: Any, *args: Any) -> None:
        """Call ``kernel(thread, threads, sync, waits, *args)`` in each thread; returns when all are through.

        `sync` is the address of the count of all threads' waits so far; `waits` is the number of each one's.
        A kernel tells the others that a call begins, ends with `kernels._end`, and returns the new number.
        """
        for number, tasks in enumerate(self._queues, 1):
            tasks.put((kernel, number, self.size, self._sync, self._waits, args))
        self._waits = kernel(0, self.size, self._sync.ctypes.data, self._waits, *args)


def _work(tasks: queue.SimpleQueue[Call | None]) -> None:
    while (task := tasks.get()) is not None:
        kernel, number, size, sync, waits, args = task
        kernel(number, size, sync.ctypes.data, waits, *args)
        del task, args  # else a thread that waits would keep the model in memory


def _dismiss(queues: list[queue.SimpleQueue[Call | None]]) -> None:
    for tasks in queues:
        tasks.put(None)


class CompiledLM:
    """A decoder-only model in int8: one call computes new tokens of many sequences, through all layers.

    Args:
        config: The model's shape.
        arrays: Those that `int8_arrays` makes. They are only read.
        positions: Rotary tables are made for this many.
        threads: CPU threads of the kernels.
    """

    def __init__(
        self, config: ModelConfig, arrays: Mapping[str, Array], positions: int, threads: int
    ) -> None:
        from pasta_async.backends.local.kernels import step

        self._config = config
        self._arrays = arrays
        self._kernel = step
        self._team = Team(min(threads, config.hidden // OUTPUT_GROUP))  # each has outputs of every product
        layers = range(config.layers)
        table = [[self._product(f"{i}.{name}") for name in PRODUCTS] for i in layers]
        self._table = np.array(table, np.int64)
        self._head = np.array(self._product("head"), np.int64)
        self._outputs = len(arrays["head.sums"])  # rounded up to whole groups
        norms = [arrays[f"{i}.qk_norm"] for i in layers if config.qk_norm]
        no_norms = np.empty((config.layers, 0, config.head_dim), np.float32)
        self._qk_norms = np.stack(norms) if norms else no_norms
        self._rotations = config.rotations(positions).reshape(positions, -1)
        # The norm's epsilon as a length: sqrt(|x|^2 + hidden * eps) is hypot(|x|, this).
        length = math.sqrt(config.hidden * config.norm_eps)
        self._epsilons = np.float32(length), np.float32(config.norm_eps)
        # The kernels are compiled for the lengths of these tuples (`group` and `parts` of `kernels.step`).
        self._shape = (0,) * (config.heads // config.kv_heads), (0,) * (config.head_dim // LANES)
        self._scratch_rows = 0
        self._scratch: tuple[Array, ...] = ()
        self._kv: Array = np.empty(0)

    def clear(self, slots: int) -> None:
        """Forget keys and values; there is room for those of so many tokens."""
        half = kv_dtype("int8") == "bfloat16"  # which numpy does not have: its bits are uint16
        dtype = np.dtype(np.uint16 if half else np.float32)
        shape = kv_shape(self._config, slots)
        self._kv = np.empty(0)  # before the new one is made: there may be no memory for two
        self._kv = np.frombuffer(mapped(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)

    def forward(self, entries: Sequence[Entry]) -> NDArray[np.float32]:
        """Compute keys and values of the entries' tokens, and keep them.

        Returns logits, float32 `[entries, vocabulary]`, of the last token of each entry.
        """
        c = self._config
        ids, positions, slots = new_tokens(entries)
        # The row of each entry's last token; the slots of all entries; where in these each row's own begin.
        counts = np.array([entry.count for entry in entries], np.int64)
        lengths = np.array([len(entry.slots) for entry in entries], np.int64)
        last = np.cumsum(counts, dtype=np.int64) - 1
        seen = np.concatenate([entry.slots for entry in entries])
        starts = np.repeat(np.cumsum(lengths, dtype=np.int64) - lengths, counts)
        rows = len(ids)
        widths = (c.heads + 2 * c.kv_heads) * c.head_dim, c.heads * c.head_dim, 2 * c.intermediate
        logits = np.empty((len(last), self._outputs), np.float32)
        self._team.run(
            self._kernel,
            *self._shape,
            self._table,
            self._arrays["embedding.weights"][ids] * self._arrays["embedding.scales"][ids],
            self._rotations[positions],
            slots,
            seen,
            starts,
            positions + 1,
            self._kv,
            self._qk_norms,
            *self._epsilons,
            *(_room((rows, width), np.float32) for width in widths),
            *self._private(rows),
            last,
            self._head,
            logits,
        )
        return logits[:, : c.vocab_size]

    def _product(self, name: str) -> list[int]:
        """A row of `kernels.step`'s table: addresses of a product's arrays, and its number of inputs / 4."""
        arrays = [self._arrays[f"{name}.{array}"] for array in PRODUCT_ARRAYS]
        return [*(array.ctypes.data for array in arrays), arrays[0].shape[1]]

    def _private(self, rows: int) -> tuple[NDArray[Any], ...]:
        """Scratch memory of each thread: quantised rows, their sizes and zeros, scores of a row's heads."""
        if rows > self._scratch_rows:
            c = self._config
            threads = self._team.size
            widest = max(c.hidden, c.heads * c.head_dim, c.intermediate)
            self._scratch_rows = rows
            self._scratch = (
                _room((threads, rows, widest), np.uint8 if VNNI else np.int16),
                _room((threads, rows), np.float32),
                _room((threads, rows), np.int32),
                _room((threads, c.heads // c.kv_heads, len(self._rotations) + LANES), np.float32),
            )
        return self._scratch


def _room(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """A new array that begins at a multiple of 64 bytes, a line of the processor's cache."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)
