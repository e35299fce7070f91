"""A matrix product whose weights are laid out for few rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Linear", "pad_rows"]

_FEW_ROWS = 8  # the row count that the packed layout is chosen for


class Linear:
    """`y = x W^T + b` for `x` of `[rows, in]`.

    A decode step has as many rows as there are threads. On a CPU the usual product of 2 to 16 rows costs
    about twice that of one row, since it packs the weights anew each time; with oneDNN's packed weights 8
    rows cost little more than one (measured for 256 x 1408: 1.4 times). Where torch has no packed product
    (other devices and types), this is `torch.nn.functional.linear`.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._bias = bias
        self._packed = _packed_product(weight)
        self._weight = (
            weight if self._packed is None else torch.ops.mkldnn._reorder_linear_weight(weight, _FEW_ROWS)
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The product, `[rows, out]`."""
        if self._packed is None:
            return F.linear(x, self._weight, self._bias)
        return self._packed(x, self._weight, self._bias, "none", [], "")


def pad_rows(rows: int) -> int:
    """A row count to round up to: each new count costs oneDNN a few milliseconds once."""
    if rows <= _FEW_ROWS:
        return rows
    step = 8 if rows <= 64 else 32
    return -(-rows // step) * step


def _packed_product(weight: torch.Tensor) -> Callable[..., torch.Tensor] | None:
    ops: Any = torch.ops.mkldnn
    usable = (
        weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available()
    )
    if not usable or not hasattr(ops, "_reorder_linear_weight") or not hasattr(ops, "_linear_pointwise"):
        return None
    return ops._linear_pointwise
