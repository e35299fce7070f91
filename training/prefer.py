"""Stage 2, preference optimisation: `python -m pasta_async.training.prefer`, also behind `torchrun`.

The model that drew the samples learns to write the best of n at once: faster and better answers, as the
weight of quality against speed says. By default it imitates the best; with `--alpha` below 1 the objective is
BoNBoN (arXiv 2406.00832), best-of-n learned from the best and the worst of n samples.

A pair is the best and the worst answer to a prompt, by the value of their scores. The objective's derivation
needs one order of all samples: a malformed answer is below every well-formed one, and a seed decides between
equals.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
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
from pasta_async.training.trainer import Example, Task, TrainerSettings, is_first, only_run, train

_LOOKED_AT = 20
"""Prompts that are compared with what the ids of their samples say."""


class PreferSettings(TrainerSettings):
    """Settings of stage 2."""

    samples: Path = Field(description="file of samples that the model has drawn (training.sample)")
    scores: Path = Field(description="file of their scores (training.score)")
    quality_weight: float = Field(
        ge=0, description="lambda: a sample is worth speed-up + lambda * quality; inf: quality alone"
    )
    alpha: float = Field(
        default=1.0, ge=0, le=1, description="share of the best's likelihood in the loss; 1: imitation alone"
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


# --- pairs


@dataclass(frozen=True, slots=True)
class Pair:
    """The best and the worst of n answers to the prompt `id`."""

    id: str
    best: Sample
    worst: Sample
    n: int
    messages: Sequence[Mapping[str, Any]] = ()


def choose_pairs(
    prompts: Iterable[SampledPrompt],
    scores: Mapping[tuple[str, int], Score],
    weight: float,
    seed: int = 0,
    sound_only: bool = False,
) -> tuple[list[Pair], Counter[str]]:
    """Choose the best and the worst of each prompt's samples.

    Samples that failed, are not exact or have no score take no part. Those that tie at the top, or at the
    bottom, are drawn for; a prompt whose best ties with its worst is left out.

    Args:
        prompts: With their samples; only those of pairs are held.
        scores: By prompt and number of the sample.
        weight: See `Score.value`.
        seed: Of the draws among equals.
        sound_only: The best has no counted fault (`pasta_async.training.faults`). Where at least half of a
            prompt's samples promise, it is then one that promises: a plain answer has no tags to get wrong,
            and a model that learns from such wins learns not to promise.

    Returns:
        The pairs, and counts of prompts: all; those that give a pair (pairs), have fewer than two usable
        samples (few), none that may be the best (no_best), or a best that ties with the worst (ties).

    Raises:
        InvalidRequestError: A prompt occurs twice, or no pair is left.
    """
    pairs, counts, seen = list[Pair](), Counter[str](), set[str]()
    for prompt in prompts:
        if prompt.id in seen:
            raise InvalidRequestError(f"the prompt {prompt.id!r} occurs more than once among the samples")
        seen.add(prompt.id)
        counts["prompts"] += 1
        promising = sound_only and 2 * sum(map(_promises, prompt.samples)) >= len(prompt.samples)
        usable: list[tuple[tuple[bool, float], Sample]] = []
        for sample in prompt.samples:
            score = scores.get((prompt.id, sample.number))
            if score and sample.exact and sample.targets:
                may_win = sample.well_formed and (not sound_only or _is_sound(sample, prompt, promising))
                usable.append(((may_win, round(score.value(weight), 9)), sample))
        pair = _pair(prompt, usable, random.Random(f"{seed}/{prompt.id}"))
        if isinstance(pair, str):
            counts[pair] += 1
        else:
            pairs.append(pair)
            counts["pairs"] += 1
    if not pairs:
        raise InvalidRequestError(
            f"there is nothing to prefer, or these are no scores of the samples: {dict(counts)}"
        )
    return pairs, counts


def _pair(
    prompt: SampledPrompt, usable: Sequence[tuple[tuple[bool, float], Sample]], draw: random.Random
) -> Pair | str:
    """The pair of a prompt, or why there is none; each sample stands behind what decides its place."""
    if len(usable) < 2:
        return "few"
    ranks = [rank for rank, _ in usable]
    high, low = max(ranks), min(ranks)
    if not high[0]:
        return "no_best"
    best = draw.choice([sample for rank, sample in usable if rank == high])
    worst = draw.choice([sample for rank, sample in usable if rank == low])
    if high == low or (best.ids, best.targets) == (worst.ids, worst.targets):  # a judge may contradict itself
        return "ties"
    return Pair(prompt.id, best, worst, len(usable), prompt.messages)


def _is_sound(sample: Sample, prompt: SampledPrompt, promising: bool) -> bool:
    """True if it has no fault, and promises where it has to."""
    return (_promises(sample) or not promising) and soundness(faults_of_sample(sample, prompt)) == 1


def _promises(sample: Sample) -> bool:
    return bool(sample.document.promises)


# --- the objective


def best_of_n_target(n: int) -> float:
    """The mean difference in log-ratio of best and worst of n samples under best-of-n, in nats.

    (n - 1) * (1 + 1/2 + ... + 1/(n - 1)): 1 / (2 beta*) in the paper's terms.

    The best of n has a rank of u or less with probability u^n, so the policy that answers with it has the
    log-ratio log n + (n - 1) log U to the one that samples, where U is the rank. Log n drops out of the
    difference; the means of log U are -1/n for the best, and -(1 + 1/2 + ... + 1/n) for the worst.

    Raises:
        ValueError: n is less than 2.
    """
    if n < 2:
        raise ValueError(f"there is no best and worst of {n} samples")
    return (n - 1) * math.fsum(1 / k for k in range(1, n))


class BonBon(Task):
    """An example is a pair, and an update minimises the mean over its pairs.

    The loss is alpha * NLL(best) + (1 - alpha) * (ratio(best) - ratio(worst) - target)², where NLL and ratio,
    log pi - log pi_ref, are sums over the sampled tokens of all threads.

    Args:
        pairs: Of answers that the model at the start has drawn.
        alpha: Share of the first term. With 1 neither the worst answers nor a reference are needed.
    """

    def __init__(self, pairs: Sequence[Pair], alpha: float) -> None:
        self._pairs = pairs
        self._alpha = alpha
        self.compared: bool = alpha < 1
        self.reported: tuple[str, ...] = ("nll",)
        """`nll`: the negative log-likelihood of the best a token. Where the worst is compared, also the
        log-ratios `best_ratio` and `worst_ratio`, their difference `margin`, and how often it is positive,
        `accuracy`."""
        if self.compared:
            self.reported = ("margin", "accuracy", "best_ratio", "nll", "worst_ratio")
        digest = hashlib.sha256()
        for pair in pairs:
            tokens = ((sample.ids, sample.parents, sample.targets) for sample in (pair.best, pair.worst))
            digest.update(repr((pair.id, pair.n, *tokens)).encode("utf-8", "surrogatepass"))
        self.fingerprint: str = digest.hexdigest()[:16]

    def __len__(self) -> int:
        return len(self._pairs)

    def example(self, index: int) -> Example:
        """A pair: the best, and perhaps the worst; the target, and their reference log-probabilities."""
        pair = self._pairs[index]
        if not self.compared:
            return Example((pair.best.trie,))
        reference = self.reference.get(index, (math.nan, math.nan))
        return Example((pair.best.trie, pair.worst.trie), (best_of_n_target(pair.n), *reference))

    def weight(self, example: Example) -> float:
        """One: the loss is a mean over pairs."""
        return 1.0

    def loss(
        self, logprobs: Sequence[torch.Tensor], examples: Sequence[Example]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The loss, summed over pairs, and the sums of what is reported; see `Task.loss`."""
        ours = torch.stack(list(logprobs))  # [pairs, 1 or 2]
        targets = ours.new_tensor([len(example.trees[0].targets) for example in examples])
        nll = (-ours[:, 0] / targets).sum()
        if not self.compared:
            return -ours[:, 0].sum(), {"nll": nll}
        constants = ours.new_tensor([example.constants for example in examples])
        ratios = ours - constants[:, 1:]
        margins = ratios[:, 0] - ratios[:, 1]
        squares = (margins - constants[:, 0]).square()
        loss = self._alpha * -ours[:, 0] + (1 - self._alpha) * squares
        return loss.sum(), {
            "margin": margins.sum(),
            "accuracy": (margins > 0).sum(),
            "best_ratio": ratios[:, 0].sum(),
            "nll": nll,
            "worst_ratio": ratios[:, 1].sum(),
        }


def prefer(settings: PreferSettings) -> bool:
    """Run stage 2; see `pasta_async.training.trainer.train`, whose errors it raises.

    Raises:
        InvalidRequestError: Also if samples and scores do not fit each other or the model, or form no pair.
    """
    with only_run(settings.out):
        prompts, scores = read_samples(settings.samples), read_scores(settings.scores)
        pairs, counts = choose_pairs(
            prompts, scores, settings.quality_weight, settings.seed, settings.sound_only
        )
        if is_first():
            print(", ".join(f"{count} {name}" for name, count in counts.items()))

        def make_task(codec: ModelCodec) -> BonBon:
            _check_samples(pairs, codec, open_checkpoint(settings.model).config.vocab_size)
            return BonBon(pairs, settings.alpha)

        return train(settings, make_task, start_share=settings.start_share)


def _check_samples(pairs: Sequence[Pair], codec: ModelCodec, rows: int) -> None:
    """Refuse another model's samples: ids that this one lacks, or contexts without their prompts."""
    largest = max(max(sample.ids) for pair in pairs for sample in (pair.best, pair.worst))
    known = (
        str(pair.messages[-1]["content"]).strip() in codec.detokenize(pair.best.ids[: pair.best.targets[0]])
        for pair in pairs[:_LOOKED_AT]
    )
    if largest >= rows or not any(known):
        raise InvalidRequestError(
            "the samples are not in this model's tokens: another model has drawn them: train that one"
        )


main: Command = command(PreferSettings, prefer, "pasta_async.training.prefer", __doc__, resumes=True)

if __name__ == "__main__":
    main()
