"""Choose the next token of each sequence from its logits."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from pasta_async.errors import BackendError
from pasta_async.options import Sampling
from pasta_async.tag_tokens import TagRule, TagState

_Chosen = Sequence[tuple["TokenSampler", int]]  # with the position of its token
LogitsProcessor = Callable[[Sequence[int], torch.Tensor], torch.Tensor]

_BITS = 2**64 - 1
_BLOCK = 256  # tokens whose probabilities are added up first
_CANDIDATES = 128  # likeliest tokens that cuts are tried on first
_BELOW_ONE = 1 - 1e-12  # so that no product with it is rounded up to the whole
_NO_TOKEN = -1  # among tokens: of a row whose logits leave nothing to choose


@dataclass(eq=False)
class TokenSampler:
    """How one sequence chooses its tokens."""

    sampling: Sampling  # temperature and cuts
    seed: int | None  # of the random numbers; None for one of its own
    processor: LogitsProcessor | None = None
    """Gets the ids generated so far and the logits, float32 `[vocabulary]`; returns those to choose from."""
    banned: tuple[int, ...] = ()  # never chosen, unless the processor raises them: it sees -inf there
    penalty: float = 1.0  # for repetition, where `sampling` has none of its own
    exempt: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))  # ids never penalised
    tags: TagState | None = None
    """Says which tags may come next, and is told what was chosen; None for all that are not banned."""
    generated: list[int] = field(default_factory=list[int], init=False)
    """What was chosen, for the processor; empty without one."""

    def __post_init__(self) -> None:
        self.penalty = self.sampling.repetition_penalty or self.penalty
        self._seed = secrets.randbits(64) if self.seed is None else self.seed

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
def sample(
    logits: torch.Tensor, samplers: Sequence[TokenSampler], contexts: Sequence[NDArray[np.int64]]
) -> list[int | BackendError]:
    """Choose a token for each row; a row of which none can be chosen has the error that says why.

    Args:
        logits: `[rows, vocabulary]`, any floating type.
        samplers: One for each row.
        contexts: The ids before each row's token, int64 `[length]`.
    """
    logits = logits.float()
    _penalise(logits, samplers, contexts)
    _exclude(logits, samplers)
    errors = _process(logits, samplers)
    tokens: Any = torch.empty(len(samplers), dtype=torch.int64, device=logits.device)
    choices = [_choice(sampler.sampling) for sampler in samplers]
    for choose in dict.fromkeys(choices):
        rows = [row for row, choice in enumerate(choices) if choice is choose]
        chosen = [(samplers[row], len(contexts[row])) for row in rows]
        some = logits if len(rows) == len(samplers) else logits[rows]
        tokens[rows] = choose(some, chosen)
    pairs = enumerate(zip(samplers, tokens.tolist(), strict=True))
    return [errors.get(row) or _accept(sampler, token) for row, (sampler, token) in pairs]


def _process(logits: torch.Tensor, samplers: Sequence[TokenSampler]) -> dict[int, BackendError]:
    """Have the rows' own processors change them, in place; what those that failed failed with, by row."""
    errors: dict[int, BackendError] = {}
    for row, sampler in enumerate(samplers):
        if sampler.processor is None:
            continue
        mine = logits[row]
        try:
            if (processed := sampler.processor(sampler.generated, mine)) is not mine:
                logits[row] = processed
        except Exception as error:  # whatever users wrote: it is the failure of one request
            errors[row] = BackendError(f"the request's logits_processor failed: {error!r}")
            errors[row].__cause__ = error
    return errors


def _accept(sampler: TokenSampler, token: int) -> int | BackendError:
    """Tell a sampler what was chosen for it."""
    if token == _NO_TOKEN:
        return BackendError("no token can be chosen: the logits are not finite, or leave none possible")
    if sampler.processor is not None:
        sampler.generated.append(token)
    if sampler.tags is not None:
        sampler.tags.add(token)
    return token


def _exclude(logits: torch.Tensor, samplers: Sequence[TokenSampler]) -> None:
    """Leave only tokens that may come next, in place."""
    # Numpy's indexing of a few places is five times as fast as torch's.
    either: tuple[Any, Any] = (logits.numpy(), np.max) if logits.is_cpu else (logits, torch.amax)
    values, largest = either
    rows: defaultdict[TagRule, list[int]] = defaultdict(list)
    banned: list[tuple[int, int]] = []
    for row, sampler in enumerate(samplers):
        banned += [(row, token) for token in sampler.banned]
        if sampler.tags is not None:
            rows[sampler.tags.rule].append(row)
    for (excluded, instead), some in rows.items():
        if excluded is None:
            values[some] = -np.inf
            values[some, instead] = 0
            continue
        column = np.array(some)[:, None]
        if instead is not None:
            values[some, instead] = largest(values[column, (*excluded, instead)], -1)
        values[column, excluded] = -np.inf
    if banned:
        values[tuple(np.array(banned).T)] = -np.inf


def _penalise(
    logits: torch.Tensor, samplers: Sequence[TokenSampler], contexts: Sequence[NDArray[np.int64]]
) -> None:
    """Make what the contexts hold less likely, in place."""
    rows = [row for row, sampler in enumerate(samplers) if sampler.penalty != 1]
    if not rows:
        return
    exempt = _places(logits, rows, [samplers[row].exempt for row in rows])
    kept = logits[exempt]
    at = _places(logits, rows, [contexts[row] for row in rows])
    penalties = [sampler.penalty for sampler in samplers]
    penalty = torch.tensor(penalties, dtype=torch.float32, device=logits.device)[at[0]]
    values = logits[at]  # read once: an id that stands twice is not penalised twice
    logits[at] = torch.where(values > 0, values / penalty, values * penalty)
    logits[exempt] = kept


def _places(
    logits: torch.Tensor, rows: Sequence[int], ids: Sequence[NDArray[np.int64]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows with ids of theirs, as an index of the logits."""
    repeated = torch.as_tensor(np.repeat(rows, [len(found) for found in ids]), device=logits.device)
    return repeated, torch.as_tensor(np.concatenate(ids), device=logits.device)


def _parameters(chosen: _Chosen, logits: torch.Tensor) -> _Parameters:
    rows: list[tuple[float, ...]] = []
    for sampler, position in chosen:
        own = sampler.sampling
        top_k = own.top_k or logits.shape[-1]
        rows.append((own.temperature, top_k, own.top_p, own.min_p, sampler.draw(position)))
    table = torch.tensor(rows, dtype=torch.float64, device=logits.device)
    return _Parameters(*table[:, :, None].unbind(1))


def _choice(sampling: Sampling) -> Callable[[torch.Tensor, _Chosen], torch.Tensor]:
    if sampling.temperature == 0:
        return _likeliest
    cuts = sampling.top_k is not None or sampling.top_p < 1 or sampling.min_p > 0
    return _draw_cut if cuts else _draw


def _likeliest(logits: torch.Tensor, _: _Chosen) -> torch.Tensor:
    # Numpy's is thirteen times as fast on a CPU.
    token = torch.as_tensor(logits.numpy().argmax(-1)) if logits.is_cpu else logits.argmax(-1)
    possible = logits.gather(1, token[:, None])[:, 0] > -torch.inf  # NaN, which counts as the largest, is not
    return token.where(possible, _NO_TOKEN)


def _draw(logits: torch.Tensor, chosen: _Chosen) -> torch.Tensor:
    """Invert the whole distribution at the drawn number: first find the block of tokens, then the token.

    Only sums of blocks need the precision of float64: adding all probabilities up in it cost as much as a
    step of the model.
    """
    p = _parameters(chosen, logits)
    weights = _weights(logits, p)
    if padding := -weights.shape[-1] % _BLOCK:  # without any, `pad` would copy all
        weights = F.pad(weights, (0, padding))
    blocks = weights.view(len(weights), -1, _BLOCK)
    block, rest = _invert(blocks.sum(-1).double(), p.draw)
    inside = blocks.gather(1, block[:, :, None].expand(-1, 1, _BLOCK))[:, 0]
    token, _ = _invert(inside.double(), rest)
    return (block * _BLOCK + token).where(rest >= 0, _NO_TOKEN)[:, 0]


def _draw_cut(logits: torch.Tensor, chosen: _Chosen) -> torch.Tensor:
    """Cut to top_k, then top_p of what is left, then min_p; invert the distribution at the drawn number.

    The likeliest tokens are looked at alone, unless more remain: sorting a vocabulary costs more than a step.
    """
    p = _parameters(chosen, logits)
    total = _weights(logits, p).sum(-1, keepdim=True, dtype=torch.float64)
    tokens, inside = _draw_among(min(_CANDIDATES, logits.shape[-1]), logits, p, total)
    if not inside.all():
        more = ~inside
        some = _Parameters(*(column[more] for column in p))
        tokens[more], _ = _draw_among(logits.shape[-1], logits[more], some, total[more])
    return tokens


def _draw_among(
    count: int, logits: torch.Tensor, p: _Parameters, total: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `_draw_cut` draws of the `count` likeliest tokens, and in which rows no others are left."""
    values, ids = logits.topk(count, dim=-1)
    weights = _weights(values, p).double()
    likely = torch.arange(count, device=logits.device) < p.top_k
    weights *= likely
    weights /= torch.where(p.top_k <= count, weights.sum(-1, keepdim=True), total)
    before = weights.cumsum(-1) - weights
    keep = likely & (before < p.top_p) & (weights >= p.min_p * weights[:, :1])
    place, rest = _invert(weights * keep, p.draw)
    token = ids.gather(1, place).where(rest >= 0, _NO_TOKEN)
    known = (p.top_k >= logits.shape[-1]) | (p.top_p >= 1)  # else the cut depends on what top_k keeps beyond
    return token[:, 0], ((p.top_k <= count) | (known & ~keep[:, -1:]))[:, 0]


def _weights(logits: torch.Tensor, p: _Parameters) -> torch.Tensor:
    """Probabilities, as multiples of the greatest one: float32 `[rows, n]`."""
    return (logits - logits.amax(-1, keepdim=True)).div_(p.temperature.float()).exp_()


def _invert(weights: torch.Tensor, draw: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The place of each row's weights where a share of `draw` stands before, and the share of that place.

    A place without weight is never found. Of weights that are no numbers the share is none either.

    Args:
        weights: float64 `[rows, n]`.
        draw: In [0, 1), float64 `[rows, 1]`.
    """
    total = weights.cumsum(-1)
    aim = draw.clamp(max=_BELOW_ONE) * total[:, -1:]
    place = torch.searchsorted(total, aim, right=True).clamp_(max=weights.shape[-1] - 1)
    here = weights.gather(1, place)
    return place, ((aim - total.gather(1, place) + here) / here).clamp(0)
