"""Weights as 8-bit integers, the basis in which that loses little, and the CPUs that compute with them."""

from __future__ import annotations

import importlib
import math
from collections.abc import Generator, Sequence
from typing import Any

import torch

from pasta_async.backends.local.checkpoint import ModelConfig

GROUP = 64
"""Outputs that the kernels compute in one thread."""

BLOCK = 64
"""Keys of a prompt that the kernels multiply a query with at once."""


def cpu_has(name: str) -> bool:
    """True if the CPU has some instructions, as far as torch says."""
    check: Any = getattr(torch.cpu, f"_is_{name}_supported", None)
    return check is not None and bool(check())


VNNI: bool = cpu_has("vnni")
"""AVX512-VNNI adds four products of 8-bit numbers at once."""

AVX2: bool = cpu_has("avx2")
"""AVX2 adds two products of 16-bit numbers at once."""

PANEL: int = GROUP if VNNI else 8
"""Outputs whose weights stand together for the kernels, as many as registers hold results of."""

LANES = 16
"""Numbers in a vector of the kernels."""

_BLOCK = 2**15 - 1  # weights converted at a time: they stay in the processor's cache, and in one thread


def computes_int8(config: ModelConfig) -> bool:
    """True if the kernels can compute this model here: a CPU with AVX2, numba, and sizes that fit."""
    sizes = config.hidden, config.intermediate, (config.heads + 2 * config.kv_heads) * config.head_dim
    fits = all(size % GROUP == 0 for size in sizes) and config.head_dim % LANES == 0
    return fits and AVX2 and _has_numba()


def _has_numba() -> bool:
    try:
        importlib.import_module("numba")
    except ImportError:  # missing, or of another time than the numpy that is here
        return False
    return True


class Basis:
    """Another basis for the hidden state, in which no component is far larger than the others.

    A few components of a language model's hidden state are many times larger than the rest, which leaves
    few of 8 bits to those. Layers do not care about the basis, so the matrices that read and write the state
    are multiplied by an orthogonal one as they are loaded, and a step does no more than before (QuaRot, arXiv
    2404.00456). The matrix is the Kronecker product of a discrete cosine transform and a Hadamard matrix of
    at most 64.
    """

    def __init__(self, hidden: int) -> None:
        fine = math.gcd(hidden, 64)
        self._hadamard = torch.ones(1, 1)
        while len(self._hadamard) < fine:
            self._hadamard = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), self._hadamard)
        self._hadamard /= math.sqrt(fine)
        coarse = hidden // fine
        index = torch.arange(coarse, dtype=torch.float64)
        self._cosine = torch.cos(math.pi / coarse * (index + 0.5) * index[:, None]) * math.sqrt(2 / coarse)
        self._cosine[0] /= math.sqrt(2)
        self._cosine = self._cosine.float()

    def inputs(self, rows: torch.Tensor) -> torch.Tensor:
        """A matrix `[out, hidden]`, or a table of hidden states, for states in this basis; float32."""
        shaped = rows.float().view(len(rows), len(self._cosine), len(self._hadamard))
        return (self._cosine.T @ (shaped @ self._hadamard)).view(rows.shape)

    def outputs(self, matrix: torch.Tensor) -> torch.Tensor:
        """A matrix `[hidden, in]`, or a bias `[hidden]`, that writes into this basis; float32."""
        rows = matrix.view(len(matrix), -1).float().T.contiguous()
        return self.inputs(rows).T.reshape(matrix.shape)


def blocks(
    matrices: Sequence[torch.Tensor], scale: torch.Tensor | None
) -> Generator[tuple[slice, torch.Tensor]]:
    """The matrices below each other, a few rows at a time in float32, with the rows' numbers."""
    start = 0
    for matrix in matrices:
        count = max(_BLOCK // matrix.shape[1], 1)
        for first in range(0, len(matrix), count):
            rows = matrix[first : first + count].float()
            yield slice(start, start + len(rows)), rows if scale is None else rows * scale
            start += len(rows)


def quantised(
    matrices: Sequence[torch.Tensor], scale: torch.Tensor | None, basis: Basis | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The matrices as one, int8 `[sum of out, in]`, and the value of a row's 1, float32 `[sum of out, 1]`."""
    rounded = torch.empty(sum(map(len, matrices)), matrices[0].shape[1], dtype=torch.int8)
    steps = torch.empty(len(rounded), 1)
    for rows, part in blocks(matrices, scale):
        exact = part if basis is None else basis.inputs(part)
        steps[rows] = exact.abs().amax(1, keepdim=True).clamp_min_(1e-30) / 127
        rounded[rows] = (exact / steps[rows]).round_()
    return rounded, steps
