"""Stage 2, preference optimisation: `python -m pasta_async.training.prefer`, also behind `torchrun`.

The model that drew the samples learns to write the best of n at once: faster and better answers, as the
weight of quality against speed says. It imitates the best answer to each prompt, the one whose score has the
highest value. A malformed answer is below every well-formed one, and a seed decides between equals.
"""

# accelerate leaves some of its types open.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from accelerate import PartialState
from pydantic import Field

from pasta_async.backends.local.adapter import open_checkpoint
from pasta_async.cli.command import Command, command
from pasta_async.errors import InvalidRequestError
from pasta_async.training.faults import soundness
from pasta_async.training.samples import (
    Sample,
    SampledPrompt,
    Score,
    faults_of_sample,
    read_samples,
    read_scores,
)
from pasta_async.training.trainer import Task, TrainerSettings, train
from pasta_async.training.views import Codec

_LOOKED_AT = 20
"""Number of prompts that are looked for in the decoded contexts of their samples."""

Scores = Mapping[tuple[str, int], Score]
"""Scores by the prompt's id and the sample's number."""


class PreferSettings(TrainerSettings):
    """Settings of stage 2."""

    samples: Path = Field(description="file of samples that the model has drawn (training.sample)")
    scores: Path = Field(description="file of their scores (training.score)")
    quality_weight: float = Field(
        ge=0, description="lambda: a sample is worth speed-up + lambda * quality; inf: quality alone"
    )
    sound_only: bool = Field(
        default=False, description="the best has no counted fault, and promises where half of the samples do"
    )
    start_share: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of the weights at the start in those that are written (0.5: the mean; of an "
        "adapter that is trained on, of its matrices), which keeps more of what the model could do (WiSE-FT, "
        "arXiv 2109.01903)",
    )
    lr: float = Field(default=0, ge=0, description="peak learning rate (0: 1e-5, for adapters 1e-4)")

    adapter_lr: ClassVar[float] = 1e-4


def choose_best(
    prompts: Iterable[SampledPrompt], scores: Scores, weight: float, seed: int = 0, sound_only: bool = False
) -> tuple[list[tuple[SampledPrompt, Sample]], Counter[str]]:
    """Choose the best of each prompt's samples.

    Samples that are not exact or have no score take no part. Of several best ones one is drawn; a prompt
    whose best ties with its worst teaches nothing, and is left out.

    Args:
        prompts: The prompts with their samples.
        scores: Their scores.
        weight: Weight of quality against speed; see `Score.value`.
        seed: Seed of the draws among equals.
        sound_only: The best has no counted fault (`pasta_async.training.faults`). Where at least half of a
            prompt's samples promise, it is then one that promises: a plain answer has no tags to get wrong,
            and a model that learns from such wins learns not to promise.

    Returns:
        The answers with their prompts, and counts of prompts: those that are chosen, have fewer than two
        usable samples (few), none that may be the best (no_best), or a best that ties with the worst (ties).

    Raises:
        InvalidRequestError: No answer is left.
    """
    chosen: list[tuple[SampledPrompt, Sample]] = []
    counts: Counter[str] = Counter()
    for prompt in prompts:
        ranked = _ranked(prompt, scores, weight, sound_only)
        best, outcome = _best(ranked, random.Random(f"{seed}/{prompt.id}"))
        if best:
            chosen.append((prompt, best))
        counts[outcome] += 1
    if not chosen:
        raise InvalidRequestError(
            f"there is nothing to prefer, or these are no scores of the samples: {dict(counts)}"
        )
    return chosen, counts


Ranked = tuple[tuple[bool, float], Sample]
"""A sample with its rank: those that may be the best are above the others, then the value decides."""


def _ranked(prompt: SampledPrompt, scores: Scores, weight: float, sound_only: bool) -> list[Ranked]:
    """The usable samples of a prompt with their ranks."""
    promising = 2 * sum(bool(sample.document.promises) for sample in prompt.samples) >= len(prompt.samples)
    ranked: list[Ranked] = []
    for sample in prompt.samples:
        score = scores.get((prompt.id, sample.number))
        if score is None or not sample.exact or not sample.targets:
            continue
        may_win = sample.well_formed
        if sound_only:
            plain = promising and not sample.document.promises
            may_win = may_win and not plain and soundness(faults_of_sample(sample, prompt)) == 1
        ranked.append(((may_win, round(score.value(weight), 9)), sample))
    return ranked


def _best(ranked: Sequence[Ranked], draw: random.Random) -> tuple[Sample | None, str]:
    """The best of some samples, or None; and how `choose_best` counts their prompt."""
    if len(ranked) < 2:
        return None, "few"
    high = max(rank for rank, _ in ranked)
    may_win, _ = high
    if not may_win:
        return None, "no_best"
    best = draw.choice([sample for rank, sample in ranked if rank == high])
    # A judge may contradict itself about one answer that was drawn twice.
    others = [(sample.ids, sample.targets) for rank, sample in ranked if rank < high]
    if all(other == (best.ids, best.targets) for other in others):
        return None, "ties"
    return best, "chosen"


def prefer(settings: PreferSettings) -> bool:
    """Run stage 2; see `pasta_async.training.trainer.train`, whose errors it raises.

    Its examples are the best answers, of which each counts the same: an update minimises the mean of their
    -log pi(best), a sum over the sampled tokens of all threads.

    Raises:
        InvalidRequestError: Also if samples and scores do not fit each other or the model.
    """
    prompts = read_samples(settings.samples)
    scores = read_scores(settings.scores)
    chosen, counts = choose_best(prompts, scores, settings.quality_weight, settings.seed, settings.sound_only)

    def make_task(codec: Codec) -> Task:
        PartialState().print(", ".join(f"{count} {name}" for name, count in counts.items()))
        _check_samples(chosen, codec, open_checkpoint(settings.model).config.vocab_size)
        return Task(len(chosen), lambda number: chosen[number][1].trie, lambda _: 1.0)

    return train(settings, make_task, start_share=settings.start_share)


def _check_samples(chosen: Sequence[tuple[SampledPrompt, Sample]], codec: Codec, rows: int) -> None:
    """Refuse another model's samples: ids that this one lacks, or contexts without their prompts."""
    has_its_prompt = (
        prompt.prompt.strip() in codec.decode(sample.ids[: sample.targets[0]])
        for prompt, sample in chosen[:_LOOKED_AT]
    )
    if max(max(sample.ids) for _, sample in chosen) >= rows or not any(has_its_prompt):
        raise InvalidRequestError(
            "the samples are not in this model's tokens: another model has drawn them: train that one"
        )


main: Command = command(PreferSettings, prefer, "pasta_async.training.prefer", __doc__, resumes=True)

if __name__ == "__main__":
    main()
