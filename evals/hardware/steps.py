"""A decode step's time beside the floor that the memory's bandwidth sets."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from pasta_async.clock import REAL_CLOCK
from pasta_async.evals.simulator.measuring import take_samples

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pasta_async import Backend
    from pasta_async.clock import Clock

__all__ = ["Step", "Traffic", "copy_bandwidth", "decode_steps"]


class Traffic(NamedTuple):
    """What a decode step has to read."""

    weights: int
    """Bytes of all weights but the embeddings, of which a step needs a row for each thread."""
    token: int
    """Bytes of a token's keys and values."""
    bandwidth: float
    """Bytes a second."""

    @classmethod
    def of(cls, folder: Path, *, width: int, bandwidth: float) -> Traffic:
        """That of a model folder, for numbers of `width` bytes.

        Raises:
            UnsupportedModelError: Its config.json is missing or of another family.
        """
        from math import prod

        from pasta_async.backends.local.checkpoint import expected_shapes, read_config

        config = read_config(folder)
        shapes = expected_shapes(config)
        numbers = sum(prod(shape) for name, shape in shapes.items() if config.tied or "embed" not in name)
        token = 2 * config.layers * config.kv_heads * config.head_dim
        return cls(width * numbers, width * token, bandwidth)

    def floor(self, threads: int, context: int) -> float:
        """Seconds that a step takes at least, where each thread's attention reads its whole context."""
        return (self.weights + self.token * threads * context) / self.bandwidth


class Step(NamedTuple):
    """A decode step of so many threads on one shared prefix."""

    threads: int
    context: int
    """Tokens of the prefix."""
    seconds: float
    """Median between two tokens of a thread."""
    floor: float
    """What reading the memory takes at least."""


async def decode_steps(
    backend: Backend,
    traffic: Traffic,
    *,
    threads: Sequence[int] = (1, 2, 4, 8),
    context: int = 1024,
    rounds: int = 3,
    clock: Clock = REAL_CLOCK,
) -> list[Step]:
    """Time decode steps of so many threads at once that share a prefix.

    Args:
        backend: What is timed; it has to take forced requests.
        traffic: What a step has to read.
        threads: How many at once, each in turn.
        context: Tokens of the prefix that they share.
        rounds: How often, behind one that warms up.
        clock: Measures.

    Cancelling it aborts the requests under way.
    """
    settings = [(count, context) for count in threads]
    samples = await take_samples(backend, settings, rounds=rounds, shared=True, clock=clock)
    return [
        Step(one.at_once, one.context, one.step, traffic.floor(one.at_once, one.context)) for one in samples
    ]


def copy_bandwidth(device: str, *, size: int | None = None, rounds: int = 10) -> float:
    """Bytes a second that a device's memory moves in a large copy, read and written ones counted; the best.

    Args:
        device: As torch names it.
        size: Bytes of the copy; None: what suits the device.
        rounds: Copies.
    """
    import torch

    size = size or (2**30 if device.startswith("cuda") else 2**27)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(rounds):
        _settle(device)
        began = time.perf_counter()
        target.copy_(source)
        _settle(device)
        best = min(best, time.perf_counter() - began)
    return 2 * size / best


def _settle(device: str) -> None:
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize()
