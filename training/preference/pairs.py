"""The best and the worst answer to each prompt, by the value of their scores.

The objective's derivation speaks of ranks in one order of all samples, so there is one: a malformed answer is
below every well-formed one, and equals are drawn for by a seed. Hence nothing but the value decides.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from pasta_async.errors import InvalidRequestError
from pasta_async.training.preference.samples import value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pasta_async.training.preference.samples import Sample, SampledPrompt, Score

__all__ = ["Malformed", "Pair", "Pairs", "choose_pairs"]

Malformed = Literal["last", "out"]
"""Where malformed answers stand: below all others, or not in the order at all."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers to one prompt."""

    id: str
    """Of the prompt."""
    best: Sample
    worst: Sample
    n: int
    """Samples that they are the best and the worst of."""


@dataclass(slots=True)
class Pairs:
    """What there is to train on, and what was left out."""

    pairs: list[Pair] = field(default_factory=list[Pair])
    counts: Counter[str] = field(default_factory=Counter[str])
    """prompts and samples that were read; of the samples failed, unscored, inexact and malformed ones; of
    the prompts those with fewer than two usable samples (few), without a well-formed one (no_best), with a
    best and a worst that tie (ties)."""

    def __str__(self) -> str:
        """One line."""
        counts = self.counts
        return (
            f"{len(self.pairs)} pairs of {counts['prompts']} prompts (left out: {counts['ties']} tied, "
            f"{counts['few']} with fewer than two usable samples, {counts['no_best']} without a well-formed "
            f"one); of {counts['samples']} samples {counts['failed']} failed, {counts['unscored']} have "
            f"no score, {counts['inexact']} are inexact, {counts['malformed']} malformed"
        )


def choose_pairs(
    prompts: Sequence[SampledPrompt],
    scores: Mapping[tuple[str, int], Score],
    weight: float,
    seed: int = 0,
    malformed: Malformed = "last",
) -> Pairs:
    """Choose the best and the worst of each prompt's samples.

    Samples that failed, are not exact or have no score take no part. Those that tie at the top, or at the
    bottom, are drawn for; a prompt whose best ties with its worst is left out.

    Args:
        prompts: With their samples.
        scores: By prompt and number of the sample.
        weight: Of quality against speed-up; infinite for quality alone.
        seed: Of the draws among equals.
        malformed: Whether malformed samples stand below all others, or take no part.

    Raises:
        InvalidRequestError: Samples and scores do not match, or no pair is left.
    """
    _check(prompts, scores)
    chosen = Pairs()
    for prompt in prompts:
        chosen.counts.update(_count(prompt, scores))
        usable = [
            sample
            for sample in prompt.samples
            if sample.exact and sample.targets and (prompt.id, sample.number) in scores
            if sample.well_formed or malformed == "last"
        ]
        order = {
            s.number: (s.well_formed, round(value(scores[prompt.id, s.number], weight), 9)) for s in usable
        }
        reason, pair = _pair(prompt.id, usable, order, random.Random(f"{seed}/{prompt.id}"))
        chosen.counts[reason] += 1
        if pair is not None:
            chosen.pairs.append(pair)
    if not chosen.pairs:
        raise InvalidRequestError(f"there is nothing to prefer: {chosen}")
    return chosen


def _pair(
    prompt: str, usable: Sequence[Sample], order: Mapping[int, tuple[bool, float]], draw: random.Random
) -> tuple[str, Pair | None]:
    """The pair of a prompt, or why there is none."""
    if len(usable) < 2:
        return "few", None
    high, low = max(order.values()), min(order.values())
    if not high[0]:
        return "no_best", None
    best = draw.choice([sample for sample in usable if order[sample.number] == high])
    worst = draw.choice([sample for sample in usable if order[sample.number] == low])
    if high == low or (best.ids, best.targets) == (worst.ids, worst.targets):  # a judge may contradict itself
        return "ties", None
    return "pairs", Pair(prompt, best, worst, len(usable))


def _count(prompt: SampledPrompt, scores: Mapping[tuple[str, int], Score]) -> dict[str, int]:
    sound = [sample for sample in prompt.samples if not sample.error]
    return {
        "prompts": 1,
        "samples": len(prompt.samples),
        "failed": len(prompt.samples) - len(sound),
        "unscored": sum((prompt.id, sample.number) not in scores for sample in sound),
        "inexact": sum(not sample.exact for sample in sound),
        "malformed": sum(not sample.well_formed for sample in sound),
    }


def _check(prompts: Sequence[SampledPrompt], scores: Mapping[tuple[str, int], Score]) -> None:
    """Every score is of a sample, and most samples that did not fail have one."""
    if repeated := [name for name, times in Counter(prompt.id for prompt in prompts).items() if times > 1]:
        raise InvalidRequestError(
            f"{len(repeated)} prompts occur more than once among the samples: {repeated[0]}"
        )
    samples = {(prompt.id, s.number): s for prompt in prompts for s in prompt.samples}
    sound = {place for place, sample in samples.items() if not sample.error}
    strange, missing = scores.keys() - samples.keys(), sound - scores.keys()
    if not strange and 2 * len(missing) <= len(sound):
        return
    places, what = (strange, "scores have no sample") if strange else (missing, "samples have no score")
    name, number = min(places)
    raise InvalidRequestError(
        f"samples and scores do not match: {len(places)} {what}, the first of {name!r}, number {number}: "
        "score these samples with pasta_async.training.score"
    )
