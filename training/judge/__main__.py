"""Train a judge of answers on preferences: `python -m pasta_async.training.judge`.

A language model reads each answer; from its hidden states a reward is learned that explains which of two
answers is preferred, beside what length explains. OUT is a judge for `--judge reward --judge-model OUT`;
OUT/report.json says how often it agrees with preferences on prompts, and about models, that it did not know.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pasta_async.backends.local.checkpoint import read_config
from pasta_async.cli.command import Command, command
from pasta_async.jobs import Journal, progress, write_json
from pasta_async.prompts import Message
from pasta_async.training.data.corpus import digest
from pasta_async.training.identity import model_digest
from pasta_async.training.judge.head import (
    Head,
    agreement,
    certainty,
    fit_head,
    length_effects,
    length_terms,
    lengths_and_wins,
)
from pasta_async.training.judge.preferences import Comparison, Folds, draw, read_comparisons
from pasta_async.training.judge.reward import REFUSAL, AnswerReader, FeatureSettings, StoredJudge


class RewardSettings(FeatureSettings):
    """How to train a judge."""

    preferences: tuple[Path, ...] = Field(
        min_length=1,
        description="files of preferences, JSON lines: instruction, output_1, output_2, preference",
    )
    out: Path = Field(description="folder of the judge; a run that was interrupted goes on from what it has")
    within: float = Field(
        default=0.15, ge=0, le=1, description="use pairs whose lengths differ by at most this share (1: all)"
    )
    pairs: int = Field(
        default=0, ge=0, description="use at most so many of them, spread over the prompts (0: all)"
    )
    penalty: float = Field(default=10.0, gt=0, description="how strongly large weights are avoided")
    prompt_folds: int = Field(default=5, ge=2, description="parts of the prompts, each unseen in turn")
    model_folds: int = Field(default=3, ge=1, description="parts of the models, each unseen in turn")
    seed: int = Field(default=0, description="of the draw of pairs, and of the parts")

    @property
    def features(self) -> FeatureSettings:
        """What the judge will read by."""
        fields = {name: getattr(self, name) for name in FeatureSettings.model_fields}
        return FeatureSettings.model_validate({**fields, "model": self.model.resolve()})


def train(settings: RewardSettings) -> dict[str, Any]:
    """Train a judge and write it with its report, which is returned.

    Raises:
        PastaError: The preferences or the model cannot be used, or OUT has features of something else.
    """
    comparisons, counts = read_comparisons(settings.preferences)
    read_config(settings.model, REFUSAL)
    near = [one for one in comparisons if one.near(settings.within)]
    used = draw(near, settings.pairs, settings.seed)
    folds = Folds(used, settings.prompt_folds, settings.model_folds, settings.seed)
    answers = list(dict.fromkeys((one.prompt, text) for one in used for text in one.answers))
    learner = _Learner(used, answers, _read(settings, answers), settings.penalty)
    groups = {"unseen prompts": learner.test(folds.blocks(unseen_models=False))}
    if folds.models > 1:
        groups = {"unseen prompts and models": learner.test(folds.blocks()), **groups}
    found = {name: agreement(*judged) for name, judged in groups.items()}
    scale, log_loss = certainty(*next(iter(groups.values())))
    StoredJudge(settings.out, settings.features, learner.head(scale)).write()
    report = {
        **settings.model_dump(mode="json", exclude={"out"}),
        "counts": {**counts, "near": len(near), "used": len(used)},
        "agreement": found,
        "log_loss": log_loss,
    }
    write_json(settings.out / "report.json", report)
    return report


class _Learner:
    """Learns from some of the comparisons, and judges others.

    Answers are prompts and texts, `features` theirs: [answers, features]; `penalty` is that of `fit_head`.
    """

    def __init__(
        self,
        comparisons: Sequence[Comparison],
        answers: Sequence[tuple[str, str]],
        features: NDArray[Any],
        penalty: float,
    ) -> None:
        terms = length_terms([text for _, text in answers])
        self._effects = length_effects(features, terms)
        rest = features - terms @ self._effects
        place = {answer: number for number, answer in enumerate(answers)}
        first, second = np.array([[place[one.prompt, text] for text in one.answers] for one in comparisons]).T
        self._differences = rest[first] - rest[second]
        self._comparisons, self._penalty = comparisons, penalty
        self._lengths, self._wins = lengths_and_wins(comparisons)

    def test(self, blocks: Iterable[tuple[list[int], list[int]]]) -> tuple[list[Comparison], NDArray[Any]]:
        """What is unseen in a block, and the differences in reward, each learned without it."""
        rewards = dict[int, float]()
        for known, unseen in blocks:
            rewards.update(zip(unseen, self._differences[unseen] @ self._fit(known), strict=True))
        places = sorted(rewards)
        return [self._comparisons[one] for one in places], np.array([rewards[one] for one in places])

    def head(self, scale: float) -> Head:
        """What is learned from all of them, times a factor."""
        weights = scale * self._fit(range(len(self._comparisons)))
        return Head(weights, self._effects @ weights)

    def _fit(self, places: Sequence[int]) -> NDArray[Any]:
        parts = self._differences[places], self._lengths[places], self._wins[places]
        return fit_head(*parts, self._penalty)[:-1]


def _read(settings: RewardSettings, answers: Sequence[tuple[str, str]]) -> NDArray[Any]:
    """[answers, features] of prompts and answers. What OUT has is not computed again."""
    asked = {digest(_messages(prompt), text): (prompt, text) for prompt, text in answers}
    identity = {**settings.features.model_dump(mode="json"), "model": model_digest(settings.model)}
    with Journal(settings.out / "features.jsonl", identity) as journal:
        known = {row["key"]: row["features"] for row in journal.rows}
        missing = {key: answer for key, answer in asked.items() if key not in known}
        reader: Any = AnswerReader(settings.features) if missing else None
        with progress(len(asked), "answers", done=len(asked) - len(missing)) as advance:
            for key, (prompt, text) in missing.items():
                read = reader.read(_messages(prompt), text)
                known[key] = base64.b64encode(read.tobytes()).decode()
                journal.append({"key": key, "features": known[key]})
                advance()
    return np.stack([np.frombuffer(base64.b64decode(known[key]), np.float32) for key in asked])


def _messages(prompt: str) -> tuple[Message, ...]:
    return ({"role": "user", "content": prompt},)


main: Command = command(RewardSettings, train, "pasta_async.training.judge", __doc__, resumes=True)

if __name__ == "__main__":
    main()
