"""Choose the next token of each sequence from its logits."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pasta_async.sampling import Sampling

    LogitsProcessor = Callable[[Sequence[int], torch.Tensor], torch.Tensor]

__all__ = ["Chooser", "sample"]


class Chooser:
    """How one sequence chooses: its parameters, and its own source of chance.

    One random number is drawn for each token, so a seed gives the same numbers whatever else is decoded.
    """

    def __init__(
        self, sampling: Sampling, seed: int | None, processor: LogitsProcessor | None = None
    ) -> None:
        self.sampling = sampling
        self.processor = processor
        self.generated: list[int] = []
        """What was chosen, for the processor; empty without one."""
        self._random = random.Random(seed)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return self.sampling.temperature == 0

    @property
    def cuts(self) -> bool:
        """Whether unlikely tokens are left out."""
        sampling = self.sampling
        return sampling.top_k is not None or sampling.top_p < 1 or sampling.min_p > 0

    def draw(self) -> float:
        """The next number, in [0, 1)."""
        return self._random.random()


class _Parameters(NamedTuple):
    """One column `[rows, 1]` for each parameter."""

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    draw: torch.Tensor


@torch.inference_mode()
def sample(logits: torch.Tensor, choosers: Sequence[Chooser]) -> tuple[list[int], list[float]]:
    """Choose a token for each row of `logits` `[rows, vocabulary]`.

    Returns the tokens and their log probabilities at temperature 1, nothing cut.
    """
    logits = logits.float()
    processed = [(row, c, c.processor) for row, c in enumerate(choosers) if c.processor]
    for row, chooser, processor in processed:
        logits[row] = processor(chooser.generated, logits[row])
    tokens = logits.argmax(-1)
    drawing = [row for row, chooser in enumerate(choosers) if not chooser.greedy]
    for draw, cuts in ((_draw_cut, True), (_draw, False)):
        if rows := [row for row in drawing if choosers[row].cuts == cuts]:
            tokens[rows] = draw(logits[rows], _parameters([choosers[row] for row in rows], logits))
    for row, chooser, _ in processed:
        chooser.generated.append(int(tokens[row]))
    logprobs = logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    return _list(tokens), _list(logprobs)


def _parameters(choosers: Sequence[Chooser], logits: torch.Tensor) -> _Parameters:
    vocabulary = logits.shape[-1]
    columns = [
        (c.sampling.temperature, c.sampling.top_k or vocabulary, c.sampling.top_p, c.sampling.min_p, c.draw())
        for c in choosers
    ]
    table = torch.tensor(columns, dtype=torch.float64, device=logits.device)
    return _Parameters(*table[:, :, None].unbind(1))


def _draw(logits: torch.Tensor, p: _Parameters) -> torch.Tensor:
    """Invert the whole distribution at the drawn number: no order is needed, and sorting costs most."""
    total = (logits / p.temperature).softmax(-1, dtype=torch.float64).cumsum(-1)
    place = torch.searchsorted(total, p.draw * total[:, -1:], right=True)
    return place.clamp_(max=logits.shape[-1] - 1)[:, 0]  # rounding may pass the last one


def _draw_cut(logits: torch.Tensor, p: _Parameters) -> torch.Tensor:
    """Cut to top_k, then top_p of what is left, then min_p; invert the distribution at the drawn number."""
    ordered, ids = logits.sort(stable=True, dim=-1, descending=True)
    probabilities = (ordered / p.temperature).softmax(-1, dtype=torch.float64)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    likely = rank < p.top_k
    probabilities *= likely
    probabilities /= probabilities.sum(-1, keepdim=True)
    before = probabilities.cumsum(-1) - probabilities
    keep = likely & (before < p.top_p) & (probabilities >= p.min_p * probabilities[:, :1])
    total = (probabilities * keep).cumsum(-1)
    place = torch.searchsorted(total, p.draw * total[:, -1:], right=True)
    place = torch.minimum(place, keep.sum(-1, keepdim=True) - 1)  # rounding may pass the last one kept
    return ids.gather(1, place)[:, 0]


def _list(tensor: torch.Tensor) -> list[Any]:
    untyped: Any = tensor
    return untyped.tolist()
