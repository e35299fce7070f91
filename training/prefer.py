"""Stage 2, preference optimisation: `python -m pasta_async.training.prefer`, also behind `torchrun`.

The model that drew the samples learns to write the best of n at once: faster and better answers, as the
weight of quality against speed says. By default it imitates the best; with `--alpha` below 1 the objective is
BoNBoN (arXiv 2406.00832), best-of-n learned from the best and the worst of n samples; docs/preferences.md
derives its target and compares the two.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import torch
from pydantic import Field

from pasta_async.backends.local.opening import open_checkpoint
from pasta_async.cli.command import Command, command
from pasta_async.errors import InvalidRequestError
from pasta_async.lang.document import Document, Text
from pasta_async.training.packing import Trie, pack_plain
from pasta_async.training.preference import Malformed, Pair, choose_pairs, read_samples, read_scores
from pasta_async.training.trainer.processes import is_first, only_run
from pasta_async.training.trainer.run import train
from pasta_async.training.trainer.settings import StageSettings
from pasta_async.training.trainer.task import Example, Task
from pasta_async.training.trainer.vocabulary import ModelCodec

_LOOKED_AT = 20
"""Prompts that are compared with what the ids of their samples say."""


class PreferSettings(StageSettings):
    """Settings of stage 2."""

    samples: Path = Field(description="file of samples that the model has drawn (training.sample)")
    scores: Path = Field(description="file of their scores (training.score)")
    quality_weight: float = Field(
        ge=0, description="lambda: a sample is worth speed-up + lambda * quality; inf: quality alone"
    )
    alpha: float = Field(
        default=1.0, ge=0, le=1, description="share of the best's likelihood in the loss; 1: imitation alone"
    )
    beta: float = Field(
        default=0.0, ge=0, description="pulls best and worst 1 / (2 beta) apart in log-ratio (0: best-of-n's)"
    )
    malformed: Malformed = Field(default="last", description="malformed samples: the worst, or left out")
    sound_only: bool = Field(
        default=False, description="the best has no counted fault, and promises where half of the samples do"
    )
    keep_plain: bool = Field(
        default=False, description="for a model of both forms: its plain answers stay as likely as they are"
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


def best_of_n_target(n: int) -> float:
    """How far best and worst of n samples are apart in log-ratio for best-of-n, in the mean.

    (n - 1) * (1 + 1/2 + ... + 1/(n - 1)), in nats: 1 / (2 beta*) in the paper's terms.

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
        alpha: Share of the first term. With 1 the worst answers are not looked at.
        beta: 0 for the target of best-of-n, else the target is 1 / (2 beta).
        kept: For each pair an answer that is to stay as likely as it was, or none at all: the loss gets
            the square of its ratio, whatever alpha is.
    """

    reported: tuple[str, ...] = ("nll",)
    """The negative log-likelihood of the best a token; where there is a reference, its log-ratio,
    `best_ratio`; where the worst is compared, `margin`, by how much its `worst_ratio` is less, and
    `accuracy`, how often it is; and of kept answers."""

    def __init__(
        self, pairs: Sequence[Pair], alpha: float, beta: float = 0.0, kept: Sequence[Trie] = ()
    ) -> None:
        self._pairs, self._alpha, self._beta, self._kept = pairs, alpha, beta, kept
        self.compared: bool = alpha < 1 or bool(kept)  # imitation alone needs no reference
        digest = hashlib.sha256()
        for pair in pairs:
            tokens = ((sample.ids, sample.parents, sample.targets) for sample in (pair.best, pair.worst))
            digest.update(repr((pair.id, pair.n, *tokens)).encode("utf-8", "surrogatepass"))
        digest.update(repr([trie.ids for trie in kept]).encode())
        self.fingerprint: str = digest.hexdigest()[:16]
        if self.compared:
            self.reported = ("best_ratio", *self.reported)
        if alpha < 1:
            self.reported = ("margin", "accuracy", *self.reported, "worst_ratio")
        if kept:
            self.reported = (*self.reported, "kept_ratio")

    def __len__(self) -> int:
        return len(self._pairs)

    def example(self, index: int) -> Example:
        """A pair: best, worst, perhaps what is kept; the target and their reference log-probabilities."""
        pair = self._pairs[index]
        worst = (pair.worst.trie,) if self._alpha < 1 else ()
        kept = (self._kept[index],) if self._kept else ()
        trees = (pair.best.trie, *worst, *kept)
        target = 1 / (2 * self._beta) if self._beta else best_of_n_target(pair.n)
        return Example(trees, (target, *self.reference.get(index, (math.nan,) * len(trees))))

    def weight(self, example: Example) -> float:
        """One: the loss is a mean over pairs."""
        return 1.0

    def loss(
        self, logprobs: Sequence[torch.Tensor], examples: Sequence[Example]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The loss, summed over pairs, and the sums of what is reported; see `Task.loss`."""
        ours = torch.stack(list(logprobs))
        constants = ours.new_tensor([example.constants for example in examples])
        targets = ours.new_tensor([len(example.trees[0].targets) for example in examples])
        ratios = ours - constants[:, 1:]
        loss = -self._alpha * ours[:, 0]
        values = {"best_ratio": ratios[:, 0], "nll": -ours[:, 0] / targets}
        if self._alpha < 1:
            margins = ratios[:, 0] - ratios[:, 1]
            loss = loss + (1 - self._alpha) * (margins - constants[:, 0]).square()
            values |= {"margin": margins, "accuracy": margins > 0, "worst_ratio": ratios[:, 1]}
        if self._kept:
            loss = loss + ratios[:, -1].square()
            values["kept_ratio"] = ratios[:, -1]
        return loss.sum(), {name: values[name].sum() for name in self.reported}


def prefer(settings: PreferSettings) -> bool:
    """Run stage 2; see `pasta_async.training.trainer.run.train`, whose errors it raises.

    Raises:
        InvalidRequestError: Also if samples and scores do not fit each other or the model, or form no pair.
    """
    with only_run(settings.out):
        prompts, scores = read_samples(settings.samples), read_scores(settings.scores)
        pairs, counts = choose_pairs(
            prompts, scores, settings.quality_weight, settings.seed, settings.malformed, settings.sound_only
        )
        if is_first():
            print(", ".join(f"{count} {name}" for name, count in counts.items()))

        def make_task(codec: ModelCodec) -> BonBon:
            _check_samples(pairs, codec, open_checkpoint(settings.model).config.vocab_size)
            kept = [_plain_answer(pair, codec) for pair in pairs if settings.keep_plain]
            return BonBon(pairs, settings.alpha, settings.beta, kept)

        kwargs, share = settings.template_kwargs, settings.start_share
        return train(settings, settings.model, make_task, template_kwargs=kwargs, start_share=share)


def _plain_answer(pair: Pair, codec: ModelCodec) -> Trie:
    """The model's own answer to the pair's prompt in the plain form; it has no end if it was cut."""
    if pair.plain is None:
        advice = "sample with --own-plain, or leave out --keep-plain"
        raise InvalidRequestError(f"{pair.id}: the model's own plain answer was not drawn: {advice}")
    trie = pack_plain(codec, codec.prompt(pair.messages, pasta=False), Document((Text(pair.plain.text),)))
    if pair.plain.finish_reason != "stop":
        trie.targets.pop()
    return trie


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
