"""All plots of the reports. Each is drawn once for each theme; the style files have the colours."""

# matplotlib leaves many of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import matplotlib as mpl
from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from pasta_async.evals.statistics import estimate, geometric_mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from pasta_async.evals.load import Figures
    from pasta_async.evals.statistics import Estimate

__all__ = [
    "PUBLISHED",
    "Drawing",
    "Point",
    "Spread",
    "Theme",
    "bars_of_length",
    "best_points",
    "exactly",
    "load_curves",
    "quality_by_speed",
    "realised",
    "render",
    "rounds",
    "speedups",
]

Theme = Literal["light", "dark"]
Drawing = Callable[[], Figure]
"""Draws a plot in the style that is set."""

_FOLDER = Path(__file__).parent


def _times(value: float, _: int) -> str:
    return f"{value:g}\N{MULTIPLICATION SIGN}"


_TIMES = FuncFormatter(_times)
_DASHED = (0, (2, 3))


@dataclass(frozen=True, slots=True)
class Point:
    """A model or method by its speed-up and its quality in percent."""

    label: str
    speedup: Estimate
    quality: Estimate
    measured: bool = True
    """Whether the speed-up is wall clock; else it is theoretical, and drawn hollow."""
    group: str = ""
    """Points of a group have one colour and stand together in the legend; "": a group of its own."""
    joined: bool = False
    """Whether a line joins the points of the group."""


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


def exactly(value: float) -> Estimate:
    """A value that is known."""
    return {"value": value, "low": value, "high": value}


PUBLISHED = (
    Point("paper: quality end (λ = ∞)", exactly(1.21), exactly(52.3)),
    Point("paper: speed end", exactly(1.93), exactly(42.9)),
)
"""The end points of arXiv 2502.11517 (abstract, section 4): another model, judge and machine. Wall clock, and
length-controlled win rate in percent. What lies between them is not at hand."""


def render(drawing: Drawing, theme: Theme, kind: Literal["svg", "png"]) -> bytes:
    """A drawing as an image; the same drawing gives the same bytes."""
    file = io.BytesIO()
    metadata: dict[str, Any] = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    with style.context([_FOLDER / "report.mplstyle", _FOLDER / f"{theme}.mplstyle"], after_reset=True):
        drawing().savefig(file, format=kind, dpi=160, metadata=metadata)
    return file.getvalue()


def best_points(found: Sequence[Point]) -> list[Point]:
    """Those that no other one beats in both, from the slowest to the fastest."""
    kept: list[Point] = []
    for point in sorted(found, key=lambda p: (-p.speedup["value"], -p.quality["value"])):
        if not kept or point.quality["value"] > kept[-1].quality["value"]:
            kept.append(point)
    return kept[::-1]


def quality_by_speed(
    found: Sequence[Point],
    *,
    speed: str = "speed-up over the sequential baseline",
    quality: str,
    baseline: Estimate | None = None,
    frontier: bool = False,
    published: Sequence[Point] = (),
) -> Drawing:
    """Points of speed-up and quality with their intervals.

    Args:
        found: The points.
        speed: What the speed-up is.
        quality: What quality is.
        baseline: The sequential baseline's quality.
        frontier: Whether a line goes through the points that no other one beats.
        published: The paper's points, drawn as such.
    """

    def draw() -> Figure:
        figure = Figure(figsize=(8.0, 4.9))
        axes = figure.subplots()
        axes.set(xlabel=speed, ylabel=quality)
        axes.xaxis.set_major_formatter(_TIMES)
        plain = [] if baseline is None else [Point("sequential", exactly(1), baseline)]
        best = best_points([*found, *plain])
        if frontier and len(best) > 1:
            _line(axes, best, "-", color=_soft(), lw=1.6, alpha=0.7, zorder=1, label="frontier")
        groups = list(dict.fromkeys(point.group or point.label for point in found))
        for point in found:
            _draw_point(axes, point, f"C{groups.index(point.group or point.label) % 8}")
        for number, group in enumerate(groups):
            own = [point for point in found if point.group == group]
            if own:
                form = "o-" if own[0].joined else "o"
                _line(axes, own, form, color=f"C{number % 8}", lw=1.4, label=group, zorder=1)
        for point in plain:
            axes.axhspan(point.quality["low"], point.quality["high"], color=_soft(), alpha=0.12, lw=0)
            axes.axhline(point.quality["value"], color=_soft(), lw=1, ls=_DASHED, zorder=0)
            axes.plot(1, point.quality["value"], "s", ms=8, color=_ink(), zorder=3)
            _name(axes, point)
        for point in published:
            _line(axes, [point], "D", ms=8, mfc="none", mec=_soft(), mew=1.6)
            _name(axes, point)
        if published:
            words = "published: other model, judge, machine"
            _line(axes, published, ":", color=_soft(), lw=1, label=words)
        axes.margins(x=0.16, y=0.16)
        _legend(axes, found)
        return figure

    return draw


def realised(found: Sequence[Spread]) -> Drawing:
    """Realised against theoretical speed-up: a dot for each prompt, a ring for each geometric mean."""

    def draw() -> Figure:
        figure = Figure(figsize=(6.2, 5.2))
        axes = figure.subplots()
        values = [value for one in found for value in (*one.theoretical, *one.realised)]
        low, high = min([*values, 1.0]) / 1.06, max([*values, 1.0]) * 1.06
        axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal")
        axes.set(xlabel="theoretical speed-up", ylabel="realised speed-up (wall clock)")
        axes.plot([low, high], [low, high], color=_soft(), lw=1, ls=_DASHED, zorder=0)
        ticks = [2.0**k * half for k in range(-9, 10) for half in ((1, 1.5) if high / low < 16 else (1,))]
        for side in (axes.xaxis, axes.yaxis):
            side.set_ticks([tick for tick in ticks if low <= tick <= high])
            side.set_major_formatter(_TIMES)
            side.set_minor_formatter(NullFormatter())
            side.set_minor_locator(NullLocator())
        for number, one in enumerate(found):
            colour = f"C{number % 8}"
            axes.scatter(one.theoretical, one.realised, s=16, color=colour, alpha=0.35, lw=0, zorder=1)
            middle = geometric_mean(one.theoretical), geometric_mean(one.realised)
            axes.plot(*middle, "o", ms=11, color=colour, mec=_card(), mew=2, zorder=3, label=one.label)
        axes.legend(loc="upper left", handletextpad=0.3)
        return figure

    return draw


def speedups(found: Sequence[Spread]) -> Drawing:
    """A line for each method: realised with its interval, and theoretical as a hollow mark."""

    def draw() -> Figure:
        figure = Figure(figsize=(7.4, 1.3 + 0.42 * len(found)))
        axes = figure.subplots()
        _speed_rows(
            axes, [(one.speedup, geometric_mean(one.theoretical), f"C{k % 8}") for k, one in enumerate(found)]
        )
        axes.set_yticks(range(len(found)), [one.label for one in found], color=_ink())
        axes.set(ylim=(len(found) - 0.4, -0.6), xlabel="speed-up")
        axes.set_title("Filled: realised, with its 95% interval; hollow: theoretical")
        return figure

    return draw


def load_curves(found: Sequence[Figures], mode: str) -> Drawing:
    """Latency, and answers a second, by load for each method."""
    methods = dict.fromkeys(one.method for one in found if one.mode == mode)
    levels = sorted({one.level for one in found if one.mode == mode})

    def draw() -> Figure:
        figure = Figure(figsize=(11.5, 4.2))
        left, right = figure.subplots(1, 2)
        for number, method in enumerate(methods):
            own = [one for one in found if (one.method, one.mode) == (method, mode)]
            at, colour = [one.level for one in own], f"C{number % 8}"
            p50, p90 = [one.p50 for one in own], [one.p90 for one in own]
            left.plot(at, p50, "o-", color=colour, lw=2, ms=6, label=method)
            left.fill_between(at, p50, p90, color=colour, alpha=0.14, lw=0)
            right.plot(at, [one.goodput for one in own], "o-", color=colour, lw=2, ms=6, label=method)
            right.plot(at, [one.throughput for one in own], "--", color=colour, lw=1.2, alpha=0.7)
        left.set(ylabel="seconds for an answer", title="Latency: median, and up to the 90th percentile")
        right.set(ylabel="answers a second", title="Goodput within the latency target (dashed: all answers)")
        for axes in (left, right):
            axes.set(xscale="log", xlabel="answers at once" if mode == "closed" else "arrivals a second")
            axes.set_xticks(levels, [f"{level:g}" for level in levels])
            axes.xaxis.set_minor_locator(NullLocator())
            axes.legend()
        right.set_ylim(bottom=0)
        return figure

    return draw


def rounds(paths: Sequence[tuple[str, Sequence[tuple[int, float, float]]]]) -> Drawing:
    """Speed-up and score from stage 1 over the rounds of stage 2.

    Args:
        paths: A label, and for each round its number, the speed-up and the score in percent.
    """

    def draw() -> Figure:
        figure = Figure(figsize=(8.2, 4.0))
        left, right = figure.subplots(1, 2)
        for number, (label, path) in enumerate(paths):
            turns = [turn for turn, *_ in path]
            left.plot(turns, [speed for _, speed, _ in path], "o-", color=f"C{number % 8}", label=label)
            right.plot(turns, [score for *_, score in path], "o-", color=f"C{number % 8}")
        left.yaxis.set_major_formatter(_TIMES)
        left.set(title="Theoretical speed-up", xlabel="rounds of stage 2")
        right.set(title="Score, %", xlabel="rounds of stage 2")
        for axes in (left, right):
            axes.set_xticks(range(max(turn for _, path in paths for turn, *_ in path) + 1))
        left.legend()
        return figure

    return draw


def bars_of_length(rows: Sequence[tuple[str, float, Estimate, float, int]], baseline: float) -> Drawing:
    """A line for each model: mean text tokens, and the speed-up with and without matched lengths.

    Args:
        rows: Label, text tokens, length-matched speed-up, speed-up, number of the colour.
        baseline: Mean text tokens of the sequential model's answers.
    """

    def draw() -> Figure:
        figure = Figure(figsize=(8.2, 1.4 + 0.3 * len(rows)))
        left, right = figure.subplots(1, 2, sharey=True)
        for place, (_, tokens, _, _, colour) in enumerate(rows):
            left.barh(place, tokens, color=f"C{colour % 8}", alpha=0.75, height=0.6)
        left.axvline(baseline, color=_ink(), lw=1, ls=_DASHED)
        left.grid(visible=False, axis="y")
        _speed_rows(right, [(matched, speed, f"C{colour % 8}") for *_, matched, speed, colour in rows])
        left.set_yticks(range(len(rows)), [label for label, *_ in rows], color=_ink())
        left.set(title="Text tokens (dashed: sequential)", ylim=(len(rows) - 0.4, -0.6))
        right.set_title("Speed-up, lengths matched (hollow: not)")
        return figure

    return draw


def _speed_rows(axes: Axes, rows: Sequence[tuple[Estimate, float, str]]) -> None:
    """A row for each: a filled mark with its interval, and a hollow one."""
    for place, (filled, hollow, colour) in enumerate(rows):
        axes.plot([filled["low"], filled["high"]], [place] * 2, color=colour, lw=1.6, alpha=0.55, zorder=2)
        axes.plot(filled["value"], place, "o", ms=8, color=colour, zorder=3)
        axes.plot(hollow, place, "o", ms=8, mfc=_card(), mec=colour, mew=1.7)
    axes.axvline(1, color=_soft(), lw=1, ls=_DASHED, zorder=0)
    axes.xaxis.set_major_formatter(_TIMES)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def _draw_point(axes: Axes, point: Point, colour: str) -> None:
    speed, quality = point.speedup, point.quality
    x, y = speed["value"], quality["value"]
    axes.plot([speed["low"], speed["high"]], [y, y], color=colour, lw=1.6, alpha=0.55, zorder=2)
    axes.plot([x, x], [quality["low"], quality["high"]], color=colour, lw=1.6, alpha=0.55, zorder=2)
    fill = colour if point.measured else _card()
    axes.plot(x, y, "o", ms=10, color=fill, mec=colour, mew=1.8, zorder=3)
    _name(axes, point)


def _name(axes: Axes, point: Point) -> None:
    place = point.speedup["value"], point.quality["value"]
    axes.annotate(point.label, place, (9, 7), textcoords="offset points", fontsize=9.5)


def _line(axes: Axes, points: Sequence[Point], form: str, **settings: Any) -> None:
    places = [(point.speedup["value"], point.quality["value"]) for point in points]
    axes.plot(*zip(*places, strict=True), form, **settings)


def _legend(axes: Axes, found: Sequence[Point]) -> None:
    for measured, words in ((True, "wall clock"), (False, "theoretical")):
        if any(point.measured is measured for point in found):
            fill = _soft() if measured else _card()
            axes.plot([], [], "o", ms=8, color=fill, mec=_soft(), mew=1.6, label=f"speed-up: {words}")
    axes.legend(loc="best")


def _ink() -> Any:
    return mpl.rcParams["text.color"]


def _soft() -> Any:
    return mpl.rcParams["axes.labelcolor"]


def _card() -> Any:
    return mpl.rcParams["axes.facecolor"]
