"""Sampled answers as they are stored: a line of JSON for each prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from pasta_async.protocol import (
    FinishReason,  # noqa: TC001 (pydantic reads it at run time)
    Message,  # noqa: TC001 (pydantic reads it at run time)
)
from pasta_async.results import ThreadRecord  # noqa: TC001 (pydantic reads it at run time)
from pasta_async.training.corpus.record import check_messages
from pasta_async.training.corpus.store import read_lines
from pasta_async.training.packing import Trie

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Plain", "Sample", "SampledPrompt", "read_samples"]


class _Stored(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


class Plain(_Stored):
    """The baseline's answer: greedy, without tags."""

    text: str
    tokens: int = Field(ge=0)
    """Generated, the end-of-text counted."""


class Sample(_Stored):
    """One answer that was drawn, and the tokens it was drawn as."""

    number: int = Field(ge=0)
    """Its place among the answers to its prompt."""
    seed: int | None
    """Of the answer (`Sampling.seed`); None where the backend honours none."""
    text: str
    """What a reader sees."""
    written: str
    """With the tags."""
    finish_reason: FinishReason
    error: str = ""
    """What ended it, if an error did: the rest is what there was by then."""
    well_formed: bool
    """Whether it ended by itself, with nothing to complain about."""
    tokens: int = Field(ge=0)
    """Generated, tags counted."""
    critical_path: int = Field(ge=0)
    """Tokens that had to be decoded one after another, tags counted."""
    threads: tuple[ThreadRecord, ...]
    """The full record: main, and a thread for each promise."""
    ids: tuple[int, ...]
    """The tokens of the requests that were sent and of what came back, as a trie in topological order."""
    parents: tuple[int, ...]
    """The index of each token's parent; -1 for the first one."""
    targets: tuple[int, ...]
    """Indexes of the tokens that were sampled, ascending; all others are prompt, or were forced."""
    exact: bool
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


class SampledPrompt(_Stored):
    """A prompt, its answers, and the baseline's answer."""

    id: str = Field(min_length=1)
    """Of the record that the prompt is from."""
    messages: tuple[Message, ...]
    samples: tuple[Sample, ...]
    """In the order of their numbers."""
    baseline: Plain

    @field_validator("messages")
    @classmethod
    def _prompt(cls, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        return check_messages(messages)


def read_samples(path: Path | str) -> list[SampledPrompt]:
    """Read a file of sampled answers.

    Raises:
        InvalidRequestError: It cannot be read, or a line is something else; with its number.
    """
    return [prompt for _, prompt in read_lines(path, SampledPrompt)]
