"""Choose the next token of each sequence from its logits."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pasta_async.backends.local.batch import Floats, Ints
from pasta_async.errors import BackendError
from pasta_async.options import Sampling
from pasta_async.tag_tokens import TagRule, TagState

if TYPE_CHECKING:
    from llguidance import LLMatcher

Doubles = NDArray[np.float64]
LogitsProcessor = Callable[[Sequence[int], Floats], Floats]

_Drawing = Sequence[tuple["TokenSampler", int]]  # samplers, with the positions of their tokens

_BITS = 2**64 - 1
_SUMMED_AT_ONCE = 256  # tokens whose probabilities are added up as one number first
_CANDIDATES = 128  # likeliest tokens that a cut is tried on before the whole vocabulary
_BELOW_ONE = 1 - 1e-12  # so that no product with it is rounded up to the whole
_NO_TOKEN = -1  # stands for the token of a row whose logits leave nothing to choose


@dataclass(eq=False)
class TokenSampler:
    """Chooses the tokens of one sequence: its options, its random numbers, its state."""

    sampling: Sampling  # temperature and cuts
    seed: int | None  # seed of the random numbers; None: a random one
    processor: LogitsProcessor | None = None
    """Called with the ids so far and the logits, float32 `[vocabulary]`; returns logits to choose from."""
    banned: tuple[int, ...] = ()  # never chosen, unless the processor raises them: it sees -inf there
    penalty: float = 1.0  # repetition penalty, if `sampling` has none
    exempt: Ints = field(default_factory=lambda: np.empty(0, np.int64))  # ids never penalised
    tags: TagState | None = None
    """Knows which tags may come next, and is told the chosen tokens; None: all tags that are not banned."""
    grammar: LLMatcher | None = None
    """Knows which tokens may come next, and is told the chosen ones; None: all."""
    generated: list[int] = field(default_factory=list[int], init=False)
    """The chosen tokens, for the processor; empty without one."""

    def __post_init__(self) -> None:
        self.penalty = self.sampling.repetition_penalty or self.penalty
        self._seed = secrets.randbits(64) if self.seed is None else self.seed

    @property
    def over(self) -> bool:
        """True if the grammar allows nothing more."""
        return self.grammar is not None and self.grammar.is_stopped()

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

    temperature: Doubles
    top_k: Doubles
    top_p: Doubles
    min_p: Doubles
    draw: Doubles


@np.errstate(invalid="ignore", over="ignore", divide="ignore")  # logits may be infinite, or no numbers
def sample(
    logits: Floats, samplers: Sequence[TokenSampler], contexts: Sequence[Ints]
) -> list[int | BackendError]:
    """Choose a token for each row; a row of which none can be chosen has the error that says why.

    Args:
        logits: `[rows, vocabulary]`; they are changed.
        samplers: One for each row.
        contexts: The ids before each row's token, `[length]`.
    """
    _penalise(logits, samplers, contexts)
    _exclude(logits, samplers)
    errors = _process(logits, samplers)
    tokens = np.empty(len(samplers), np.int64)
    # Rows that choose in the same way (greedily, from all, from a cut) are computed together.
    ways = [_way(sampler.sampling) for sampler in samplers]
    for choose in dict.fromkeys(ways):
        rows = [row for row, way in enumerate(ways) if way is choose]
        drawing = [(samplers[row], len(contexts[row])) for row in rows]
        tokens[rows] = choose(logits if len(rows) == len(samplers) else logits[rows], drawing)
    pairs = enumerate(zip(samplers, tokens.tolist(), strict=True))
    return [errors.get(row) or _accept(sampler, token) for row, (sampler, token) in pairs]


def _process(logits: Floats, samplers: Sequence[TokenSampler]) -> dict[int, BackendError]:
    """Apply the rows' own logits processors, in place. Returns the errors of those that failed, by row."""
    errors: dict[int, BackendError] = {}
    for row, sampler in enumerate(samplers):
        if sampler.processor is None:
            continue
        before = logits[row]
        try:
            if (processed := sampler.processor(sampler.generated, before)) is not before:
                logits[row] = processed
        except BaseException as error:  # whatever users wrote: it is the failure of one request
            errors[row] = BackendError(f"the request's logits_processor failed: {error!r}")
            errors[row].__cause__ = error
    return errors


def _accept(sampler: TokenSampler, token: int) -> int | BackendError:
    """Tell a sampler its token; the token to use, or the error that ends the request."""
    if token == _NO_TOKEN:
        return BackendError("no token can be chosen: the logits are not finite, or leave none possible")
    if sampler.tags is not None:
        token = sampler.tags.add(token)
    if sampler.processor is not None:
        sampler.generated.append(token)
    if sampler.grammar is not None and not sampler.grammar.consume_token(token):
        reason = sampler.grammar.get_error()
        return BackendError(f"token {token} does not follow the request's grammar: {reason}")
    return token


def _exclude(logits: Floats, samplers: Sequence[TokenSampler]) -> None:
    """Set the logits of tokens that may not come next to -inf, in place."""
    rows_by_rule: defaultdict[TagRule, list[int]] = defaultdict(list)
    banned: list[tuple[int, int]] = []
    for row, sampler in enumerate(samplers):
        banned += [(row, token) for token in sampler.banned]
        if sampler.tags is not None:
            rows_by_rule[sampler.tags.rule].append(row)
    for (excluded, instead), rows in rows_by_rule.items():
        if excluded is None:  # `instead` is the only token left
            logits[rows] = -np.inf
            logits[rows, instead] = 0
            continue
        column = np.array(rows)[:, None]
        if instead is not None:  # it becomes as likely as the likeliest of the excluded tokens
            logits[rows, instead] = logits[column, (*excluded, instead)].max(-1)
        logits[column, excluded] = -np.inf
    if banned:
        logits[tuple(np.array(banned).T)] = -np.inf
    for row, sampler in enumerate(samplers):
        if sampler.grammar is not None:
            logits[row, _refused(sampler.grammar, logits.shape[-1])] = -np.inf


def _refused(grammar: LLMatcher, size: int) -> Any:
    """True for each id of the vocabulary that the grammar does not allow next."""
    bits = np.unpackbits(np.frombuffer(grammar.compute_bitmask(), np.uint8), bitorder="little")
    refused = np.ones(size, np.bool_)  # a model may have rows behind the last token
    count = min(size, len(bits))
    refused[:count] = bits[:count] == 0
    return refused


def _penalise(logits: Floats, samplers: Sequence[TokenSampler], contexts: Sequence[Ints]) -> None:
    """Apply the repetition penalty: make the tokens of a row's context less likely, in place."""
    for row, sampler in enumerate(samplers):
        if sampler.penalty == 1:
            continue
        of_row = logits[row]
        exempt_logits = of_row[sampler.exempt]
        context = contexts[row]
        values = of_row[context]  # read once: an id that stands twice is not penalised twice
        penalty = np.float32(sampler.penalty)
        of_row[context] = np.where(values > 0, values / penalty, values * penalty)
        of_row[sampler.exempt] = exempt_logits


def _parameters(drawing: _Drawing, size: int) -> _Parameters:
    """The parameters of rows; `size` is that of the vocabulary."""
    rows: list[tuple[float, ...]] = []
    for sampler, position in drawing:
        options = sampler.sampling
        top_k = options.top_k or size
        rows.append((options.temperature, top_k, options.top_p, options.min_p, sampler.draw(position)))
    return _Parameters(*np.array(rows, np.float64).T[:, :, None])


def _way(sampling: Sampling) -> Callable[[Floats, _Drawing], Ints]:
    if sampling.temperature == 0:
        return _likeliest
    cuts = sampling.top_k is not None or sampling.top_p < 1 or sampling.min_p > 0
    return _draw_cut if cuts else _draw


def _likeliest(logits: Floats, _: _Drawing) -> Ints:
    token = logits.argmax(-1)
    possible = _taken(logits, token[:, None])[:, 0] > -np.inf  # NaN, which counts as the largest, is not
    return np.where(possible, token, _NO_TOKEN)


def _draw(logits: Floats, drawing: _Drawing) -> Ints:
    """Draw from the whole distribution: invert it at the drawn number.

    Only sums of blocks need the precision of float64: adding all probabilities up in it cost as much as a
    step of the model.
    """
    p = _parameters(drawing, logits.shape[-1])
    # First find the block of tokens in which the drawn share falls, then the token within it.
    weights = _weights(logits, p)
    if padding := -weights.shape[-1] % _SUMMED_AT_ONCE:  # without any, `pad` would copy all
        weights = np.pad(weights, ((0, 0), (0, padding)))
    blocks = weights.reshape(len(weights), -1, _SUMMED_AT_ONCE)
    block, rest = _invert(blocks.sum(-1).astype(np.float64), p.draw)
    inside = blocks[np.arange(len(blocks)), block[:, 0]]
    token, _ = _invert(inside.astype(np.float64), rest)
    return np.where(rest >= 0, block * _SUMMED_AT_ONCE + token, _NO_TOKEN)[:, 0]


def _draw_cut(logits: Floats, drawing: _Drawing) -> Ints:
    """Draw from the distribution that top_k cuts first, then top_p of the rest, then min_p."""
    size = logits.shape[-1]
    p = _parameters(drawing, size)
    total = _weights(logits, p).sum(-1, keepdims=True, dtype=np.float64)
    # Sorting a vocabulary costs more than a step of the model. So the cut is made among the likeliest tokens
    # first; only rows whose cut reaches beyond these are sorted whole.
    tokens, complete = _draw_among(min(_CANDIDATES, size), logits, p, total)
    if not complete.all():
        rest = ~complete
        rest_parameters = _Parameters(*(column[rest] for column in p))
        tokens[rest], _ = _draw_among(size, logits[rest], rest_parameters, total[rest])
    return tokens


def _draw_among(count: int, logits: Floats, p: _Parameters, total: Doubles) -> tuple[Ints, NDArray[np.bool_]]:
    """Draw from the cut distribution, given that its tokens are among the `count` likeliest.

    Args:
        count: Tokens to sort, the likeliest of each row.
        logits: `[rows, vocabulary]`.
        p: Parameters of the rows.
        total: The sum of each row's `_weights` over the vocabulary, `[rows, 1]`.

    Returns the tokens, and True for each row whose cut was inside, so that its token counts.
    """
    size = logits.shape[-1]
    ids = np.argpartition(logits, size - count, axis=-1)[:, size - count :]
    ids = _taken(ids, np.argsort(-_taken(logits, ids), axis=-1, kind="stable"))  # from the likeliest down
    weights = _weights(_taken(logits, ids), p).astype(np.float64)
    # top_k: the rest of the row has no weight any more.
    likely = np.arange(count) < p.top_k
    weights *= likely
    # Weights become shares of all that top_k leaves: of these tokens, or of the whole row if it leaves more.
    weights /= np.where(p.top_k <= count, weights.sum(-1, keepdims=True), total)
    # top_p keeps a token while those before it do not suffice; min_p compares it with the likeliest.
    before = weights.cumsum(-1) - weights
    keep = likely & (before < p.top_p) & (weights >= p.min_p * weights[:, :1])
    column, rest = _invert(weights * keep, p.draw)
    token = np.where(rest >= 0, _taken(ids, column), _NO_TOKEN)
    # The cut is inside if top_k is, or if the last candidate falls out, since less likely tokens then do,
    # too. But if top_k extends past the candidates, top_p is relative to mass that is not seen here, so a
    # dropped last candidate proves nothing.
    exact_shares = (p.top_k >= size) | (p.top_p >= 1)
    return token[:, 0], ((p.top_k <= count) | (exact_shares & ~keep[:, -1:]))[:, 0]


def _weights(logits: Floats, p: _Parameters) -> Floats:
    """Probabilities, as multiples of the greatest one: `[rows, n]`."""
    weights = logits - logits.max(-1, keepdims=True)
    weights /= p.temperature.astype(np.float32)
    return np.exp(weights, out=weights)


def _invert(weights: Doubles, draw: Doubles) -> tuple[Ints, Doubles]:
    """Choose an element of each row with a probability proportional to its weight.

    An element without weight is never chosen.

    Args:
        weights: `[rows, n]`.
        draw: A random number for each row, in [0, 1): `[rows, 1]`.

    Returns the elements' columns, `[rows, 1]`, and random numbers in [0, 1) for a choice within the elements,
    `[rows, 1]`; NaN if the weights are no numbers or all 0.
    """
    # Imagine the weights side by side as stretches of a line: `draw` is a point on it, by its share of the
    # length. The chosen stretch is the one that holds the point.
    ends = weights.cumsum(-1)
    point = draw.clip(max=_BELOW_ONE) * ends[:, -1:]
    column = (ends <= point).sum(-1, keepdims=True).clip(max=weights.shape[-1] - 1)
    length = _taken(weights, column)
    inside = point - _taken(ends, column) + length
    return column, (inside / length).clip(0)


def _taken(values: NDArray[Any], columns: Ints) -> NDArray[Any]:
    """The values in these columns of each row."""
    return np.take_along_axis(values, columns, -1)
