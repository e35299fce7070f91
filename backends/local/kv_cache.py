"""Where keys and values live: one tensor for each layer, a row ("slot") for each token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta_async.backends.local.config import ModelConfig

__all__ = ["KVCache", "SlotPool"]


class KVCache:
    """Keys and values of all slots, `[slots, 2 * kv_heads, head_dim]` for each layer (keys first)."""

    def __init__(self, config: ModelConfig, slots: int, *, device: torch.device, dtype: torch.dtype) -> None:
        shape = (slots, 2 * config.kv_heads, config.head_dim)
        # Not zeroed: memory is claimed page by page as it is used, and no slot is read before it is written.
        self.layers: list[torch.Tensor] = [
            torch.empty(shape, device=device, dtype=dtype) for _ in range(config.layers)
        ]


class SlotPool:
    """The free slots, lowest first while nothing was given back."""

    def __init__(self, slots: int) -> None:
        self.size = slots
        self._stack = np.arange(slots - 1, -1, -1, dtype=np.int64)
        self._free = slots

    @property
    def free(self) -> int:
        """How many slots are free."""
        return self._free

    def take(self, count: int) -> NDArray[np.int64]:
        """Claim `count` slots; the caller has made sure that they are there."""
        assert count <= self._free
        self._free -= count
        return self._stack[self._free : self._free + count][::-1].copy()

    def give(self, slots: NDArray[np.int64]) -> None:
        """Give slots back."""
        self._stack[self._free : self._free + len(slots)] = slots[::-1]
        self._free += len(slots)

    def peek(self) -> NDArray[np.int64]:
        """The free slots themselves (for checks)."""
        return self._stack[: self._free].copy()
