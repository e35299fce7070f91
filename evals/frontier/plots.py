"""The plots: the frontier, what rounds do to it, and lengths."""

# matplotlib leaves many of its types open.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from pasta_async.evals.report.plots import TIMES, draw_interval, draw_name, new_axes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes

    from pasta_async.evals.frontier.models import Measured
    from pasta_async.evals.report.plots import Drawing
    from pasta_async.evals.report.style import Theme
    from pasta_async.evals.statistics import Estimate

__all__ = ["frontier", "lengths", "rounds"]


def frontier(
    found: Sequence[Measured], baseline: Estimate, speedup: Callable[[Measured], Estimate | None], axis: str
) -> Drawing:
    """Speed-up against score, both with their intervals; the weights of a round are joined by a line.

    Args:
        found: The models; one group after another.
        baseline: The sequential model's score.
        speedup: Which speed-up; models without are left out.
        axis: What it is.
    """

    def draw(theme: Theme) -> Figure:
        figure, axes = new_axes(theme, (8.2, 5.2))
        axes.set(xlabel=axis, ylabel="score, % of the facts right")
        axes.xaxis.set_major_formatter(TIMES)
        axes.axhspan(baseline["low"], baseline["high"], color=theme.soft, alpha=0.12, lw=0, zorder=0)
        axes.axhline(baseline["value"], color=theme.soft, lw=1, ls=(0, (2, 3)), zorder=0)
        axes.plot(1, baseline["value"], "s", ms=8, color=theme.ink, zorder=3)
        draw_name(axes, "sequential", (1, baseline["value"]), theme.ink)
        for number, group in enumerate(dict.fromkeys(model.group for model in found)):
            own = [(model, speed) for model in found if model.group == group if (speed := speedup(model))]
            _group(axes, group, own, theme.colour(number), theme)
        axes.margins(x=0.14, y=0.12)
        axes.legend(loc="best", fontsize=9, labelcolor=theme.soft)
        return figure

    return draw


def _group(
    axes: Axes, name: str, own: Sequence[tuple[Measured, Estimate]], colour: str, theme: Theme
) -> None:
    for model, speed in own:
        x, y = speed["value"], model.score["value"]
        draw_interval(axes, speed, y, colour)
        axes.plot([x, x], [model.score["low"], model.score["high"]], color=colour, lw=1.6, alpha=0.55)
        draw_name(axes, model.short, (x, y), theme.ink if model.round == 0 else colour)
    points = [(speed["value"], model.score["value"]) for model, speed in own]
    line, label = ("o-", f"{name}, by \N{GREEK SMALL LETTER LAMDA}") if own[0][0].round else ("o", name)
    axes.plot(*zip(*points, strict=True), line, color=colour, ms=8, lw=1.4, zorder=3, label=label)


def rounds(found: Sequence[Measured]) -> Drawing:
    """Speed-up and score of each weight of quality, from stage 1 over the rounds.

    Args:
        found: Models that stand for election: that of stage 1, then those of the rounds.
    """
    start = [model for model in found if model.round == 0]
    weights = list(dict.fromkeys(model.short for model in found if model.round))

    def draw(theme: Theme) -> Figure:
        figure = Figure(figsize=(8.2, 4.0))
        left, right = figure.subplots(1, 2)
        for number, weight in enumerate(weights):
            path = [*start, *(model for model in found if model.round and model.short == weight)]
            turns = [model.round for model in path]
            colour, label = theme.colour(number), f"\N{GREEK SMALL LETTER LAMDA} = {weight}"
            left.plot(turns, [m.speedup["value"] for m in path], "o-", color=colour, label=label)
            right.plot(turns, [m.score["value"] for m in path], "o-", color=colour)
        left.yaxis.set_major_formatter(TIMES)
        left.set(title="Theoretical speed-up", xlabel="rounds of stage 2")
        right.set(title="Score, %", xlabel="rounds of stage 2")
        for axes in (left, right):
            axes.set_xticks(range(max(model.round for model in found) + 1))
        left.legend(fontsize=9, labelcolor=theme.soft)
        return figure

    return draw


def lengths(found: Sequence[Measured], baseline: float) -> Drawing:
    """A line for each model: mean text tokens, and the speed-up with and without matched lengths.

    Args:
        found: The models.
        baseline: Mean text tokens of the sequential model's answers.
    """

    def draw(theme: Theme) -> Figure:
        figure = Figure(figsize=(8.2, 1.4 + 0.3 * len(found)))
        left, right = figure.subplots(1, 2, sharey=True)
        groups = list(dict.fromkeys(model.group for model in found))
        for row, model in enumerate(found):
            colour = theme.colour(groups.index(model.group))
            left.barh(row, model.result["all"]["text_tokens"], color=colour, alpha=0.75, height=0.6)
            draw_interval(right, model.length_matched, row, colour)
            right.plot(model.length_matched["value"], row, "o", color=colour, ms=7, zorder=3)
            right.plot(model.speedup["value"], row, "o", mfc=theme.card, mec=colour, mew=1.6, ms=7)
        left.axvline(baseline, color=theme.ink, lw=1, ls=(0, (2, 3)))
        right.axvline(1, color=theme.soft, lw=1, ls=(0, (2, 3)))
        left.set_yticks(range(len(found)), [model.label for model in found], color=theme.ink)
        left.set(title="Text tokens (dashed: sequential)", ylim=(len(found) - 0.4, -0.6))
        right.set_title("Speed-up, lengths matched (hollow: not)")
        right.xaxis.set_major_formatter(TIMES)
        for axes in (left, right):
            axes.grid(visible=False, axis="y")
            axes.tick_params(axis="y", length=0)
        return figure

    return draw
