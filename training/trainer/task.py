"""What a training stage brings to the loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from pasta_async.training.trainer.tree import Tree

__all__ = ["Example", "Task"]


@dataclass(frozen=True, slots=True)
class Example:
    """What a loss needs at once: its trees are never spread over two rows."""

    trees: tuple[Tree, ...]
    """One document, or several that are compared with each other."""
    constants: tuple[float, ...] = ()
    """What else the loss needs, such as log-probabilities of a reference model."""

    def __len__(self) -> int:
        """Tokens in a row."""
        return sum(map(len, self.trees))


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
