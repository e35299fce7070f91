"""The number formats of the embedded engine, and the CPUs whose kernels compute with 8-bit weights.

Nothing here needs torch: a model that was converted once starts without it, two seconds sooner.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any, Literal, TypeAlias

from numpy.typing import NDArray

from pasta_async.backends.local.checkpoint import ModelConfig, weight_count
from pasta_async.backends.options import DType
from pasta_async.errors import InvalidRequestError

Array: TypeAlias = NDArray[Any]

_LOG = logging.getLogger(__name__)
_FLOAT32_BELOW = 50_000_000  # weights: so few are fast anyway, and are computed exactly

BYTES: dict[DType, int] = {"float32": 4, "bfloat16": 2, "int8": 1}
"""Bytes of a number."""

# CPUs -------------------------------------------------------------------------------------------------------


def cpu_has(name: str) -> bool:
    """True if the CPU has these instructions, by LLVM's name for them; False where LLVM is not installed."""
    try:
        llvm: Any = importlib.import_module("llvmlite.binding")
    except ImportError:
        return False
    return bool(llvm.get_host_cpu_features().get(name))


VNNI: bool = cpu_has("avx512vnni")
"""AVX512-VNNI adds four products of 8-bit numbers at once."""

AVX2: bool = cpu_has("avx2")
"""AVX2 adds two products of 16-bit numbers at once."""


def computes_int8(config: ModelConfig) -> bool:
    """True if the kernels can compute this model here: a CPU with AVX2, numba, and sizes that fit."""
    sizes = config.hidden, config.intermediate, (config.heads + 2 * config.kv_heads) * config.head_dim
    fits = all(size % OUTPUT_GROUP == 0 for size in sizes) and config.head_dim % LANES == 0
    return fits and AVX2 and _has_numba()


def _has_numba() -> bool:
    try:
        importlib.import_module("numba")
    except ImportError:  # missing, or made for another numpy
        return False
    return True


# The kernels' arrays ----------------------------------------------------------------------------------------

OUTPUT_GROUP = 64
"""Outputs that the kernels compute in one thread."""

PANEL: int = OUTPUT_GROUP if VNNI else 8
"""Outputs whose weights stand together for the kernels, as many as registers hold results of."""

LANES = 16
"""Numbers in a vector of the kernels."""

PRODUCTS = ("qkv", "out", "gate_up", "down")
"""The products of a layer: queries, keys and values; out; gate and up; down."""

PRODUCT_ARRAYS = ("weights", "scales", "sums", "biases")
"""The arrays of a product, named `NAME.weights` and so on.

Weights are int8 in the kernels' order: `[groups of PANEL outputs, inputs / 4, PANEL]` of int32, the four
inputs that one instruction takes together. A scale is the step size of an output, a sum that of its weights.
Outputs are rounded up to whole groups, with zeros behind them.
"""

# Number formats ---------------------------------------------------------------------------------------------


def choose_dtype(name: DType | Literal["auto"], config: ModelConfig, device: str) -> DType:
    """The number format to compute in.

    Args:
        name: The one asked for. ``auto`` takes float32 for fewer than 50 million weights, else the fastest:
            on CUDA bfloat16, on a CPU int8 where the kernels can compute the model, else float32 (bfloat16
            is slower where a CPU emulates it, and slower than int8 where it does not).
        config: The model's shape.
        device: The model's device: ``cpu``, ``cuda``, ``cuda:1``.

    Raises:
        InvalidRequestError: int8 on another device than a CPU.
    """
    if name == "auto":
        if weight_count(config) < _FLOAT32_BELOW:
            return "float32"
        if device != "cpu":
            return "bfloat16"
        return "int8" if computes_int8(config) else "float32"
    if name == "int8" and device != "cpu":
        raise InvalidRequestError("dtype int8 is for CPUs; on CUDA take bfloat16")
    if name == "int8" and not computes_int8(config):
        _LOG.warning(
            "int8 needs AVX2, numba, and a model whose sizes are multiples of %d, and its heads of %d; "
            "this one is computed in float32",
            OUTPUT_GROUP,
            LANES,
        )
        return "float32"
    return name


def kv_dtype(name: DType) -> DType:
    """The type of keys and values beside weights of this type.

    Beside int8 it is bfloat16 on CPUs of the kind that has AVX512-BF16 or AMX, where attention of many
    answers took a third of the time: there are half the bytes to read, and the products are float32 all the
    same. On others it was not measured.
    """
    if name != "int8":
        return name
    return "bfloat16" if cpu_has("avx512bf16") or cpu_has("amx-tile") else "float32"
