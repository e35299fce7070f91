"""Stage 2, preference optimisation: `python -m pasta_async.training.prefer`, also behind `torchrun`.

The model that drew the samples learns to write the best of n at once: faster and better answers, as the
weight of quality against speed says. It imitates the best answer to each prompt, the one whose score has the
highest value. A malformed answer is below every well-formed one, and a seed decides between equals.
"""

# accelerate leaves some of its types open.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from accelerate import PartialState
from pydantic import Field

from pasta_async.backends.local.adapter import open_checkpoint
from pasta_async.cli.command import Command, command
from pasta_async.errors import InvalidRequestError
from pasta_async.training.faults import soundness
from pasta_async.training.model import ModelCodec
from pasta_async.training.samples import (
    Sample,
    SampledPrompt,
    Score,
    faults_of_sample,
    read_samples,
    read_scores,
)
from pasta_async.training.trainer import Task, TrainerSettings, train
from pasta_async.training.views import Trie

_LOOKED_AT = 20
"""Number of prompts that are looked for in the decoded contexts of their samples."""


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
        description="share of the weights at the start in those that are written (0.5: the mean), which "
        "keeps more of what the model could do (WiSE-FT, arXiv 2109.01903)",
    )
    lr: float = Field(default=0, ge=0, description="peak learning rate (0: 1e-5, for adapters 1e-4)")

    adapter_lr: ClassVar[float] = 1e-4


class Best(NamedTuple):
    """A prompt, and the answer to it that is imitated."""

    prompt: SampledPrompt
    sample: Sample


def choose_best(
    prompts: Iterable[SampledPrompt],
    scores: Mapping[tuple[str, int], Score],
    weight: float,
    seed: int = 0,
    sound_only: bool = False,
) -> tuple[list[Best], Counter[str]]:
    """Choose the best of each prompt's samples.

    Samples that failed, are not exact or have no score take no part. Of several best ones one is drawn; a
    prompt whose best ties with its worst teaches nothing, and is left out.

    Args:
        prompts: The prompts with their samples.
        scores: Scores by prompt id and number of the sample.
        weight: Weight of quality against speed; see `Score.value`.
        seed: Seed of the draws among equals.
        sound_only: The best has no counted fault (`pasta_async.training.faults`). Where at least half of a
            prompt's samples promise, it is then one that promises: a plain answer has no tags to get wrong,
            and a model that learns from such wins learns not to promise.

    Returns:
        The answers, and counts of prompts: all; those that are chosen, have fewer than two usable samples
        (few), none that may be the best (no_best), or a best that ties with the worst (ties).

    Raises:
        InvalidRequestError: A prompt occurs twice, or no answer is left.
    """
    chosen: list[Best] = []
    counts: Counter[str] = Counter()
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise InvalidRequestError(f"the prompt {prompt.id!r} occurs more than once among the samples")
        seen.add(prompt.id)
        counts["prompts"] += 1
        promising = sound_only and 2 * sum(map(_promises, prompt.samples)) >= len(prompt.samples)
        # Samples with their rank: those that may be the best are above the others, then the value decides.
        usable: list[tuple[tuple[bool, float], Sample]] = []
        for sample in prompt.samples:
            score = scores.get((prompt.id, sample.number))
            if score and sample.exact and sample.targets:
                may_win = sample.well_formed and (not sound_only or _is_sound(sample, prompt, promising))
                usable.append(((may_win, round(score.value(weight), 9)), sample))
        best = _best(usable, random.Random(f"{seed}/{prompt.id}"))
        if isinstance(best, str):
            counts[best] += 1
        else:
            chosen.append(Best(prompt, best))
            counts["chosen"] += 1
    if not chosen:
        raise InvalidRequestError(
            f"there is nothing to prefer, or these are no scores of the samples: {dict(counts)}"
        )
    return chosen, counts


def _best(usable: Sequence[tuple[tuple[bool, float], Sample]], draw: random.Random) -> Sample | str:
    """The best of samples with their ranks, or the reason why there is none, as `choose_best` counts it."""
    if len(usable) < 2:
        return "few"
    ranks = [rank for rank, _ in usable]
    high = max(ranks)
    if not high[0]:
        return "no_best"
    best = draw.choice([sample for rank, sample in usable if rank == high])
    # A judge may contradict itself about one answer that was drawn twice.
    others = [(s.ids, s.targets) for rank, s in usable if rank < high]
    return best if any(other != (best.ids, best.targets) for other in others) else "ties"


def _is_sound(sample: Sample, prompt: SampledPrompt, promising: bool) -> bool:
    """True if a sample has no fault and, where `promising`, at least one promise."""
    return (_promises(sample) or not promising) and soundness(faults_of_sample(sample, prompt)) == 1


def _promises(sample: Sample) -> bool:
    return bool(sample.document.promises)


class Imitation(Task):
    """The best answers, each of which counts the same.

    An update minimises the mean of their -log pi(best), a sum over the sampled tokens of all threads.
    """

    def __init__(self, chosen: Sequence[Best]) -> None:
        self._samples = [best.sample for best in chosen]
        digest = hashlib.sha256()
        for best in self._samples:
            digest.update(repr((best.ids, best.parents, best.targets)).encode())
        self.fingerprint: str = digest.hexdigest()[:16]

    def __len__(self) -> int:
        return len(self._samples)

    def example(self, index: int) -> Trie:
        """The tokens of an answer, as they were drawn."""
        return self._samples[index].trie

    def weight(self, example: Trie) -> float:
        """1: every answer counts the same."""
        return 1.0


def prefer(settings: PreferSettings) -> bool:
    """Run stage 2; see `pasta_async.training.trainer.train`, whose errors it raises.

    Raises:
        InvalidRequestError: Also if samples and scores do not fit each other or the model.
    """
    prompts = read_samples(settings.samples)
    scores = read_scores(settings.scores)
    chosen, counts = choose_best(prompts, scores, settings.quality_weight, settings.seed, settings.sound_only)

    def make_task(codec: ModelCodec) -> Imitation:
        PartialState().print(", ".join(f"{count} {name}" for name, count in counts.items()))
        _check_samples(chosen, codec, open_checkpoint(settings.model).config.vocab_size)
        return Imitation(chosen)

    return train(settings, make_task, start_share=settings.start_share)


def _check_samples(chosen: Sequence[Best], codec: ModelCodec, rows: int) -> None:
    """Refuse another model's samples: ids that this one lacks, or contexts without their prompts."""
    has_its_prompt = (
        best.prompt.prompt.strip() in codec.detokenize(best.sample.ids[: best.sample.targets[0]])
        for best in chosen[:_LOOKED_AT]
    )
    if max(max(best.sample.ids) for best in chosen) >= rows or not any(has_its_prompt):
        raise InvalidRequestError(
            "the samples are not in this model's tokens: another model has drawn them: train that one"
        )


main: Command = command(PreferSettings, prefer, "pasta_async.training.prefer", __doc__, resumes=True)

if __name__ == "__main__":
    main()
