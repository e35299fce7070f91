"""Choose the next token of each sequence from its logits."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pasta_async.options import Sampling

    LogitsProcessor = Callable[[Sequence[int], torch.Tensor], torch.Tensor]

__all__ = ["TokenSampler", "sample"]

_BITS = 2**64 - 1


class TokenSampler:
    """How one sequence chooses its tokens.

    Args:
        sampling: Temperature and cuts.
        seed: Of the random numbers; None for one of its own.
        processor: Called with the ids generated so far and the logits, float32 `[vocabulary]`; returns the
            logits to choose from.
        banned: Ids that are never chosen, unless the processor raises them: it sees -inf there.
    """

    def __init__(
        self,
        sampling: Sampling,
        seed: int | None,
        processor: LogitsProcessor | None = None,
        banned: tuple[int, ...] = (),
    ) -> None:
        self.sampling = sampling
        self.processor = processor
        self.banned = banned
        self.generated: list[int] = []
        """What was chosen, for the processor; empty without one."""
        self._seed = secrets.randbits(64) if seed is None else seed

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return self.sampling.temperature == 0

    @property
    def cuts(self) -> bool:
        """Whether unlikely tokens are left out."""
        sampling = self.sampling
        return sampling.top_k is not None or sampling.top_p < 1 or sampling.min_p > 0

    def draw(self, position: int) -> float:
        """The random number, in [0, 1), for the token at a position of the context.

        It depends on the seed and the position alone, as in SGLang: neither on what else is decoded nor on
        how an answer is cut into requests. It is the output of SplitMix64.
        """
        mixed = _mix((_mix(self._seed) + position * 0x9E3779B97F4A7C15) & _BITS)
        return (mixed >> 11) / 2**53


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _BITS
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _BITS
    return x ^ (x >> 31)


class _Parameters(NamedTuple):
    """A float64 column `[rows, 1]` for each parameter."""

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    draw: torch.Tensor


@torch.inference_mode()
def sample(logits: torch.Tensor, samplers: Sequence[TokenSampler], positions: Sequence[int]) -> list[int]:
    """Choose a token for each row.

    Args:
        logits: `[rows, vocabulary]`, any floating type.
        samplers: One for each row.
        positions: Where in its context the token of each row will stand.
    """
    logits = logits.float()
    banned = [(row, token) for row, sampler in enumerate(samplers) for token in sampler.banned]
    if banned:
        logits[tuple(zip(*banned, strict=True))] = -torch.inf
    for row, sampler in enumerate(samplers):
        if sampler.processor is not None:
            logits[row] = sampler.processor(sampler.generated, logits[row])
    tokens = logits.argmax(-1)
    drawing = [row for row, sampler in enumerate(samplers) if not sampler.greedy]
    for draw, cuts in ((_draw_cut, True), (_draw, False)):
        if rows := [row for row in drawing if samplers[row].cuts == cuts]:
            chosen = [(samplers[row], positions[row]) for row in rows]
            tokens[rows] = draw(logits[rows], _parameters(chosen, logits))
    result = _list(tokens)
    for sampler, token in zip(samplers, result, strict=True):
        if sampler.processor is not None:
            sampler.generated.append(token)
    return result


def _parameters(chosen: Sequence[tuple[TokenSampler, int]], logits: torch.Tensor) -> _Parameters:
    vocabulary = logits.shape[-1]
    columns = [
        (s.temperature, s.top_k or vocabulary, s.top_p, s.min_p, sampler.draw(position))
        for sampler, position in chosen
        for s in (sampler.sampling,)
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


def _list(tensor: torch.Tensor) -> list[int]:
    untyped: Any = tensor
    return untyped.tolist()
