"""Sampled answers and their scores as they are stored: JSON lines."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from pasta_async.protocol import FinishReason  # noqa: TC001 (pydantic reads it at run time)
from pasta_async.results import ThreadRecord  # noqa: TC001 (pydantic reads it at run time)
from pasta_async.training.corpus.records import Prompt, StrictModel, read_lines
from pasta_async.training.packing import Trie

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Plain", "Sample", "SampledPrompt", "Score", "read_samples", "read_scores", "value"]


class Plain(StrictModel):
    """The baseline's answer: greedy, without tags."""

    text: str
    tokens: int = Field(ge=0)
    """Generated, the end-of-text counted."""


class Sample(StrictModel):
    """One answer that was drawn, and the tokens it was drawn as."""

    number: int = Field(ge=0)
    """Its place among the answers to its prompt."""
    seed: int | None
    """Of the answer (`Sampling.seed`); None where the backend honours none."""
    text: str = ""
    """What a reader sees."""
    written: str = ""
    """With the tags."""
    finish_reason: FinishReason
    error: str = ""
    """What ended it, if an error did: the rest is what there was by then."""
    well_formed: bool = False
    """Whether it ended by itself, without a diagnostic."""
    tokens: int = Field(default=0, ge=0)
    """Generated, tags counted."""
    critical_path: int = Field(default=0, ge=0)
    """Tokens that had to be decoded one after another, tags counted."""
    threads: tuple[ThreadRecord, ...] = ()
    ids: tuple[int, ...] = ()
    """The tokens that were sent and that came back, as a trie in topological order."""
    parents: tuple[int, ...] = ()
    """The index of each token's parent; -1 for the first one."""
    targets: tuple[int, ...] = ()
    """Indexes of the tokens that were sampled, ascending; all others are prompt, or were forced."""
    exact: bool = False
    """Whether the targets are the `tokens` of the answer and nothing else; others are never trained on."""

    @model_validator(mode="after")
    def _checked(self) -> Self:
        size = len(self.ids)
        if len(self.parents) != size or any(not -1 <= p < i for i, p in enumerate(self.parents)):
            raise ValueError("parents must name an earlier token for each token, or -1")
        if any(not 0 <= target < size for target in self.targets):
            raise ValueError("a target is no index of a token")
        return self

    @property
    def trie(self) -> Trie:
        """The tokens as the trainer packs them."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        return Trie(list(self.ids), list(self.parents), depths, list(self.targets))


class SampledPrompt(StrictModel):
    """A prompt, its answers, and the baseline's answer."""

    id: str = Field(min_length=1)
    """Of the record that the prompt is from."""
    messages: Prompt
    samples: tuple[Sample, ...]
    baseline: Plain


class Score(StrictModel):
    """What was measured of one sample."""

    id: str
    """Of its prompt."""
    number: int
    speedup: float = Field(ge=0)
    """Theoretical: tokens of the baseline's answer / critical path."""
    quality: float = Field(ge=0, le=1)


def value(score: Score, weight: float) -> float:
    """Speed-up + weight * quality (lambda, paper section 4); quality alone if the weight is infinite."""
    return score.quality if math.isinf(weight) else score.speedup + weight * score.quality


def read_samples(path: Path | str) -> list[SampledPrompt]:
    """Read a file of sampled answers.

    Raises:
        InvalidRequestError: It cannot be read, or a line is something else; with its number.
    """
    return [prompt for _, prompt in read_lines(path, SampledPrompt)]


def read_scores(path: Path | str) -> dict[tuple[str, int], Score]:
    """Read a file of scores, by prompt and number. Samples that ended in an error have none.

    Raises:
        InvalidRequestError: It cannot be read, or a line is something else; with its number.
    """
    return {(score.id, score.number): score for _, score in read_lines(path, Score)}
