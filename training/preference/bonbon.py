"""BoNBoN (arXiv 2406.00832): train towards the best of n samples, by the best and the worst of them.

docs/preferences.md derives the target.
"""

# torch leaves some of its types open.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

import torch

from pasta_async.errors import InvalidRequestError
from pasta_async.training.trainer.rows import Example, Tree

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pasta_async.training.packing import Trie
    from pasta_async.training.preference.pairs import Pair

__all__ = ["BonBon", "best_of_n_target"]

_REPORTED = ("margin", "accuracy", "best_ratio", "worst_ratio", "nll")


def best_of_n_target(n: int) -> float:
    """How far best and worst of n samples are apart in log-ratio for best-of-n, in the mean.

    (n - 1) * (1 + 1/2 + ... + 1/(n - 1)), in nats: 1 / (2 beta*) in the paper's terms.

    Raises:
        ValueError: n is less than 2.
    """
    if n < 2:
        raise ValueError(f"there is no best and worst of {n} samples")
    return (n - 1) * math.fsum(1 / k for k in range(1, n))


class BonBon:
    """The task of stage 2: an example is a pair, and an update minimises the mean over its pairs.

    The loss is alpha * NLL(best) + (1 - alpha) * (ratio(best) - ratio(worst) - target)², where NLL and ratio,
    log pi - log pi_ref, are sums over the sampled tokens of all threads.

    Args:
        pairs: Of answers that the model at the start has drawn.
        alpha: Share of the first term.
        beta: 0 for the target of best-of-n, else the target is 1 / (2 beta).
        kept: For each pair an answer that is to stay as likely as it was, or None at all: the loss gets
            the square of its ratio, whatever alpha is.
    """

    reported: tuple[str, ...] = _REPORTED
    """Log-ratio of the best less that of the worst, how often it is positive, each of them, and the negative
    log-likelihood of a token of the best; with kept answers their ratio."""

    def __init__(
        self, pairs: Sequence[Pair], alpha: float, beta: float = 0.0, kept: Sequence[Trie] | None = None
    ) -> None:
        self._pairs, self._alpha, self._beta, self._kept = pairs, alpha, beta, kept
        self._reference: Mapping[int, tuple[float, ...]] = {}
        self.fingerprint: str = _fingerprint(pairs) + ("" if kept is None else "+kept")
        if kept is not None:
            self.reported = (*_REPORTED, "kept_ratio")

    def __len__(self) -> int:
        return len(self._pairs)

    def compare_with(self, reference: Mapping[int, tuple[float, ...]]) -> None:
        """Take the log-probabilities of an example's answers under the model at the start, by number."""
        self._reference = reference

    def example(self, index: int) -> Example:
        """A pair: best, worst, perhaps what is kept; the target and their reference log-probabilities.

        Raises:
            InvalidRequestError: The stored tokens of a sample form no tree.
        """
        pair = self._pairs[index]
        kept = () if self._kept is None else (self._kept[index],)
        try:
            trees = tuple(Tree.of(trie) for trie in (pair.best.trie, pair.worst.trie, *kept))
        except ValueError as error:
            raise InvalidRequestError(f"samples of {pair.id}: {error}") from error
        target = 1 / (2 * self._beta) if self._beta else best_of_n_target(pair.n)
        return Example(trees, (target, *self._reference.get(index, (math.nan,) * len(trees))))

    def weight(self, example: Example) -> float:
        """One: the loss is a mean over pairs."""
        return 1.0

    def loss(
        self, logprobs: Sequence[torch.Tensor], examples: Sequence[Example]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The loss, summed over pairs, and the sums of what is reported.

        Args:
            logprobs: For each pair the log-probabilities of its trees' targets, summed: [2 or 3], float32.
            examples: The pairs.
        """
        ours = torch.stack(list(logprobs))
        constants = ours.new_tensor([example.constants for example in examples])
        targets = ours.new_tensor([len(example.trees[0].labels) for example in examples])
        ratios = ours - constants[:, 1:]
        margins, kept = ratios[:, 0] - ratios[:, 1], ratios[:, 2:].sum(1)
        squares = (margins - constants[:, 0]).square()
        loss = (-self._alpha * ours[:, 0] + (1 - self._alpha) * squares + kept.square()).sum()
        values = (margins, margins > 0, ratios[:, 0], ratios[:, 1], -ours[:, 0] / targets, kept)
        return loss, {name: each.sum() for name, each in zip(self.reported, values, strict=False)}


def _fingerprint(pairs: Sequence[Pair]) -> str:
    digest = hashlib.sha256()
    for pair in pairs:
        tokens = ((sample.ids, sample.parents, sample.targets) for sample in (pair.best, pair.worst))
        digest.update(repr((pair.id, pair.n, *tokens)).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]
