"""Sampled answers and their scores, as they are stored: JSON lines."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field, NonNegativeInt

from pasta_async.lang import Document, parse
from pasta_async.results import FinishReason
from pasta_async.training.data.corpus import Asked, StrictModel, read_lines
from pasta_async.training.faults import Faults, count_faults
from pasta_async.training.views import Trie


class Plain(StrictModel):
    """An answer without tags."""

    text: str
    tokens: int = Field(ge=0)
    """Tokens generated, end-of-text included."""
    finish_reason: FinishReason = "stop"


class Sample(StrictModel):
    """One answer that was drawn, and the tokens it was drawn as."""

    number: int = Field(ge=0)
    """Its place among the answers to its prompt."""
    seed: int | None
    """The seed of the answer (`Sampling.seed`); None if the backend honours none."""
    text: str = ""
    """The text without tags."""
    written: str = ""
    """The text with tags."""
    finish_reason: FinishReason
    well_formed: bool = False
    """True if it ended by itself, without a fault in its tags."""
    tokens: int = Field(default=0, ge=0)
    """Tokens generated, tags included."""
    text_tokens: int = Field(ge=0)
    """Tokens of the text, without its end."""
    critical_path: int = Field(default=0, ge=0)
    """Tokens that had to be decoded one after another, tags included."""
    cut: tuple[int, ...] = ()
    """The numbers of the threads that a limit ended."""
    ids: tuple[NonNegativeInt, ...] = ()
    """The tokens that were sent and that came back, as a trie in topological order."""
    parents: tuple[int, ...] = ()
    """The index of each token's parent; -1 for the first one."""
    targets: tuple[int, ...] = ()
    """Indexes of the tokens that were sampled, ascending; all others are prompt, or were forced."""
    exact: bool = False
    """True if the targets are the `tokens` of the answer and nothing else; others are never trained on."""

    @property
    def document(self) -> Document:
        """The answer, read leniently."""
        return parse(self.written)

    @property
    def trie(self) -> Trie:
        """The tokens in the trainer's form."""
        return Trie(list(self.ids), list(self.parents), list(self.targets))


class SampledPrompt(Asked):
    """The prompt of a record, the answers drawn to it, and a plain one to compare with."""

    samples: tuple[Sample, ...]
    baseline: Plain
    """The plain answer of the baseline, which may be another model."""


class Score(StrictModel):
    """The measurements of one sample."""

    id: str
    """Id of the prompt."""
    number: int
    speedup: float = Field(ge=0)
    """Theoretical speed-up: tokens of the baseline's answer / critical path. For a judge that sees no faults
    it is those of the sample's own text, if these are fewer."""
    ended: bool = True
    """False if a limit ended the sample or the baseline's answer: then it is in no mean speed-up."""
    quality: float = Field(ge=0, le=1)

    def value(self, weight: float) -> float:
        """Speed-up + weight * quality (lambda, paper section 4); quality alone if the weight is infinite."""
        return self.quality if math.isinf(weight) else self.speedup + weight * self.quality


def read_samples(path: Path | str) -> Iterator[SampledPrompt]:
    """Read a file of sampled answers, one prompt at a time.

    Raises:
        InvalidRequestError: It cannot be read, or a line is something else; with its number.
    """
    return (prompt for _, prompt in read_lines(path, SampledPrompt))


def read_scores(path: Path | str) -> dict[tuple[str, int], Score]:
    """Read a file of scores, by prompt and number.

    Raises:
        InvalidRequestError: It cannot be read, or a line is something else; with its number.
    """
    return {(score.id, score.number): score for _, score in read_lines(path, Score)}


def faults_of_sample(sample: Sample, asked: Asked) -> Faults:
    """The faults of a sampled answer to a prompt."""
    return count_faults(
        sample.document, asked.prompt, form=asked.form, well_formed=sample.well_formed, cut=sample.cut
    )
