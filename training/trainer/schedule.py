"""Which examples an update takes, and how they are dealt to rows: the same for any number of processes."""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Schedule", "deal_rows", "row_length"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """The order of the data: shuffled anew in each epoch, a function of seed and step alone."""

    examples: int
    batch: int
    seed: int
    steps: int
    """Updates in all."""

    @classmethod
    def plan(cls, examples: int, batch: int, seed: int, epochs: float, steps: int) -> Schedule:
        """A schedule of `steps` updates, or of `epochs` where steps is 0."""
        return cls(examples, batch, seed, steps or max(1, round(epochs * math.ceil(examples / batch))))

    @property
    def epoch_steps(self) -> int:
        """Updates of one epoch; the last one may have fewer examples."""
        return math.ceil(self.examples / self.batch)

    def examples_of(self, step: int) -> list[int]:
        """The examples of an update, the first of which is step 0."""
        epoch, place = divmod(step, self.epoch_steps)
        return list(_order(self.examples, self.seed, epoch)[place * self.batch : (place + 1) * self.batch])

    def rate(self, step: int, peak: float, warmup: int) -> float:
        """The learning rate of an update: up to the peak over `warmup` updates, then linearly to zero."""
        falling = (self.steps - step) / max(1, self.steps - warmup)
        return peak * min(1.0, (step + 1) / max(1, warmup), falling)


@lru_cache(maxsize=2)
def _order(examples: int, seed: int, epoch: int) -> tuple[int, ...]:
    order = list(range(examples))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return tuple(order)


def deal_rows(sizes: Sequence[int], capacity: int, world: int) -> list[list[int]]:
    """Deal examples to rows of at most `capacity` tokens, about equally full; row r is for process r % world.

    Returns:
        For each row the indexes into `sizes`. Their number is a multiple of `world`, so a row may be empty.

    Raises:
        ValueError: An example is larger than a row.
    """
    if max(sizes) > capacity:
        raise ValueError(f"an example of {max(sizes)} tokens is larger than a row of {capacity}")
    largest_first = sorted(range(len(sizes)), key=lambda index: -sizes[index])
    rows = world * max(1, math.ceil(sum(sizes) / (capacity * world)))
    while (dealt := _deal(largest_first, sizes, capacity, rows)) is None:
        rows += world
    return dealt


def _deal(order: Sequence[int], sizes: Sequence[int], capacity: int, rows: int) -> list[list[int]] | None:
    """Each example to the row that is the least full; None where one does not fit."""
    dealt: list[list[int]] = [[] for _ in range(rows)]
    heap = [(0, row) for row in range(rows)]
    for index in order:
        used, row = heapq.heappop(heap)
        if used + sizes[index] > capacity:
            return None
        dealt[row].append(index)
        heapq.heappush(heap, (used + sizes[index], row))
    return dealt


def row_length(used: int, capacity: int, few: bool) -> int:
    """Tokens of a row, padding counted, for `used` ones.

    Args:
        used: Tokens of the trees.
        capacity: Most that a row may have.
        few: Whether a kernel is compiled for each length, so that there should be few: the capacity, its
            half, and so on. Otherwise the next multiple of 16.
    """
    if not few:
        return max(16, -(-used // 16) * 16)
    length = capacity
    while length % 256 == 0 and length // 2 >= used:
        length //= 2
    return length
