"""The plots. Each is drawn once for each theme."""

# matplotlib leaves many of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from pasta_async.evals.report.points import frontier, sequential
from pasta_async.evals.statistics import geometric_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes

    from pasta_async.evals.load import Figures
    from pasta_async.evals.report.points import Point, Published, Spread
    from pasta_async.evals.report.style import Theme
    from pasta_async.evals.statistics import Estimate

    Drawing = Callable[[Theme], Figure]
    """Draws a plot in the colours of a theme."""

__all__ = [
    "TIMES",
    "draw_interval",
    "draw_name",
    "latencies",
    "new_axes",
    "quality_by_speed",
    "realised",
    "render",
    "speedups",
    "throughputs",
]


def _times(value: float, _: int) -> str:
    return f"{value:g}\N{MULTIPLICATION SIGN}"


TIMES = FuncFormatter(_times)
"""Marks of an axis of ratios."""


def render(drawing: Drawing, theme: Theme, kind: str) -> bytes:
    """A drawing as ``svg`` or ``png``; the same drawing gives the same bytes."""
    file = io.BytesIO()
    settings: dict[Any, Any] = theme.settings
    with mpl.rc_context(settings):
        metadata: dict[str, Any] = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
        drawing(theme).savefig(file, format=kind, dpi=160, metadata=metadata)
    return file.getvalue()


def quality_by_speed(
    found: Sequence[Point], *, axis: str, even: float | None = None, published: Sequence[Published] = ()
) -> Drawing:
    """Points of speed-up and quality with their intervals, and the frontier through the best of them.

    Args:
        found: The points.
        axis: What quality is.
        even: The sequential baseline's quality.
        published: The paper's points, drawn as such.
    """

    def draw(theme: Theme) -> Figure:
        figure, axes = new_axes(theme, (7.4, 4.6))
        axes.set(xlabel="speed-up over the sequential baseline", ylabel=axis)
        axes.xaxis.set_major_formatter(TIMES)
        best = frontier([*found, *([] if even is None else [sequential(even)])])
        if len(best) > 1:
            path = [(p.speedup["value"], p.quality["value"]) for p in best]
            axes.plot(
                *zip(*path, strict=True), color=theme.soft, lw=1.6, alpha=0.7, zorder=1, label="frontier"
            )
        for number, point in enumerate(found):
            _point(axes, point, theme.colour(number), theme)
        if even is not None:
            axes.axhline(even, color=theme.soft, lw=1, ls=(0, (2, 3)), zorder=0)
            axes.plot(1, even, "s", ms=8, color=theme.ink, zorder=3)
            draw_name(axes, "sequential", (1, even), theme.ink)
        for one in published:
            axes.plot(one.speedup, one.quality, "D", ms=8, mfc="none", mec=theme.soft, mew=1.6, zorder=2)
            draw_name(axes, one.label, (one.speedup, one.quality), theme.soft)
        if published:
            ends = [(one.speedup, one.quality) for one in published]
            axes.plot(*zip(*ends, strict=True), color=theme.soft, lw=1, ls=(0, (1, 3)), zorder=0)
        axes.margins(x=0.16, y=0.16)
        _legend(axes, theme, found, published)
        return figure

    return draw


def realised(found: Sequence[Spread]) -> Drawing:
    """Realised against theoretical speed-up: a dot for each prompt, a ring for each geometric mean."""

    def draw(theme: Theme) -> Figure:
        figure, axes = new_axes(theme, (6.2, 5.2))
        values = [value for one in found for value in (*one.theoretical, *one.realised)]
        low, high = min([*values, 1.0]) / 1.06, max([*values, 1.0]) * 1.06
        axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal")
        axes.set(xlabel="theoretical speed-up", ylabel="realised speed-up (wall clock)")
        axes.plot([low, high], [low, high], color=theme.soft, lw=1, ls=(0, (2, 3)), zorder=0)
        _log_ticks(axes, low, high)
        for number, one in enumerate(found):
            colour = theme.colour(number)
            axes.scatter(one.theoretical, one.realised, s=16, color=colour, alpha=0.35, lw=0, zorder=1)
            middle = geometric_mean(one.theoretical), geometric_mean(one.realised)
            axes.plot(*middle, "o", ms=11, color=colour, mec=theme.card, mew=2, zorder=3, label=one.label)
        axes.legend(loc="upper left", handletextpad=0.3)
        return figure

    return draw


def speedups(found: Sequence[Spread]) -> Drawing:
    """A line for each method: realised with its interval, and theoretical as a hollow mark."""

    def draw(theme: Theme) -> Figure:
        figure, axes = new_axes(theme, (7.4, 1.3 + 0.42 * len(found)))
        for row, one in enumerate(found):
            colour = theme.colour(row)
            draw_interval(axes, one.speedup, row, colour)
            axes.plot(one.speedup["value"], row, "o", ms=9, color=colour, zorder=3)
            axes.plot(geometric_mean(one.theoretical), row, "o", ms=9, mfc=theme.card, mec=colour, mew=1.8)
        axes.axvline(1, color=theme.soft, lw=1, ls=(0, (2, 3)), zorder=0)
        axes.set_yticks(range(len(found)), [one.label for one in found], color=theme.ink)
        axes.set(ylim=(len(found) - 0.4, -0.6), xlabel="speed-up")
        axes.set_title("Filled: realised, with its 95% interval; hollow: theoretical")
        axes.xaxis.set_major_formatter(TIMES)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        return figure

    return draw


def latencies(found: Sequence[Figures], mode: str) -> Drawing:
    """Median latency by load, and up to its 90th percentile as a band, for each method."""

    def draw(theme: Theme) -> Figure:
        figure, axes = new_axes(theme, (7.4, 4.2))
        for number, (method, own) in enumerate(_by_method(found, mode).items()):
            levels, colour = [one.level for one in own], theme.colour(number)
            axes.plot(levels, [one.p50 for one in own], "o-", color=colour, lw=2, ms=6, label=method)
            axes.fill_between(
                levels, [one.p50 for one in own], [one.p90 for one in own], color=colour, alpha=0.14, lw=0
            )
        _load_axes(
            axes, found, mode, "seconds for an answer", "Latency: median, and up to the 90th percentile"
        )
        return figure

    return draw


def throughputs(found: Sequence[Figures], mode: str) -> Drawing:
    """Answers a second by load, for each method; those within the latency target as a full line."""

    def draw(theme: Theme) -> Figure:
        figure, axes = new_axes(theme, (7.4, 4.2))
        for number, (method, own) in enumerate(_by_method(found, mode).items()):
            levels, colour = [one.level for one in own], theme.colour(number)
            axes.plot(levels, [one.goodput for one in own], "o-", color=colour, lw=2, ms=6, label=method)
            axes.plot(levels, [one.throughput for one in own], "--", color=colour, lw=1.2, alpha=0.7)
        _load_axes(
            axes, found, mode, "answers a second", "Goodput within the latency target (dashed: all answers)"
        )
        axes.set_ylim(bottom=0)
        return figure

    return draw


def new_axes(theme: Theme, size: tuple[float, float]) -> tuple[Figure, Axes]:
    """An empty plot of so many inches."""
    figure = Figure(figsize=size)
    return figure, figure.subplots()


def _by_method(found: Sequence[Figures], mode: str) -> dict[str, list[Figures]]:
    names = dict.fromkeys(one.method for one in found if one.mode == mode)
    return {name: [one for one in found if (one.method, one.mode) == (name, mode)] for name in names}


def _load_axes(axes: Axes, found: Sequence[Figures], mode: str, what: str, title: str) -> None:
    levels = sorted({one.level for one in found if one.mode == mode})
    axes.set(xscale="log", ylabel=what, title=title)
    axes.set_xlabel("answers at once" if mode == "closed" else "arrivals a second")
    axes.set_xticks(levels, [f"{level:g}" for level in levels])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.legend()


def _log_ticks(axes: Axes, low: float, high: float) -> None:
    doublings = [2.0**power for power in range(-9, 10)]
    if high / low < 16:  # there is room for those between
        doublings += [1.5 * tick for tick in doublings]
    ticks = [tick for tick in sorted(doublings) if low <= tick <= high]
    for side in (axes.xaxis, axes.yaxis):
        side.set_ticks(ticks)
        side.set_major_formatter(TIMES)
        side.set_minor_formatter(NullFormatter())
        side.set_minor_locator(NullLocator())


def _point(axes: Axes, point: Point, colour: str, theme: Theme) -> None:
    x, y = point.speedup["value"], point.quality["value"]
    draw_interval(axes, point.speedup, y, colour)
    axes.plot(
        [x, x], [point.quality["low"], point.quality["high"]], color=colour, lw=1.6, alpha=0.55, zorder=2
    )
    axes.plot(x, y, "o", ms=10, color=colour if point.measured else theme.card, mec=colour, mew=1.8, zorder=3)
    draw_name(axes, point.label, (x, y), theme.ink)


def draw_interval(axes: Axes, found: Estimate, y: float, colour: str) -> None:
    """A horizontal line as long as an interval."""
    axes.plot([found["low"], found["high"]], [y, y], color=colour, lw=1.6, alpha=0.55, zorder=2)


def draw_name(axes: Axes, text: str, place: tuple[float, float], colour: str) -> None:
    """A name beside its point."""
    axes.annotate(text, place, (9, 7), textcoords="offset points", color=colour, fontsize=9.5)


def _legend(axes: Axes, theme: Theme, found: Sequence[Point], published: Sequence[Published]) -> None:
    for measured, words in ((True, "wall clock"), (False, "theoretical")):
        if any(point.measured is measured for point in found):
            fill = theme.soft if measured else theme.card
            axes.plot([], [], "o", ms=8, color=fill, mec=theme.soft, mew=1.6, label=f"speed-up: {words}")
    if published:
        words = "published: other model, judge, machine"
        axes.plot([], [], "D", ms=7, mfc="none", mec=theme.soft, mew=1.6, label=words)
    axes.legend(loc="best", fontsize=9, labelcolor=theme.soft)
