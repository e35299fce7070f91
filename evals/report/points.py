"""Quality against speed-up: a point for each model or method, and which of them no other one beats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pasta_async.evals.speedups import compare
from pasta_async.evals.statistics import estimate, geometric_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.evals.methods import Played
    from pasta_async.evals.report.reading import Results
    from pasta_async.evals.statistics import Estimate

__all__ = [
    "PUBLISHED",
    "Point",
    "Published",
    "Spread",
    "frontier",
    "lengths_controlled",
    "points",
    "sequential",
    "spreads",
]


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
    found = results.task if measure == "task" else results.alpaca
    name = "length_controlled_win_rate" if lengths_controlled(results) else "win_rate"
    qualities: dict[str, tuple[Estimate, Estimate]] = {
        label: (
            (result["all"]["right"]["parallel"], result["all"]["theoretical_speedup"])
            if measure == "task"
            else (result[name], result["theoretical_speedup"])
        )
        for label, result in found.items()
    }
    return [
        Point(label, timed.get(label, theoretical), quality, label in timed)
        for label, (quality, theoretical) in qualities.items()
    ]


def lengths_controlled(results: Results) -> bool:
    """Whether the model for lengths could be fitted to every result; if not, the raw win rates stand."""
    return all("value" in result["length_controlled_win_rate"] for result in results.alpaca.values())


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
