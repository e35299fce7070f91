"""Vector instructions for the CPU kernels (`kernels`), which numba does not make of loops.

Each function here writes LLVM code, most of it for vectors of 16 numbers; with AVX2 each is two of 8.
Addresses are int64, in bytes. `b` is the LLVM builder.
"""

# llvmlite and numba have no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
from __future__ import annotations

import sys
from typing import Any

from llvmlite import ir as _ir
from numba.core import types as _types
from numba.extending import intrinsic as _intrinsic

from pasta_async.backends.local.int8 import LANES, PANEL, VNNI

ir: Any = _ir
types: Any = _types
intrinsic: Any = _intrinsic

_I32, _I64, _F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
_INTS, _FLOATS = ir.VectorType(_I32, LANES), ir.VectorType(_F32, LANES)
_HALVES = ir.VectorType(ir.IntType(16), LANES)
_FAST = ("fast",)
_SUMMED = 12 if VNNI else 3  # sums that fit in registers beside what is added to them


TALLEST = 6  # rows of a tile: more results than registers hold would be slower

# Sums of a product are int32. An instruction of AVX512-VNNI adds four products to each of 16 sums. One of
# AVX2 adds two products of 16-bit numbers to each of 8: an output has two sums, which `_whole_sums` adds.
_SHORTS, _EIGHT = ir.VectorType(ir.IntType(16), 16), ir.VectorType(_I32, 8)
_SUMS, _PARTS = (_INTS, PANEL // LANES) if VNNI else (_EIGHT, PANEL // 4)
_SUMS_FLOATS = ir.VectorType(_F32, _SUMS.count)


def _columns(b: Any, weights: Any) -> list[Any]:
    """A panel's weights for four inputs, int8 `[PANEL, 4]` in memory, as vectors."""
    if VNNI:
        return [_load(b, weights, _INTS, 64 * part) for part in range(_PARTS)]
    narrow = ir.VectorType(ir.IntType(8), 16)
    return [b.sext(_load(b, weights, narrow, 16 * part), _SHORTS) for part in range(_PARTS)]


def _four_inputs(b: Any, x: Any) -> Any:
    """Four numbers of a row, repeated through a vector: uint8 with AVX512-VNNI, else int16."""
    if VNNI:
        return _spread(b, _load(b, x, _I32), _INTS)
    return b.bitcast(_spread(b, _load(b, x, _I64), ir.VectorType(_I64, 4)), _SHORTS)


def _add_products(b: Any, total: Any, four: Any, column: Any) -> Any:
    if VNNI:
        dot = _declared(b, "llvm.x86.avx512.vpdpbusd.512", _INTS, [_INTS] * 3)
        return b.call(dot, [total, four, column])
    dot = _declared(b, "llvm.x86.avx2.pmadd.wd", _EIGHT, [_SHORTS] * 2)
    return b.add(total, b.call(dot, [four, column]))


def _whole_sums(b: Any, sums: list[Any]) -> list[Any]:
    """The sums; AVX2 leaves each as two halves, side by side in a vector, which are added here."""
    if VNNI:
        return sums
    halves = [ir.Constant(_EIGHT, [*range(first, 16, 2)]) for first in (0, 1)]
    pairs = zip(sums[::2], sums[1::2], strict=True)
    return [b.add(*(b.shuffle_vector(left, right, half) for half in halves)) for left, right in pairs]


def _tile(b: Any, rows: int, args: Any) -> None:
    """Write the code of `tile` for so many rows."""
    x, x_stride, weights, steps, ahead, pace, scales, sums, biases, sizes, zeros, y, y_stride, add = args
    # The loop goes over the inputs, four at a time, and keeps a sum for each row and output in registers.
    with _Loop(b, steps, [ir.Constant(_SUMS, None)] * (rows * _PARTS)) as loop:
        for line in range(0, 4 * PANEL, 64):
            _prefetch(b, b.add(ahead, b.add(b.mul(loop.index, pace), _I64(line))))
        columns = _columns(b, b.add(weights, b.mul(loop.index, _I64(4 * PANEL))))
        inputs = b.add(x, b.mul(loop.index, _I64(4 if VNNI else 8)))
        for r in range(rows):
            four = _four_inputs(b, b.add(inputs, b.mul(x_stride, _I64(r))))
            for at, column in enumerate(columns, r * _PARTS):
                loop.carried[at] = _add_products(b, loop.carried[at], four, column)
    # Then the integers become the results, by scale, size and zero; see `tile`.
    exact, adds = _whole_sums(b, loop.carried), b.icmp_signed("!=", add, _I64(0))
    for p in range(parts := len(exact) // rows):
        offset = 4 * _SUMS.count * p
        scale, bias = (_load(b, each, _SUMS_FLOATS, offset) for each in (scales, biases))
        total = _load(b, sums, _SUMS, offset)
        for r in range(rows):
            zero = _spread(b, _load(b, zeros, _I32, 4 * r), _SUMS)
            number = b.sitofp(b.sub(exact[r * parts + p], b.mul(total, zero)), _SUMS_FLOATS)
            size = _spread(b, _load(b, sizes, _F32, 4 * r), _SUMS_FLOATS)
            result = b.fadd(b.fmul(b.fmul(number, scale), size), bias)
            out = b.add(b.add(y, b.mul(y_stride, _I64(r))), _I64(offset))
            result = b.select(adds, b.fadd(result, _load(b, out, _SUMS_FLOATS)), result)
            _store(b, result, out)


@intrinsic
def tile(
    _: Any,
    rows: Any,
    x: Any,
    x_stride: Any,
    weights: Any,
    steps: Any,
    ahead: Any,
    pace: Any,
    scales: Any,
    sums: Any,
    biases: Any,
    sizes: Any,
    zeros: Any,
    y: Any,
    y_stride: Any,
    add: Any,
) -> Any:
    """A product of up to `TALLEST` rows with a panel of weights.

    x are rows of 8-bit numbers, in 16 bits without AVX512-VNNI; weights int8 `[steps, PANEL, 4]`; `y[r, n] =
    (result - zeros[r] * sums[n]) * scales[n] * sizes[r] + biases[n]`, added to what is there if `add` is
    not 0. `sums` (of an output's weights) and `zeros` are int32, all else float32.

    Each step prefetches the lines of its own weights from `ahead + step * pace`. The processor's own
    prefetching does not suffice: instructions that wait for weights fill its queue, and then it asks for no
    more of them (measured on an Intel Xeon: six rows took 12.8 ms where one took 6.9, and 5.1 with this).
    """

    def generate(context: Any, b: Any, _: Any, args: Any) -> Any:
        behind = b.append_basic_block()
        chosen = b.switch(args[0], behind)
        for rows in range(1, TALLEST + 1):
            block = b.append_basic_block()
            chosen.add_case(_I64(rows), block)
            b.position_at_end(block)
            _tile(b, rows, args[1:])
            b.branch(behind)
        b.position_at_end(behind)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 15), generate


@intrinsic
def attention_scores(
    _: Any,
    group: Any,
    parts: Any,
    cache: Any,
    queries: Any,
    keys: Any,
    slots: Any,
    count: Any,
    out: Any,
    stride: Any,
) -> Any:
    """Products of the queries that share a key-value head with keys.

    Args:
        group: A tuple with a number for each query. Only its length matters: a kernel is compiled for each.
        parts: A tuple of length `head_dim / 16`.
        cache: The array that the keys are in, bfloat16 as uint16, or float32.
        queries: Address of float32 `[queries, head_dim]`.
        keys: Address of `[slots, head_dim]`.
        slots: Address of int64 `[count]`: the slot of each key.
        count: Number of keys, at least one.
        out: Address of float32, a row of `stride` bytes for each query, with room for a multiple of four.
        stride: Bytes from a query's row of `out` to the next.
    """
    heads, vectors, half = group.count, parts.count, cache.dtype == types.uint16

    def generate(context: Any, b: Any, _: Any, args: Any) -> Any:
        queries, keys, slots, count, out, stride = args[3:]
        q = [
            [_load(b, queries, _FLOATS, 64 * (h * vectors + i)) for i in range(vectors)] for h in range(heads)
        ]
        last = b.sub(count, _I64(1))
        with _Loop(b, b.add(b.lshr(last, _I64(2)), _I64(1)), []) as loop:
            four = [b.add(b.shl(loop.index, _I64(2)), _I64(j)) for j in range(4)]
            shown = [b.select(b.icmp_signed("<", j, last), j, last) for j in four]
            some = [_cached(b, keys, slots, j, vectors, half) for j in shown]
            for h in range(heads):
                products = [_product(b, q[h], key) for key in some]
                address = b.add(b.add(out, b.mul(stride, _I64(h))), b.mul(loop.index, _I64(16)))
                _store(b, _four_sums(b, products), address)
        return context.get_dummy_value()

    return types.void(group, parts, cache, *[types.int64] * 6), generate


@intrinsic
def attention_sum(
    _: Any,
    group: Any,
    parts: Any,
    cache: Any,
    weights: Any,
    stride: Any,
    values: Any,
    slots: Any,
    count: Any,
    out: Any,
) -> Any:
    """Sums of values, weighted by rows as `attention_scores` writes; `out`: float32 `[queries, head_dim]`."""
    heads, vectors, half = group.count, parts.count, cache.dtype == types.uint16

    def generate(context: Any, b: Any, _: Any, args: Any) -> Any:
        weights, stride, values, slots, count, out = args[3:]
        for some in _shares(heads, vectors):
            with _Loop(b, count, [ir.Constant(_FLOATS, None)] * (heads * len(some))) as loop:
                value = _cached(b, values, slots, loop.index, vectors, half, some)
                for h in range(heads):
                    address = b.add(b.add(weights, b.mul(stride, _I64(h))), b.mul(loop.index, _I64(4)))
                    _add_scaled(b, loop.carried, h * len(some), value, _load(b, address, _F32))
            for at, total in enumerate(loop.carried):
                h, i = divmod(at, len(some))
                _store(b, total, b.add(out, _I64(64 * (h * vectors + some[i]))))
        return context.get_dummy_value()

    return types.void(group, parts, cache, *[types.int64] * 6), generate


def _extreme(of: str) -> Any:
    @intrinsic
    def extreme(_: Any, numbers: Any, count: Any) -> Any:
        def generate(_c: Any, b: Any, _s: Any, args: Any) -> Any:
            numbers, count = args
            either = _declared(b, f"llvm.{of}num.v16f32", _FLOATS, [_FLOATS] * 2)
            among = _declared(b, f"llvm.vector.reduce.f{of}.v16f32", _F32, [_FLOATS])
            with _Loop(b, b.udiv(count, _I64(LANES)), [_load(b, numbers, _FLOATS)]) as loop:
                some = _load(b, b.add(numbers, b.mul(loop.index, _I64(4 * LANES))), _FLOATS)
                loop.carried[0] = b.call(either, [loop.carried[0], some], fastmath=_FAST)
            return b.call(among, loop.carried, fastmath=_FAST)

        return types.float32(numbers, count), generate

    return extreme


least: Any = _extreme("min")
"""The least of `count` float32, a multiple of 16, at an address. In numba's loop LLVM finds no vectors."""

largest: Any = _extreme("max")
"""The largest of `count` float32; see `least`."""


@intrinsic
def rounded_for(_: Any, number: Any, array: Any) -> Any:
    """A float32 in the type of an array: itself, or the bits of the nearest bfloat16 for a uint16 array."""
    half = array.dtype == types.uint16

    def generate(_c: Any, b: Any, _s: Any, args: Any) -> Any:
        if not half:
            return args[0]
        bits = b.bitcast(args[0], _I32)
        odd = b.and_(b.lshr(bits, _I32(16)), _I32(1))
        return b.trunc(b.lshr(b.add(b.add(bits, _I32(0x7FFF)), odd), _I32(16)), ir.IntType(16))

    return (types.uint16 if half else types.float32)(types.float32, array), generate


@intrinsic
def as_float(_: Any, bits: Any) -> Any:
    """The float32 that has the bits of an int32."""

    def generate(_c: Any, b: Any, _s: Any, args: Any) -> Any:
        return b.bitcast(args[0], _F32)

    return types.float32(types.int32), generate


@intrinsic
def add_atomically(_: Any, address: Any, by: Any) -> Any:
    """Add to an int64 that other threads add to; returns what was there."""

    def generate(_c: Any, b: Any, _s: Any, args: Any) -> Any:
        return b.atomic_rmw("add", b.inttoptr(args[0], _I64.as_pointer()), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def load_atomically(_: Any, address: Any) -> Any:
    """Load an int64 that other threads change."""

    def generate(_c: Any, b: Any, _s: Any, args: Any) -> Any:
        return b.load_atomic(b.inttoptr(args[0], _I64.as_pointer()), "seq_cst", 8)

    return types.int64(types.int64), generate


@intrinsic
def pause(_: Any) -> Any:
    """Wait for some tens of cycles, so that a thread that shares this core is not slowed down."""

    def generate(context: Any, b: Any, _s: Any, _a: Any) -> Any:
        b.call(_declared(b, "llvm.x86.sse2.pause", ir.VoidType(), []), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def give_way(_: Any) -> Any:
    """Let another thread have this core."""

    def generate(context: Any, b: Any, _s: Any, _a: Any) -> Any:
        if sys.platform != "win32":
            b.call(_declared(b, "sched_yield", _I32, []), [])
        return context.get_dummy_value()

    return types.void(), generate


class _Loop:
    """A loop that runs `count` times, at least once, and carries values from turn to turn.

    Inside the block `carried` begins as the values of the turn before; set it to those for the next turn.
    Behind the block it has the values of the last turn.
    """

    def __init__(self, b: Any, count: Any, first: list[Any]) -> None:
        self._b = b
        self._count = count
        before = b.block
        self._body = b.append_basic_block()
        self._behind = b.append_basic_block()
        b.branch(self._body)
        b.position_at_end(self._body)
        self.index = b.phi(_I64)
        self._phis = [b.phi(value.type) for value in first]
        for phi, value in zip([self.index, *self._phis], [_I64(0), *first], strict=True):
            phi.add_incoming(value, before)
        self.carried: list[Any] = [*self._phis]

    def __enter__(self) -> _Loop:
        return self

    def __exit__(self, *_: object) -> None:
        b = self._b
        following = b.add(self.index, _I64(1))
        for phi, value in zip([self.index, *self._phis], [following, *self.carried], strict=True):
            phi.add_incoming(value, b.block)
        b.cbranch(b.icmp_signed("<", following, self._count), self._body, self._behind)
        b.position_at_end(self._behind)


def _declared(b: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    known = b.module.globals.get(name)
    return known or ir.Function(b.module, ir.FunctionType(result, arguments), name)


def _load(b: Any, address: Any, kind: Any, offset: int = 0) -> Any:
    return b.load(b.inttoptr(b.add(address, _I64(offset)), kind.as_pointer()), align=4)


def _store(b: Any, value: Any, address: Any) -> None:
    b.store(value, b.inttoptr(address, value.type.as_pointer()), align=4)


def _prefetch(b: Any, address: Any) -> None:
    """Load a line of memory into the second-level cache; the address may lie outside every array."""
    pointer = ir.IntType(8).as_pointer()
    prefetch = _declared(b, "llvm.prefetch.p0", ir.VoidType(), [pointer, _I32, _I32, _I32])
    b.call(prefetch, [b.inttoptr(address, pointer), _I32(0), _I32(2), _I32(1)])


def _spread(b: Any, value: Any, kind: Any) -> Any:
    """A vector that has `value` in each place."""
    first = b.insert_element(ir.Constant(kind, ir.Undefined), value, _I32(0))
    mask = ir.Constant(ir.VectorType(_I32, kind.count), None)
    return b.shuffle_vector(first, ir.Constant(kind, ir.Undefined), mask)


def _shares(heads: int, vectors: int) -> list[range]:
    """Ranges of vectors that are summed at a time, for all heads: as many sums as fit in registers."""
    size = max(_SUMMED // heads, 1)
    return [range(first, min(first + size, vectors)) for first in range(0, vectors, size)]


def _add_scaled(b: Any, sums: list[Any], first: int, some: list[Any], factor: Any) -> None:
    """Add vectors times a number to as many sums, from number `first` on."""
    factors = _spread(b, factor, _FLOATS)
    for at, vector in enumerate(some, first):
        sums[at] = b.fadd(sums[at], b.fmul(factors, vector, flags=_FAST), flags=_FAST)


def _product(b: Any, left: list[Any], right: list[Any]) -> Any:
    """The products of vectors, element by element, added up over the vectors."""
    total = b.fmul(left[0], right[0], flags=_FAST)
    for x, y in zip(left[1:], right[1:], strict=True):
        total = b.fadd(total, b.fmul(x, y, flags=_FAST), flags=_FAST)
    return total


def _four_sums(b: Any, four: list[Any]) -> Any:
    """The sums of four vectors of 16, as a vector of four. Taken together they need fewer instructions."""

    def add_shuffled(left: Any, right: Any, masks: tuple[list[int], list[int]]) -> Any:
        parts = [b.shuffle_vector(left, right, ir.Constant(ir.VectorType(_I32, len(m)), m)) for m in masks]
        return b.fadd(*parts, flags=_FAST)

    def in_each_quarter(*elements: int) -> list[int]:
        """A mask that picks elements of each quarter: 0 to 3 from the left vector, 4 to 7 from the right."""
        return [
            LANES * (element // 4) + 4 * quarter + element % 4 for quarter in range(4) for element in elements
        ]

    # Within each quarter: first the sums of two elements of two vectors, then those of four of all four
    # vectors. Then a quarter holds a sum for each vector, and the quarters are added up.
    halves = in_each_quarter(0, 4, 1, 5), in_each_quarter(2, 6, 3, 7)
    wholes = in_each_quarter(0, 1, 4, 5), in_each_quarter(2, 3, 6, 7)
    left, right = add_shuffled(four[0], four[1], halves), add_shuffled(four[2], four[3], halves)
    total = add_shuffled(left, right, wholes)
    for size in 8, 4:
        total = add_shuffled(total, total, ([*range(size)], [*range(size, 2 * size)]))
    return total


def _cached(
    b: Any, cache: Any, slots: Any, index: Any, vectors: int, half: bool, some: range | None = None
) -> list[Any]:
    """The key or value in slot number `index` of `slots`, as float32 vectors: all, or those in `some`."""
    slot, size = _load(b, b.add(slots, b.mul(index, _I64(8))), _I64), 2 if half else 4
    address = b.add(cache, b.mul(slot, _I64(size * LANES * vectors)))
    kind = _HALVES if half else _FLOATS
    parts = [_load(b, address, kind, size * LANES * i) for i in some or range(vectors)]
    if not half:
        return parts
    sixteen = ir.Constant(_INTS, [16] * LANES)
    return [b.bitcast(b.shl(b.zext(part, _INTS), sixteen), _FLOATS) for part in parts]
