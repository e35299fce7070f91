"""What a training stage brings to the loop, and the order in which its examples are taken."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from pasta_async.training.trainer.rows import Example

__all__ = ["ComparedTask", "Schedule", "Task"]


class Task(Protocol):
    """Examples by number, and their loss. The same number gives the same example in every process."""

    @property
    def reported(self) -> tuple[str, ...]:
        """Names of what `loss` sums up beside the loss; means of them go into the metrics."""
        ...

    @property
    def fingerprint(self) -> str:
        """Changes with the data, so that a checkpoint is not continued on others."""
        ...

    def __len__(self) -> int:
        """Examples in an epoch."""
        ...

    def example(self, index: int) -> Example:
        """Make one example."""
        ...

    def weight(self, example: Example) -> float:
        """What it counts in the mean that an update minimises: its targets, or 1."""
        ...

    def loss(
        self, logprobs: Sequence[torch.Tensor], examples: Sequence[Example]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The loss of a row, summed over its examples, and further sums to report.

        Args:
            logprobs: For each example the summed log-probabilities of its trees, [trees].
            examples: The examples of this row, at least one.

        Returns:
            The loss, and a sum for each name in `reported`.
        """
        ...


@runtime_checkable
class ComparedTask(Task, Protocol):
    """A task whose loss needs the log-probabilities of its trees under the weights at the start."""

    def compare_with(self, reference: Mapping[int, tuple[float, ...]]) -> None:
        """Take them, by the number of the example, one for each of its trees. Called before training."""
        ...


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
