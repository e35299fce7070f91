"""What a training stage brings to the trainer: examples, and their loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from pasta_async.training.packing import Trie


@dataclass(frozen=True, slots=True)
class Example:
    """What a loss needs at once: its trees are never spread over two rows."""

    trees: tuple[Trie, ...]
    """One document, or several that are compared with each other."""
    constants: tuple[float, ...] = ()
    """What else the loss needs, such as log-probabilities of a reference model."""

    def __len__(self) -> int:
        """Tokens in a row."""
        return sum(map(len, self.trees))


class Task:
    """Examples by number, and their loss: by default the cross-entropy of the mean target.

    The same number gives the same example in every process.
    """

    fingerprint: str = ""
    """Changes with the data, so that a checkpoint is not continued on others."""
    reported: tuple[str, ...] = ()
    """Names of what `loss` sums up beside the loss; means of them go into the metrics."""
    stream: bool = False
    """Whether examples are drawn as they are needed: taken in order, and not looked at before training."""
    compared: bool = False
    """Whether the loss needs `reference`."""
    reference: Mapping[int, tuple[float, ...]] = {}
    """By number, the summed log-probabilities of an example's trees under the weights at the start: set
    before training, if `compared`."""

    def __len__(self) -> int:
        """Examples in an epoch."""
        raise NotImplementedError

    def example(self, index: int) -> Example:
        """Make one example.

        Raises:
            InvalidRequestError: It cannot be trained on.
        """
        raise NotImplementedError

    def weight(self, example: Example) -> float:
        """What it counts in the mean that an update minimises: its targets."""
        return float(sum(len(tree.targets) for tree in example.trees))

    def loss(
        self, logprobs: Sequence[torch.Tensor], examples: Sequence[Example]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The loss of a row, summed over its examples, and a sum for each name in `reported`.

        Args:
            logprobs: For each example the summed log-probabilities of its trees: [trees], float32.
            examples: The examples of this row, at least one.
        """
        return -torch.cat(list(logprobs)).sum(), {}
