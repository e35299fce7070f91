"""Matrix products for few rows: in the weights' own type, packed float32, or 8-bit integers."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial
from time import perf_counter
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F

from pasta_async.backends.local.quantised import VNNI, Basis, blocks, cpu_has, quantised
from pasta_async.errors import InvalidRequestError

DType = Literal["float32", "bfloat16", "float16", "int8"]
Linear = Callable[[torch.Tensor], torch.Tensor]
"""`y = x W^T + b`, from `[rows, in]` to `[rows, out]`, both of the type that `storage_dtype` says."""

_LOG = logging.getLogger(__name__)
_LARGE = 50_000_000  # weights; smaller models are computed exactly, for they are fast anyway
_FEW_ROWS = 8  # the row count that the packed layout is chosen for


def choose_dtype(name: DType | Literal["auto"], weights: int, device: torch.device) -> DType:
    """The number format to compute in.

    Args:
        name: What was asked for; ``auto`` takes float32 for fewer than 50 million weights, else what is fast:
            on a CPU int8 where it can be had, else float32 (bfloat16 is slower where a CPU emulates it, and
            slower than int8 where it does not); bfloat16 on CUDA.
        weights: How many the model has.
        device: Where it runs.

    Raises:
        InvalidRequestError: int8 on another device than a CPU.
    """
    if name == "auto":
        if weights < _LARGE:
            return "float32"
        if device.type == "cpu":
            return "int8" if _int8_engine() else "float32"
        return "bfloat16" if device.type == "cuda" else "float32"
    if name == "int8" and device.type != "cpu":
        raise InvalidRequestError(f"dtype int8 is for CPUs; on {device.type} take bfloat16")
    if name == "int8" and not _int8_engine():
        _LOG.warning("this torch has no 8-bit products for this CPU; the model is computed in float32")
        return "float32"
    return name


def fast_bfloat16(weights: int, device: torch.device) -> bool:
    """Whether bfloat16 is what to train and score in: on CUDA, and for a large model where it is faster."""
    if device.type != "cpu":
        return device.type == "cuda"
    known = weights >= _LARGE and _cpu_has_bfloat16()
    return known and _product_seconds(torch.bfloat16) < _product_seconds(torch.float32)


@cache
def _product_seconds(dtype: torch.dtype) -> float:
    """Of a product as large as those of training, measured: instructions do not tell.

    With AVX512-BF16 and without AMX, bfloat16 takes half the time of float32 on one CPU and twice on another.
    """
    rows, weight = torch.ones(128, 576, dtype=dtype), torch.ones(1536, 576, dtype=dtype)
    seconds: list[float] = []
    for _ in range(30):  # others may be at work
        start = perf_counter()
        F.linear(rows, weight)
        seconds.append(perf_counter() - start)
    return min(seconds)


def storage_dtype(name: DType) -> torch.dtype:
    """The type of activations: int8 weights meet float32 activations."""
    return torch.float32 if name == "int8" else getattr(torch, name)


def kv_dtype(name: DType, device: torch.device) -> torch.dtype:
    """The type of keys and values, and of the products with them.

    Beside int8 weights it is bfloat16 where the CPU has its products: half the bytes to read, and attention
    of many answers in a third of the time. On a CPU float16 is ten times slower than float32.
    """
    if device.type != "cpu" or name not in ("int8", "float16"):
        return storage_dtype(name)
    return torch.bfloat16 if name == "int8" and _cpu_has_bfloat16() else torch.float32


def _cpu_has_bfloat16() -> bool:
    return cpu_has("avx512_bf16") or cpu_has("amx_tile")


def linear(
    dtype: DType,
    matrices: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor],
    scale: torch.Tensor | None = None,
    basis: Basis | None = None,
) -> Linear:
    """The product with matrices that have the same input, in a number format.

    Args:
        dtype: The number format.
        matrices: `[out, in]` each, of any floating type; the results stand side by side.
        biases: `[out]` each; none, or one for each matrix.
        scale: `[in]`, multiplied into the columns.
        basis: That the input is in.
    """
    bias = torch.cat(tuple(biases)) if biases else None
    if dtype == "int8":
        return _Int8Linear(*quantised(matrices, scale, basis), bias)
    weight = _converted(matrices, storage_dtype(dtype), scale)
    bias = None if bias is None else bias.to(weight.dtype)
    if weight.is_cpu and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        return _packed(weight, bias)
    return partial(F.linear, weight=weight, bias=bias)


def pad_rows(rows: int, dtype: DType) -> int:
    """A row count to round up to: each new one costs oneDNN (float types) a few milliseconds once."""
    if rows <= _FEW_ROWS or dtype == "int8":
        return rows
    step = 8 if rows <= 64 else 32
    return -(-rows // step) * step


def embedding(
    table: torch.Tensor, dtype: DType, basis: Basis | None
) -> Callable[[torch.Tensor], torch.Tensor]:
    """What gives a table's rows `[rows, hidden]` for int64 ids `[rows]`; int8 keeps a scale for each row."""
    if dtype != "int8":
        kept = table.to(storage_dtype(dtype))
        return lambda ids: kept.index_select(0, ids)
    rounded, scales = quantised([table], None, basis)
    return lambda ids: rounded.index_select(0, ids) * scales.index_select(0, ids)


def _packed(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    """float32 on a CPU, in oneDNN's layout.

    A decode step has as many rows as there are threads. The usual product of 2 to 16 rows costs about twice
    that of one row, since it packs the weights anew each time; with packed weights 8 rows cost little more
    than one (measured for 256 x 1408: 1.4 times).
    """
    ops = cast("Any", torch.ops.mkldnn)
    packed, product = ops._reorder_linear_weight(weight, _FEW_ROWS), ops._linear_pointwise.default
    return lambda x: product(x, packed, bias, "none", [], "")


class _Int8Linear:
    """8-bit weights with a scale for each output, and activations quantised at run time.

    torch's operator has one scale for all rows. Some rows are hundreds of times larger than others (the first
    token's, above all), so rows are brought to one size before; measured on a model of 135 million weights
    this takes the loss from 9.4% of the bits a token to 0.8%. It also makes a row's result almost independent
    of what shares the batch.
    """

    def __init__(self, rounded: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None) -> None:
        zeros, untyped = torch.zeros(len(scales), dtype=torch.int64), cast("Any", torch)
        with warnings.catch_warnings():  # torch means to move these operators elsewhere one day
            warnings.simplefilter("ignore", UserWarning)
            exact = untyped._make_per_channel_quantized_tensor(rounded, scales[:, 0].double(), zeros, 0)
        self._bias = None if bias is None else bias.float()
        self._packed = _pack(exact)
        # The operator itself, without what looks for tracers in the arguments: a tenth of a small product
        product = untyped.ops.quantized.linear_dynamic.default
        self._product: Any = getattr(product, "_op", product)
        self._reduce_range = not VNNI  # older instructions add pairs in 16 bits, which could overflow

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 1:
            y = self._product(x, self._packed, self._reduce_range)
        else:
            size = x.abs().amax(-1, keepdim=True).clamp_min_(1e-30)
            y = self._product(x / size, self._packed, self._reduce_range).mul_(size)
        return y if self._bias is None else y.add_(self._bias)


def _converted(
    matrices: Sequence[torch.Tensor], dtype: torch.dtype, scale: torch.Tensor | None
) -> torch.Tensor:
    """The matrices as one, `[sum of out, in]`."""
    if scale is None and len(matrices) == 1:
        return matrices[0].to(dtype)
    result = matrices[0].new_empty(sum(map(len, matrices)), matrices[0].shape[1], dtype=dtype)
    for rows, exact in blocks(matrices, scale):
        result[rows] = exact
    return result


def _pack(quantised: torch.Tensor) -> Any:
    """The engine's layout. torch has one setting for all that is packed, so it is put back."""
    settings: Any = torch.backends.quantized
    before = settings.engine
    settings.engine = _int8_engine()
    try:
        return torch.ops.quantized.linear_prepack(quantised, None)
    finally:
        settings.engine = before


def _int8_engine() -> str | None:
    """Torch's kernels to take, in the order of what was measured at 1 to 16 rows."""
    settings: Any = torch.backends.quantized
    if not hasattr(torch, "_make_per_channel_quantized_tensor"):
        return None
    return next((name for name in ("x86", "fbgemm", "onednn") if name in settings.supported_engines), None)
