"""Muon for the matrices inside the layers, AdamW for the rest.

Muon (Jordan et al., 2024) orthogonalises the momentum of a matrix. The scale 0.2 * sqrt(max(rows, columns))
(Liu et al., arXiv 2502.16982) makes its updates as large as AdamW's, so that one learning rate serves both.
torch's own Muon computes in bfloat16, which a CPU without such instructions emulates slowly.
"""

# torch, transformers and tokenizers leave some of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import ThreadPoolExecutor

__all__ = ["Muon", "orthogonalize"]

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalize(matrix: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """Bring the singular values of a matrix [rows, columns] near 1, by a quintic Newton-Schulz iteration."""
    a, b, c = _COEFFICIENTS
    x = matrix.T if matrix.size(0) > matrix.size(1) else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if matrix.size(0) > matrix.size(1) else x


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised; for matrices alone."""

    def __init__(
        self,
        params: Iterable[torch.Tensor],
        lr: float,
        pool: ThreadPoolExecutor,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        self.pool = pool
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            list(self.pool.map(self._update, params, repeat(group)))

    @torch.no_grad()
    def _update(self, param: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[param]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(param)
        momentum = state["momentum"]
        assert param.grad is not None
        momentum.lerp_(param.grad, 1 - group["momentum"])
        update = orthogonalize(param.grad.lerp(momentum, group["momentum"]))
        param.mul_(1 - group["lr"] * group["weight_decay"])
        param.add_(update, alpha=-group["lr"] * 0.2 * max(param.shape) ** 0.5)
