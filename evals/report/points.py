"""Quality against speed-up: a point for each model or method, and which of them no other one beats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pasta_async.evals.speedups import compare
from pasta_async.evals.statistics import estimate, geometric_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.evals.methods import Played
    from pasta_async.evals.report.reading import Results
    from pasta_async.evals.statistics import Estimate

__all__ = ["PUBLISHED", "Point", "Published", "Spread", "frontier", "points", "sequential", "spreads"]


@dataclass(frozen=True, slots=True)
class Published:
    """A point of the paper: another model, judge and machine."""

    label: str
    speedup: float
    quality: float


PUBLISHED = (
    Published("paper: quality end (λ = ∞)", 1.21, 52.3),
    Published("paper: speed end", 1.93, 42.9),
)
"""The end points of arXiv 2502.11517 (abstract, section 4): wall clock, and length-controlled win rate in
percent. What lies between them is not at hand."""


@dataclass(frozen=True, slots=True)
class Point:
    """One model or method."""

    label: str
    speedup: Estimate
    quality: Estimate
    """Percent."""
    measured: bool
    """Whether the speed-up is wall clock; else it is the theoretical one."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Theoretical and realised speed-ups of the same answers."""

    label: str
    theoretical: tuple[float, ...]
    realised: tuple[float, ...]

    @property
    def speedup(self) -> Estimate:
        """Realised: geometric mean over the prompts."""
        return estimate(self.realised)


def spreads(results: Results) -> list[Spread]:
    """What was timed: every model under `speed`, every method under `methods`."""
    found: list[Spread] = []
    for label, runs in results.speed.items():
        pairs = compare(runs)
        found.append(Spread(label, tuple(p.theoretical for p in pairs), tuple(p.speedup for p in pairs)))
    for label, played in results.methods.items():
        several = len(results.methods) > 1
        found += [
            _played(f"{name} ({label})" if several else name, name, played)
            for name in dict.fromkeys(row.method for row in played)
            if name != "sequential"
        ]
    return found


def points(results: Results, measure: Literal["alpaca", "task"]) -> list[Point]:
    """A point for each result of a measure of quality; timed ones where something of that label was timed."""
    timed = {spread.label: spread.speedup for spread in spreads(results)}
    qualities: dict[str, tuple[Estimate, Estimate]] = {
        label: _quality(result, measure) for label, result in getattr(results, measure).items()
    }
    return [
        Point(label, timed.get(label, theoretical), quality, label in timed)
        for label, (quality, theoretical) in qualities.items()
    ]


def sequential(quality: float) -> Point:
    """The baseline as a point: as fast as itself."""
    return Point("sequential", _exactly(1.0), _exactly(quality), measured=True)


def frontier(found: Sequence[Point]) -> list[Point]:
    """Those that no other one beats in both, from the slowest to the fastest."""
    kept: list[Point] = []
    for point in sorted(found, key=lambda p: (-p.speedup["value"], -p.quality["value"])):
        if not kept or point.quality["value"] > kept[-1].quality["value"]:
            kept.append(point)
    return kept[::-1]


def _quality(result: dict[str, Any], measure: str) -> tuple[Estimate, Estimate]:
    """Quality and theoretical speed-up. Lengths are controlled where that was possible."""
    if measure == "task":
        return result["all"]["right"]["parallel"], result["all"]["theoretical_speedup"]
    controlled = result["length_controlled_win_rate"]
    quality = controlled if "value" in controlled else result["win_rate"]
    return quality, result["theoretical_speedup"]


def _exactly(value: float) -> Estimate:
    return {"value": value, "low": value, "high": value}


def _played(label: str, method: str, played: Sequence[Played]) -> Spread:
    base, own = (_by_prompt(played, name) for name in ("sequential", method))
    prompts = [prompt for prompt in own if prompt in base]
    return Spread(
        label,
        tuple(base[prompt][0] / own[prompt][0] for prompt in prompts),
        tuple(base[prompt][1] / own[prompt][1] for prompt in prompts),
    )


def _by_prompt(played: Sequence[Played], method: str) -> dict[int, tuple[float, float]]:
    """Critical path and seconds of each prompt, over all passes."""
    rows = [row for row in played if row.method == method]
    return {
        prompt: (
            geometric_mean([row.critical_path for row in rows if row.prompt == prompt]),
            geometric_mean([row.seconds for row in rows if row.prompt == prompt]),
        )
        for prompt in dict.fromkeys(row.prompt for row in rows)
    }
