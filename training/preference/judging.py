"""Score samples, and say what the scores come to."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel, ConfigDict

from pasta_async.errors import BackendError
from pasta_async.evals.statistics import geometric_mean
from pasta_async.jobs import for_each
from pasta_async.training.patience import Patience
from pasta_async.training.preference.scoring import Score, value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pasta_async.training.preference.judge import Judge
    from pasta_async.training.preference.samples import Sample, SampledPrompt

__all__ = ["WEIGHTS", "Scoring", "Standing", "standing"]

WEIGHTS: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, math.inf)
"""The weights of quality that the paper trains with (section 4)."""


@dataclass(slots=True)
class Scoring:
    """One run over some samples.

    Args:
        judge: Says how good they are.
        on_progress: Called after each judgement.
    """

    judge: Judge
    on_progress: Callable[[], None] = lambda: None
    failures: list[str] = field(default_factory=list[str])
    """Why answers were not judged."""
    _patience: Patience = field(default_factory=lambda: Patience(proven=False))

    async def run(self, prompts: Sequence[SampledPrompt], in_flight: int) -> list[Score]:
        """Score every sample, in their order, but those that ended in an error or could not be judged.

        The same answer to a prompt is judged once. Cancelling it cancels what is under way.

        Raises:
            PastaError: The judge is of no use, or not for these prompts.
        """
        qualities: dict[tuple[str, str], float] = {}
        different = {(p.id, s.text): p for p in prompts for s in p.samples if not s.error}

        async def judge(one: tuple[tuple[str, str], SampledPrompt]) -> None:
            (id_, text), prompt = one
            try:
                qualities[id_, text] = await self.judge.quality(prompt, text)
                self._patience.succeeded()
            except BackendError as error:
                self._patience.failed(error)
                self.failures.append(f"{type(error).__name__}: {error}")
            self.on_progress()

        await for_each(different.items(), judge, in_flight)
        return [
            _score(prompt, sample, qualities[prompt.id, sample.text])
            for prompt in prompts
            for sample in prompt.samples
            if not sample.error and (prompt.id, sample.text) in qualities
        ]


def _score(prompt: SampledPrompt, sample: Sample, quality: float) -> Score:
    """`Generation.theoretical_speedup`, with the quality beside it."""
    speedup = prompt.baseline.tokens / sample.critical_path if sample.critical_path else 1.0
    return Score(id=prompt.id, number=sample.number, speedup=speedup, quality=quality)


class Standing(BaseModel):
    """What the scores of some samples come to."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    prompts: int
    samples: int
    well_formed: float
    """Share of the samples."""
    scored: int
    """Samples with a score."""
    mean_quality: float
    geometric_mean_speedup: float
    """Theoretical, against the baseline's answer."""
    quality_spread: float
    """Best minus worst of a prompt, mean over the prompts."""
    speedup_spread: float
    ties: dict[str, int]
    """Prompts of which all samples are worth the same, for each weight of quality: they teach nothing."""

    def __str__(self) -> str:
        ties = ", ".join(f"{weight}: {count}" for weight, count in self.ties.items())
        return (
            f"{self.scored} of {self.samples} samples of {self.prompts} prompts scored, "
            f"{self.well_formed:.1%} well-formed: mean quality {self.mean_quality:.3f}, "
            f"theoretical speed-up {self.geometric_mean_speedup:.3f} in the geometric mean\n"
            f"between best and worst of a prompt: quality {self.quality_spread:.3f}, "
            f"speed-up {self.speedup_spread:.3f}; prompts whose samples tie, by quality weight: {ties}"
        )


def standing(prompts: Sequence[SampledPrompt], scores: Sequence[Score]) -> Standing:
    """Sum up."""
    by_prompt: defaultdict[str, list[Score]] = defaultdict(list)
    for score in scores:
        by_prompt[score.id].append(score)
    samples = [sample for prompt in prompts for sample in prompt.samples]
    speedups = [score.speedup for score in scores if score.speedup > 0]
    return Standing(
        prompts=len(prompts),
        samples=len(samples),
        well_formed=_mean(sample.well_formed for sample in samples),
        scored=len(scores),
        mean_quality=_mean(score.quality for score in scores),
        geometric_mean_speedup=geometric_mean(speedups) if speedups else 1.0,
        quality_spread=_mean(_spread(own, math.inf) for own in by_prompt.values()),
        speedup_spread=_mean(_spread(own, 0.0) for own in by_prompt.values()),
        ties={f"{weight:g}": _ties(by_prompt, weight) for weight in WEIGHTS},
    )


def _ties(by_prompt: Mapping[str, Sequence[Score]], weight: float) -> int:
    return sum(_spread(own, weight) == 0 for own in by_prompt.values())


def _spread(scores: Sequence[Score], weight: float) -> float:
    values = [value(score, weight) for score in scores]
    return max(values) - min(values)


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return fmean(found) if found else 0.0
