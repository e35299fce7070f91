"""The plots of the report, with matplotlib; `report.mplstyle` has their look."""

# matplotlib leaves many of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from pasta_async.evals.load import Figures
    from pasta_async.training.statistics import Estimate

__all__ = [
    "PUBLISHED",
    "Point",
    "best_points",
    "exactly",
    "load_curves",
    "quality_by_speed",
    "save",
]

_STYLE = Path(__file__).with_name("report.mplstyle")
_INK, _SOFT, _CARD = "#25211a", "#655d4f", "#fffdf9"
_TIMES = "{x:g}\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True, slots=True)
class Point:
    """A model or method by its speed-up and its quality in percent."""

    label: str
    speedup: Estimate
    quality: Estimate
    measured: bool = True
    """Whether the speed-up was timed; else it is theoretical, or published, and drawn hollow."""
    group: str = ""
    """Points of a group have one colour, and a line joins them; "": a colour of its own."""

    @property
    def place(self) -> tuple[float, float]:
        """Speed-up and quality."""
        return self.speedup["value"], self.quality["value"]


def exactly(value: float) -> Estimate:
    """A value that is known."""
    return {"value": value, "low": value, "high": value}


PUBLISHED = (
    Point("paper: quality end (λ = ∞)", exactly(1.21), exactly(52.3), measured=False),
    Point("paper: speed end", exactly(1.93), exactly(42.9), measured=False),
)
"""The end points of arXiv 2502.11517 (abstract, section 4): another model, judge and machine. Wall clock, and
length-controlled win rate in percent. What lies between them is not at hand."""


@mpl.rc_context(fname=_STYLE)
def save(figure: Figure, path: Path) -> None:
    """Write a plot as PNG; the same plot gives the same bytes."""
    figure.savefig(path, dpi=160, metadata={"Software": None})


def best_points(found: Sequence[Point]) -> list[Point]:
    """Those that no other one beats in both, from the slowest to the fastest."""
    kept: list[Point] = []
    for point in sorted(found, key=lambda point: point.place, reverse=True):
        if not kept or point.place[1] > kept[-1].place[1]:
            kept.append(point)
    return kept[::-1]


@mpl.rc_context(fname=_STYLE)
def quality_by_speed(
    found: Sequence[Point],
    *,
    speed: str = "speed-up over the sequential baseline",
    quality: str,
    baseline: Estimate | None,
    published: Sequence[Point] = (),
) -> Figure:
    """Points of speed-up and quality with their intervals, and a line through those that no other one beats.

    Args:
        found: The points.
        speed: What the speed-up is.
        quality: What quality is.
        baseline: The sequential baseline's quality, if there is one for all.
        published: The paper's points, drawn as such.
    """
    figure = Figure(figsize=(8.0, 4.9))
    axes = figure.subplots()
    axes.set(xlabel=speed, ylabel=quality)
    axes.xaxis.set_major_formatter(_TIMES)
    plain = [Point("sequential", exactly(1), baseline)] if baseline else []
    frontier = [point.place for point in best_points([*found, *plain])]
    axes.plot(*zip(*frontier, strict=True), color=_SOFT, lw=4, alpha=0.25, label="frontier")
    groups: dict[str, list[Point]] = {}
    for point in found:
        groups.setdefault(point.group or point.label, []).append(point)
    for number, (group, own) in enumerate(groups.items()):
        _points(axes, own, f"C{number % 8}", "o-", group if own[0].group else None)
    if baseline:
        below, above = _reach(baseline)
        middle = baseline["value"]
        axes.axhspan(middle - below, middle + above, color=_SOFT, alpha=0.12, lw=0)
        axes.axhline(baseline["value"], color=_SOFT, lw=1, ls=":")
    _points(axes, plain, _INK, "s")
    _points(axes, published, _SOFT, "D:", "published: other model, judge, machine")
    axes.margins(x=0.16, y=0.16)
    if not all(point.measured for point in found):
        for fill, name in ((_SOFT, "wall clock"), (_CARD, "theoretical")):
            axes.plot([], [], "o", ms=8, color=fill, mec=_SOFT, mew=1.6, label=f"speed-up: {name}")
    axes.legend(loc="best")
    return figure


def _reach(found: Estimate) -> tuple[float, float]:
    """How far an interval reaches below and above its value; nowhere if there is none."""
    if found["low"] is None or found["high"] is None:
        return 0.0, 0.0
    return found["value"] - found["low"], found["high"] - found["value"]


def _points(axes: Axes, points: Sequence[Point], colour: str, form: str, label: str | None = None) -> None:
    """Points with their intervals, and a line through them if the form has one and they have a label."""
    if label and points:
        axes.plot(*zip(*(p.place for p in points), strict=True), form[1:], color=colour, lw=1.4, label=label)
    for point in points:
        x, y = ([[end] for end in _reach(one)] for one in (point.speedup, point.quality))
        axes.errorbar(*point.place, xerr=x, yerr=y, color=colour, lw=1.6, alpha=0.55)
        fill = colour if point.measured else _CARD
        axes.plot(*point.place, form[0], ms=9, color=fill, mec=colour, mew=1.8, zorder=3)
        axes.annotate(point.label, point.place, (9, 7), textcoords="offset points", fontsize=9.5)


@mpl.rc_context(fname=_STYLE)
def load_curves(found: Sequence[Figures]) -> Figure:
    """Latency, and answers a second, by load for each method; the loads are all of one mode."""
    figure = Figure(figsize=(11.5, 4.2))
    left, right = figure.subplots(1, 2)
    for number, method in enumerate(dict.fromkeys(one.method for one in found)):
        own = [one for one in found if one.method == method]
        at, colour = [one.level for one in own], f"C{number % 8}"
        p50, p90 = [one.p50 for one in own], [one.p90 for one in own]
        left.plot(at, p50, "o-", color=colour, lw=2, label=method)
        left.fill_between(at, p50, p90, color=colour, alpha=0.14, lw=0)
        right.plot(at, [one.goodput for one in own], "o-", color=colour, lw=2, label=method)
        right.plot(at, [one.throughput for one in own], "--", color=colour, lw=1.2, alpha=0.7)
    left.set(ylabel="seconds for an answer", title="Latency: median, and up to the 90th percentile")
    right.set(ylabel="answers a second", title="Goodput within the latency target (dashed: all answers)")
    levels = sorted({one.level for one in found})
    for axes in (left, right):
        axes.set(xscale="log", xlabel="answers at once" if found[0].mode == "closed" else "arrivals a second")
        axes.set_xticks(levels, [f"{level:g}" for level in levels])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.legend()
    right.set_ylim(bottom=0)
    return figure
