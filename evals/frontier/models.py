"""Models that were measured, and which of them is best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.evals.statistics import Estimate

__all__ = ["BEST_RULE", "Measured", "best", "dominated_by"]

BEST_RULE = (
    "The best point is the model with the highest theoretical speed-up among those whose score is not below "
    "the sequential baseline's beyond the 95% interval of the difference (or, if there is none, the one with "
    "the highest score). Models that learned from clean annotations or from structure alone do not stand for "
    "election."
)
"""How `best` chooses, in words."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A model with its result."""

    name: str
    """Of the run: `round2/lambda4`."""
    group: str
    """Models of one group have one colour: `round 2`."""
    short: str
    """What it is called within its group: a weight of quality, an annotator."""
    result: dict[str, Any]
    """As evals.frontier wrote it."""
    elected: bool = False
    """Whether it may be the best point."""
    round: int = 0
    """Of stage 2; 0 for stage 1."""

    @property
    def label(self) -> str:
        """In tables."""
        return f"{self.group}, \N{GREEK SMALL LETTER LAMDA} = {self.short}" if self.round else self.short

    @property
    def score(self) -> Estimate:
        """Percent."""
        return self.result["all"]["score"]

    @property
    def difference(self) -> Estimate:
        """Of its score to the baseline's, in points."""
        return self.result["all"]["difference"]

    @property
    def speedup(self) -> Estimate:
        """Theoretical."""
        return self.result["all"]["theoretical_speedup"]

    @property
    def length_matched(self) -> Estimate:
        """The theoretical speed-up over a baseline that writes texts of this model's lengths."""
        return self.result["all"]["length_matched_speedup"]

    @property
    def wall_clock(self) -> Estimate | None:
        """What was timed, if anything was."""
        timed = self.result.get("wall_clock")
        return timed["speedup"] if timed else None


def best(found: Sequence[Measured]) -> Measured | None:
    """The best point by `BEST_RULE`; None if no model stands for election."""
    elected = [model for model in found if model.elected]
    as_good = [model for model in elected if model.difference["high"] >= 0]
    if as_good:
        return max(as_good, key=lambda model: model.speedup["value"])
    return max(elected, key=lambda model: model.score["value"], default=None)


def dominated_by(model: Measured, found: Sequence[Measured]) -> list[Measured]:
    """Those that are at least as good and as fast as a model, and better in one of both."""

    def ahead(other: Measured) -> bool:
        faster = other.speedup["value"] - model.speedup["value"]
        righter = other.score["value"] - model.score["value"]
        return min(faster, righter) >= 0 and max(faster, righter) > 0

    return [other for other in found if ahead(other)]
