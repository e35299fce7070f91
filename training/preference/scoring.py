"""What a sampled answer is worth: its speed, and its quality times a weight (lambda, paper section 4).

Both parts are stored, so that another weight needs no new judgement.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from pasta_async.training.corpus.store import read_lines

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Score", "read_scores", "value"]


class Score(BaseModel):
    """What was measured of one sample: a line of JSON."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    id: str
    """Of its prompt."""
    number: int
    """Of the sample."""
    speedup: float = Field(ge=0)
    """Theoretical: tokens of the baseline's answer / critical path."""
    quality: float = Field(ge=0, le=1)


def value(score: Score, weight: float) -> float:
    """Speed-up + weight * quality; quality alone if the weight is infinite."""
    return score.quality if math.isinf(weight) else score.speedup + weight * score.quality


def read_scores(path: Path | str) -> dict[tuple[str, int], Score]:
    """Read a file of scores, by prompt and number. Samples that ended in an error have none.

    Raises:
        InvalidRequestError: It cannot be read, or a line is something else; with its number.
    """
    return {(score.id, score.number): score for _, score in read_lines(path, Score)}
