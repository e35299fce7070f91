"""The best and the worst answer to each prompt, by the value of their scores.

The objective's derivation needs one order of all samples: a malformed answer is below every well-formed one,
and a seed decides between equals.
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
    """The best and the worst of n answers to the prompt `id`."""

    id: str
    best: Sample
    worst: Sample
    n: int


@dataclass(slots=True)
class Pairs:
    """What there is to train on, and what was left out."""

    pairs: list[Pair] = field(default_factory=list[Pair])
    counts: Counter[str] = field(default_factory=Counter[str])
    """prompts and samples; samples that are failed, unscored, inexact, malformed; prompts with fewer than two
    usable samples (few), without a well-formed one (no_best), whose best and worst tie (ties)."""

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.counts.items() if name != "pairs")
        return f"{len(self.pairs)} pairs of {self.counts['prompts']} prompts ({counts})"


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
        malformed: Where malformed samples stand.

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
        values = (round(value(scores[prompt.id, one.number], weight), 9) for one in usable)
        order = {one.number: (one.well_formed, worth) for one, worth in zip(usable, values, strict=True)}
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
    finished = [sample for sample in prompt.samples if not sample.error]
    return {
        "prompts": 1,
        "samples": len(prompt.samples),
        "failed": len(prompt.samples) - len(finished),
        "unscored": sum((prompt.id, sample.number) not in scores for sample in finished),
        "inexact": sum(not sample.exact for sample in finished),
        "malformed": sum(not sample.well_formed for sample in finished),
    }


def _check(prompts: Sequence[SampledPrompt], scores: Mapping[tuple[str, int], Score]) -> None:
    """Every prompt occurs once, every score is of a sample, and most finished samples have one."""
    name, repeated = Counter(prompt.id for prompt in prompts).most_common(1)[0] if prompts else ("", 0)
    if repeated > 1:
        raise InvalidRequestError(f"the prompt {name!r} occurs more than once among the samples")
    samples = {(prompt.id, one.number): one for prompt in prompts for one in prompt.samples}
    finished = {place for place, sample in samples.items() if not sample.error}
    unknown, missing = scores.keys() - samples.keys(), finished - scores.keys()
    if unknown or 2 * len(missing) > len(finished):
        places, what = (unknown, "scores have no sample") if unknown else (missing, "samples have no score")
        raise InvalidRequestError(
            f"samples and scores do not match: {len(places)} {what}, such as {min(places)}: "
            "score these samples with pasta_async.training.score"
        )
