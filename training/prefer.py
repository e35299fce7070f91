"""Stage 2, preference optimisation: `python -m pasta_async.training.prefer`, also behind `torchrun`.

The model that drew the samples learns to write the best of n at once: faster and better answers, as the
weight of quality against speed says.
"""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from typing import TYPE_CHECKING

from pydantic import Field

from pasta_async.backends.local.checkpoint import read_config
from pasta_async.cli.command import run_command
from pasta_async.errors import InvalidRequestError
from pasta_async.lang.document import Document, Text
from pasta_async.training.packing import pack_plain
from pasta_async.training.preference.bonbon import BonBon
from pasta_async.training.preference.pairs import Malformed, Pair, choose_pairs
from pasta_async.training.preference.samples import read_samples, read_scores
from pasta_async.training.trainer.model import REFUSAL
from pasta_async.training.trainer.processes import is_first
from pasta_async.training.trainer.run import train
from pasta_async.training.trainer.settings import TrainerSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.training.packing import Trie
    from pasta_async.training.preference.samples import SampledPrompt
    from pasta_async.training.trainer.vocabulary import ModelCodec

__all__ = ["PreferSettings", "main", "prefer"]

_LOOKED_AT = 20
"""Prompts that are compared with what the samples' ids say."""


class PreferSettings(TrainerSettings):
    """Settings of stage 2. Every field is an option of the command line."""

    samples: Path = Field(description="file of samples that the model has drawn (training.sample)")
    scores: Path = Field(description="file of their scores (training.score)")
    quality_weight: float = Field(
        ge=0, description="lambda: a sample is worth speed-up + lambda * quality; inf: quality alone"
    )
    alpha: float = Field(
        default=0.998, ge=0, le=1, description="share of the log-likelihood of the best in the loss"
    )
    beta: float = Field(
        default=0.0,
        ge=0,
        description="best and worst are pulled 1 / (2 beta) apart in log-ratio (0: as best-of-n is)",
    )
    malformed: Malformed = Field(
        default="last", description="malformed samples: worse than all others, or left out"
    )
    keep_plain: bool = Field(
        default=False, description="for a model of both forms: plain answers stay as likely as they are"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; see `run_command`, also for how it ends."""
    program = "pasta_async.training.prefer"
    run_command(
        PreferSettings, prefer, program=program, description=__doc__, arguments=arguments, resumes=True
    )


def prefer(settings: PreferSettings) -> bool:
    """Run stage 2; see `pasta_async.training.trainer.run.train`, whose errors it raises.

    Raises:
        InvalidRequestError: Also if samples and scores do not fit each other or the model, or form no pair.
    """
    prompts = read_samples(settings.samples)
    chosen = choose_pairs(
        prompts,
        read_scores(settings.scores),
        settings.quality_weight,
        settings.seed,
        settings.malformed,
    )
    if is_first():
        print(chosen)
    rows = read_config(settings.model, REFUSAL).vocab_size

    def make_task(codec: ModelCodec) -> BonBon:
        _check_ids(chosen.pairs, rows)
        _check_prompts(prompts, codec)
        kept = _plain_answers(chosen.pairs, prompts, codec) if settings.keep_plain else None
        return BonBon(chosen.pairs, settings.alpha, settings.beta, kept)

    return train(settings, make_task)


def _plain_answers(pairs: Sequence[Pair], prompts: Sequence[SampledPrompt], codec: ModelCodec) -> list[Trie]:
    """The baseline's answer to each pair's prompt, in the plain form."""
    known = {prompt.id: prompt for prompt in prompts}
    return [
        pack_plain(codec, codec.prompt(one.messages, pasta=False), Document((Text(one.baseline.text),)))
        for one in (known[pair.id] for pair in pairs)
    ]


def _check_ids(pairs: Sequence[Pair], rows: int) -> None:
    for pair in pairs:
        for sample in (pair.best, pair.worst):
            if not 0 <= min(sample.ids) <= max(sample.ids) < rows:
                raise InvalidRequestError(
                    f"sample {sample.number} of {pair.id!r} has ids that the model lacks (it has {rows}): "
                    "another model has drawn it; train the one that did"
                )


def _check_prompts(prompts: Sequence[SampledPrompt], codec: ModelCodec) -> None:
    """Refuse samples whose contexts say none of their prompts: they are another tokenizer's."""
    seen = 0
    for prompt in prompts:
        exact = next((sample for sample in prompt.samples if sample.exact and sample.targets), None)
        if exact is None:
            continue
        if str(prompt.messages[-1]["content"]).strip() in codec.detokenize(exact.ids[: exact.targets[0]]):
            return
        seen += 1
        if seen == _LOOKED_AT:
            break
    raise InvalidRequestError(
        f"none of {seen} samples holds its prompt in the model's tokens: "
        "another model has drawn them; train the one that did"
    )


if __name__ == "__main__":
    main()
