"""Kernels for CPUs with AVX2 or AVX512-VNNI, compiled by numba as a model is first loaded (and kept on disk).

At the size of a small model most operators take longer to begin than to compute. So a step is one call: it
goes through all layers, on several threads that wait for each other only where they must (`step`).

Activations are quantised row by row, and each row attends by itself, so a row's result depends neither on the
rest of the batch nor on the number of threads. Arrays are contiguous. Each thread calls a kernel with its
number, `thread` of `threads`.
"""

# numba has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from pasta_async.backends.local.batch import Floats, Ints
from pasta_async.backends.local.int8 import LANES, OUTPUT_GROUP, PANEL
from pasta_async.backends.local.pull import cache_folder
from pasta_async.backends.local.vectors import (
    TALLEST,
    add_atomically,
    as_float,
    attention_scores,
    attention_sum,
    give_way,
    largest,
    least,
    load_atomically,
    pause,
    rounded_for,
    tile,
)

Bytes: TypeAlias = NDArray[np.uint8 | np.int16]  # 0 to 255, in what the CPU multiplies
Zeros: TypeAlias = NDArray[np.int32]
Member: TypeAlias = tuple[int, int, int]  # a thread's number, the number of threads, the address of `sync`
Quantised: TypeAlias = tuple[Bytes, Floats, Zeros]  # rows: `sizes[r] * (q[r] - zeros[r])`
Visible: TypeAlias = tuple[Ints, Ints, Ints]  # `seen`, `starts` and `counts` of `step`
_Function = TypeVar("_Function")

_SPINS = 200  # pauses before a waiting thread lets others have its core
_IDLE_SPINS = 50_000  # pauses, some milliseconds, for which a thread waits for the next call before it sleeps
_MANY_ROWS = 16  # rows from which on threads share the work of quantising them
_CALLS = 64  # bytes from the count of waits to the count of calls: another line of the processor's cache
_PANELS = OUTPUT_GROUP // PANEL
_ZERO, _HALF, _ONE, _255 = (np.float32(number) for number in (0, 0.5, 1, 255))
_TINY = np.float32(1e-30)
_CONFIG: Any = numba.config


def code_folder() -> str:
    """The folder of the machine code, named by a hash of all sources: numba looks at one file alone."""
    sources = hashlib.sha256()
    for name in ("kernels.py", "vectors.py", "int8.py"):
        sources.update(Path(__file__).with_name(name).read_bytes())
    chosen: str = _CONFIG.CACHE_DIR  # NUMBA_CACHE_DIR
    if chosen:
        folder = Path(chosen)
    elif os.access(here := Path(__file__).parent, os.W_OK):
        folder = here / "__pycache__"
    else:
        folder = cache_folder()
    return str(folder / f"kernels-{sources.hexdigest()[:16]}")


_CACHE = code_folder()


def _kernel(function: _Function, *, fast: bool = False) -> _Function:
    """Compile a function when it is first called. It runs without the interpreter's lock."""
    chosen = _CONFIG.CACHE_DIR
    _CONFIG.CACHE_DIR = _CACHE  # read when a function is decorated
    try:
        for cache in True, False:  # if no cache folder can be written, each process compiles it
            with suppress(RuntimeError):
                options: dict[str, Any] = {"fastmath": fast, "cache": cache, "error_model": "numpy"}
                return cast("_Function", numba.njit(nogil=True, **options)(function))
        raise AssertionError("only caches raise RuntimeError")
    finally:
        _CONFIG.CACHE_DIR = chosen


def _fast(function: _Function) -> _Function:
    """A `_kernel` whose sums may be added in any order."""
    return _kernel(function, fast=True)


def _inlined(function: _Function) -> _Function:
    """Inline into the functions that call it: LLVM finds no vectors in a loop around a call."""
    return cast("_Function", numba.njit(fastmath=True, inline="always")(function))


@_inlined
def _exp(x: np.float32) -> np.float32:
    """e^x, within 2e-7 of it; an x outside [-87, 88] counts as the nearest bound."""
    x = min(max(x, np.float32(-87)), np.float32(88))
    # e^x = 2^n * e^r with an integer n and a small r: n becomes the exponent's bits (with a float32's bias of
    # 127), and a polynomial gives e^r (Cephes' coefficients; ln 2 in two parts, so that r loses no bits).
    exponent = np.int32(x * np.float32(1.4426950408889634) + np.float32(127.5))
    n = np.float32(np.int32(exponent - np.int32(127)))  # numba subtracts in 64 bits
    r = x - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = p * r * r + r + _ONE
    return p * as_float(exponent << np.int32(23))


@_kernel
def _wait(member: Member, waits: int) -> int:
    """Wait until all threads are here; `waits` counts those before. Returns the count with this one."""
    _, threads, sync = member
    if threads == 1:
        return waits
    # One count serves all waits: it only grows, and this wait is over at `(waits + 1) * threads`.
    add_atomically(sync, 1)
    spins = 0
    while load_atomically(sync) < (waits + 1) * threads:
        spins += 1
        pause()
        if spins > _SPINS:
            give_way()
    return waits + 1


@_kernel
def _end(member: Member, waits: int) -> int:
    """The last wait of a kernel. The caller's thread waits for the others; these wait for the next call.

    Waking a thread that sleeps takes about as long as a layer, so they spin, but not for long.
    """
    thread, _, sync = member
    if thread == 0:
        return _wait(member, waits)
    # Read the count of calls before the caller's thread may go on and change it.
    calls = load_atomically(sync + _CALLS)
    add_atomically(sync, 1)
    for spins in range(_IDLE_SPINS):
        if load_atomically(sync + _CALLS) != calls:
            break
        pause()
        if spins > _SPINS:
            give_way()
    return waits + 1


@_kernel
def _part(count: int, member: Member) -> tuple[int, int]:
    """A thread's share of `count` items: its first one, and the end."""
    thread, threads, _ = member
    return count * thread // threads, count * (thread + 1) // threads


@_fast
def _quantise(x: Floats, first: int, last: int, to: Quantised, normalised: bool, epsilon: np.float32) -> None:
    """Quantise the rows `x[first:last]`, `[rows, n]`; if `normalised`, brought to unit length."""
    (q, sizes, zeros), n = to, x.shape[1]
    for r in range(first, last):
        row, rounded = x[r], q[r]
        # The row's range, widened to hold 0, becomes 0 to 255: x is about `size * (q - zero)`.
        low, high = min(_ZERO, least(row.ctypes.data, n)), max(_TINY, largest(row.ctypes.data, n))
        factor = _255 / (high - low)
        zero = np.floor(_HALF - low * factor)
        for i in range(n):
            rounded[i] = np.int32(min(max(row[i] * factor + (zero + _HALF), _ZERO), _255))
        # The norm is a factor of the row, so it goes into the row's size.
        squares = _ONE
        if normalised:
            squares = epsilon * epsilon
            for i in range(n):
                squares += row[i] * row[i]
        sizes[r], zeros[r] = _ONE / (factor * np.sqrt(squares)), np.int32(zero)


@_kernel
def _quantise_part(
    member: Member, waits: int, x: Floats, to: Quantised, normalised: bool, epsilon: np.float32
) -> int:
    """Quantise all rows, shared among the threads if they are many. Returns the count of waits."""
    rows = len(x)
    # Few rows are quantised whole by each thread for itself, which takes less time than a wait.
    if rows < _MANY_ROWS:
        _quantise(x, 0, rows, to, normalised, epsilon)
        return waits
    first, last = _part(rows, member)
    _quantise(x, first, last, to, normalised, epsilon)
    return _wait(member, waits)


@_kernel
def _start(weights: Ints, group: int) -> int:
    """The address of a group's weights."""
    return weights[0] + group * OUTPUT_GROUP * 4 * weights[4]


@_kernel
def _multiply(
    x: Quantised, rows: int, weights: Ints, y: Floats, add: int, first: int, last: int, following: int
) -> None:
    """Compute the groups `first:last` of a product's outputs, `PANEL` outputs at a time.

    `weights`: addresses of the weights, scales, sums and biases (`vectors.tile`), and the steps of 4 inputs.
    While a group is multiplied the next one is prefetched, half by each tile where there are several. During
    the last group that is the memory at `following`: the weights that this thread reads next.
    """
    (q, sizes, zeros), steps = x, weights[4]
    x_stride, y_stride = q.itemsize * q.shape[1], 4 * y.shape[1]
    pace, half = (4 * PANEL, 0) if rows <= TALLEST else (2 * PANEL, 2 * PANEL * steps)
    for panel in range(first * _PANELS, last * _PANELS):
        # `at`: the panel's first byte in arrays of a 4-byte number per output; `here`: its weights.
        at, here = 4 * panel * PANEL, weights[0] + 4 * panel * PANEL * steps
        ahead = here + 4 * OUTPUT_GROUP * steps
        if panel >= (last - 1) * _PANELS:
            ahead = following + 4 * (panel % _PANELS) * PANEL * steps
        # A tile has at most `TALLEST` rows; the last two are of about one height.
        r, skipped = 0, 0
        while r < rows:
            left = rows - r
            count = left if left <= TALLEST else min((left + 1) // 2, TALLEST)
            of_x = q.ctypes.data + r * x_stride, x_stride
            of_w = here, steps, ahead + skipped, pace, weights[1] + at, weights[2] + at, weights[3] + at
            sized = sizes.ctypes.data + 4 * r, zeros.ctypes.data + 4 * r
            tile(count, *of_x, *of_w, *sized, y.ctypes.data + at + r * y_stride, y_stride, add)
            r, skipped = r + count, half - skipped


@_fast
def _rotate(vector: Floats, rotation: Floats, factor: np.float32) -> None:
    """Rotate pairs of components by cosine and sine, and multiply them by `factor`."""
    for i in range(0, len(vector), 2):
        a, b, c, s = vector[i], vector[i + 1], rotation[i], rotation[i + 1]
        vector[i] = (a * c - b * s) * factor
        vector[i + 1] = (a * s + b * c) * factor


@_fast
def _normalise(vector: Floats, weights: Floats, epsilon: np.float32) -> None:
    """Normalise a query or a key, as Qwen3 does."""
    squares = _ZERO
    for i in range(len(vector)):
        squares += vector[i] * vector[i]
    factor = _ONE / np.sqrt(squares / np.float32(len(vector)) + epsilon)
    for i in range(len(vector)):
        vector[i] *= factor * weights[i]


@_fast
def _store(to: NDArray[Any], vector: Floats) -> None:
    for i in range(len(vector)):
        to[i] = rounded_for(vector[i], to)


@_fast
def _softmax(scores: Floats, count: int) -> None:
    """Softmax of the first `count` scores, in place; there must be room for a multiple of `LANES`."""
    whole = -(-count // LANES) * LANES
    scores[count:whole] = scores[0]  # padding that does not change the largest score
    most = largest(scores.ctypes.data, whole)
    total = _ZERO
    for i in range(count):
        scores[i] = _exp(scores[i] - most)
        total += scores[i]
    factor = _ONE / total
    for i in range(count):
        scores[i] *= factor


@_fast
def _activate(gate_up: Floats, first: int, last: int) -> None:
    """silu(gate) * up, written over gate, in the columns `first:last`."""
    wide = gate_up.shape[1] // 2
    for r in range(len(gate_up)):
        gate, up = gate_up[r, first:last], gate_up[r, wide + first : wide + last]
        for i in range(len(gate)):
            gate[i] = gate[i] / (_ONE + _exp(-gate[i])) * up[i]


@_fast
def _write(
    group: tuple[int, ...],
    qkv: Floats,
    rotations: Floats,
    slots: Ints,
    kv: NDArray[Any],
    norms: Floats,
    epsilon: np.float32,
    member: Member,
) -> None:
    """Rotate queries and keys, and put keys and values into a layer's cache."""
    repeats, kv_heads, head_dim = len(group), len(kv) // 2, kv.shape[2]
    heads, scaling = repeats * kv_heads, _ONE / np.float32(np.sqrt(head_dim))
    for item in range(member[0], len(qkv) * kv_heads, member[1]):
        r, h = item // kv_heads, item % kv_heads
        row = qkv[r].reshape(heads + 2 * kv_heads, head_dim)
        for i in range(repeats + 1):  # the queries of this key-value head, and its key
            head = h * repeats + i if i < repeats else heads + h
            if len(norms):
                _normalise(row[head], norms[head], epsilon)
            _rotate(row[head], rotations[r], scaling if i < repeats else _ONE)
        _store(kv[h, slots[r]], row[heads + h])
        _store(kv[kv_heads + h, slots[r]], row[heads + kv_heads + h])


@_fast
def _attend(
    group: tuple[int, ...],
    parts: tuple[int, ...],
    qkv: Floats,
    visible: Visible,
    kv: NDArray[Any],
    scores: Floats,
    out: Floats,
    member: Member,
) -> None:
    """Attention of all rows, each over its own slots."""
    repeats, kv_heads, head_dim = len(group), len(kv) // 2, kv.shape[2]
    head_bytes, stride = kv.shape[1] * head_dim * kv.itemsize, 4 * scores.shape[1]
    seen, starts, counts = visible
    first_item, behind = _part(len(qkv) * kv_heads, member)
    # An item is a row with the queries of one key-value head. Items go head by head: a thread then takes rows
    # of one answer one after another, which read the same keys.
    for item in range(first_item, behind):
        h, r = item // len(qkv), item % len(qkv)
        slots, count = seen.ctypes.data + 8 * starts[r], counts[r]
        keys, first, to = kv.ctypes.data + h * head_bytes, h * repeats * head_dim, scores.ctypes.data
        attention_scores(group, parts, kv, qkv[r, first:].ctypes.data, keys, slots, count, to, stride)
        for i in range(repeats):
            _softmax(scores[i], count)
        values = keys + kv_heads * head_bytes
        attention_sum(group, parts, kv, to, stride, values, slots, count, out[r, first:].ctypes.data)


@_kernel
def _feed_forward(
    member: Member,
    waits: int,
    gate_up_weights: Ints,
    down_weights: Ints,
    x: Floats,
    epsilon: np.float32,
    gate_up: Floats,
    to: Quantised,
    following: int,
) -> int:
    """A layer's second half, added to x. Returns the count of waits; other threads may still be adding."""
    rows, wide = len(x), gate_up.shape[1] // 2
    first, last = _part(wide // OUTPUT_GROUP, member)
    x_from, x_to = _part(x.shape[1] // OUTPUT_GROUP, member)
    up, down = _start(gate_up_weights, first + wide // OUTPUT_GROUP), _start(down_weights, x_from)
    waits = _quantise_part(member, waits, x, to, True, epsilon)
    # A thread computes the same columns of gate and up, so that it can multiply them without a wait.
    for behind, then in (0, up), (wide // OUTPUT_GROUP, down):
        _multiply(to, rows, gate_up_weights, gate_up, 0, first + behind, last + behind, then)
    _activate(gate_up, first * OUTPUT_GROUP, last * OUTPUT_GROUP)
    waits = _wait(member, waits)
    gated = gate_up[:, :wide]
    waits = _quantise_part(member, waits, gated, to, False, _ZERO)
    _multiply(to, rows, down_weights, x, 1, x_from, x_to, following)
    return waits


@_kernel
def step(
    thread: int,
    threads: int,
    sync: int,
    waits: int,
    group: tuple[int, ...],
    parts: tuple[int, ...],
    table: Ints,
    x: Floats,
    rotations: Floats,
    slots: Ints,
    seen: Ints,
    starts: Ints,
    counts: Ints,
    kv: NDArray[Any],
    norms: Floats,
    epsilon: np.float32,
    norm_epsilon: np.float32,
    qkv: Floats,
    attended: Floats,
    gate_up: Floats,
    all_q: Bytes,
    all_sizes: Floats,
    all_zeros: Zeros,
    all_scores: Floats,
    last: Ints,
    head: Ints,
    logits: Floats,
) -> int:
    """All layers and the head. Returns the thread's count of waits.

    Args:
        thread: The number of the calling thread.
        threads: The number of threads.
        sync: Address of the count of waits (`_wait`).
        waits: The number of waits of each thread so far.
        group: A tuple with a number for each query that shares a key and a value. Only its length matters:
            the kernel is compiled for it.
        parts: A tuple of length `head_dim / 16`.
        table: Int64 `[layers, 4, 5]`, `weights` of `_multiply` for a layer's products.
        x: Embedded tokens, `[rows, hidden]`; they are changed.
        rotations: Cosine and sine of each pair of components, `[rows, head_dim]`.
        slots: The slot for each row's key and value.
        seen: Slots; row r attends to `seen[starts[r] : starts[r] + counts[r]]`.
        starts: The first index in `seen` of each row, `[rows]`.
        counts: The number of slots that each row sees, `[rows]`.
        kv: `[layers, 2 * kv_heads, slots, head_dim]`: float32, or bfloat16 as uint16.
        norms: Weights of the norms of queries and keys, `[layers, heads + kv_heads, head_dim]`; without norms
            `[layers, 0, head_dim]`.
        epsilon: The epsilon of the other norms, as a length.
        norm_epsilon: The epsilon of the norms of queries and keys.
        qkv: Scratch of all threads, `[rows, (heads + 2 * kv_heads) * head_dim]`.
        attended: The same, `[rows, heads * head_dim]`.
        gate_up: The same, `[rows, 2 * intermediate]`.
        all_q: Scratch of each thread, `[threads, rows, widest input]`.
        all_sizes: The same, `[threads, rows]`.
        all_zeros: The same, `[threads, rows]`.
        all_scores: The same, `[threads, queries of a group, positions + LANES]`.
        last: Rows whose logits are wanted.
        head: The last product, as a row of `table`.
        logits: `[len(last), outputs]`.
    """
    if thread == 0:  # tell those that are still awake that a call begins
        add_atomically(sync + _CALLS, 1)
    member, visible, rows = (thread, threads, sync), (seen, starts, counts), len(x)
    # Threads share one quantised copy of many rows; of few rows each has its own (`_quantise_part`).
    scores, copy = all_scores[thread], 0 if rows >= _MANY_ROWS else thread
    to = all_q[copy], all_sizes[copy], all_zeros[copy]
    # The groups of outputs that this thread computes of each product.
    qkv_from, qkv_to = _part(qkv.shape[1] // OUTPUT_GROUP, member)
    x_from, x_to = _part(x.shape[1] // OUTPUT_GROUP, member)
    wide_from, _ = _part(gate_up.shape[1] // 2 // OUTPUT_GROUP, member)
    head_from, head_to = _part(logits.shape[1] // OUTPUT_GROUP, member)
    for layer in range(len(table)):
        qkv_weights, out_weights, gate_up_weights, down_weights = table[layer]
        # The weights to prefetch at the layer's end: the next layer's, or the head's.
        then = _start(head, head_from)
        if layer + 1 < len(table):
            then = _start(table[layer + 1, 0], qkv_from)
        # Queries, keys and values; each wait is there because the next stage reads what all threads wrote.
        waits = _quantise_part(member, waits, x, to, True, epsilon)
        _multiply(to, rows, qkv_weights, qkv, 0, qkv_from, qkv_to, _start(out_weights, x_from))
        waits = _wait(member, waits)
        _write(group, qkv, rotations, slots, kv[layer], norms[layer], norm_epsilon, member)
        waits = _wait(member, waits)
        _attend(group, parts, qkv, visible, kv[layer], scores, attended, member)
        waits = _wait(member, waits)
        # In the last layer only rows whose logits are wanted go on.
        if layer == len(table) - 1 and len(last) < rows:
            if thread == 0:
                for i in range(len(last)):
                    x[i], attended[i] = x[last[i]], attended[last[i]]
            rows = len(last)
            x, attended, gate_up = x[:rows], attended[:rows], gate_up[:rows]
            copy = 0 if rows >= _MANY_ROWS else thread
            to = all_q[copy], all_sizes[copy], all_zeros[copy]
            waits = _wait(member, waits)
        waits = _quantise_part(member, waits, attended, to, False, _ZERO)
        _multiply(to, rows, out_weights, x, 1, x_from, x_to, _start(gate_up_weights, wide_from))
        waits = _wait(member, waits)
        waits = _feed_forward(member, waits, gate_up_weights, down_weights, x, epsilon, gate_up, to, then)
        waits = _wait(member, waits)
    waits = _quantise_part(member, waits, x, to, True, epsilon)
    _multiply(to, rows, head, logits, 0, head_from, head_to, _start(table[0, 0], qkv_from))
    return _end(member, waits)
