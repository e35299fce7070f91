"""Pictures: seconds to a whole answer, or the frontier of speed-up against quality. Intervals are 95%.

    python -m pasta_async.evals.figure --answers methods.jsonl --out seconds.svg
    python -m pasta_async.evals.figure --scores stage1.jsonl --scores round1.jsonl --out frontier.svg

--answers is a file that `methods` or `speed` writes with --out: a bar for each method, a dot for each answer.
Bars are means over the prompts that every method answered.

--scores are files of `pasta_async.training.score`, one for each model: a point for each, named as its file,
over the prompts to which each has an answer that no limit ended.
"""

# matplotlib leaves some of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Self

from pydantic import Field, model_validator

from pasta_async.cli.command import Command, CommandSettings, command
from pasta_async.errors import InvalidRequestError
from pasta_async.evals.answers import Answer, in_all_methods, read_answers
from pasta_async.evals.report import digits, grouped
from pasta_async.evals.statistics import Estimate, estimate
from pasta_async.training.samples import Score, read_scores

_LABELS = {
    "sequential": "in sequence",
    "baseline": "plain",
    "pasta": "PASTA",
    "parallel": "PASTA",
    "skeleton": "Skeleton-of-Thought",
    "apar": "APAR",
}
"""Names for readers; methods that are not here keep theirs."""


class FigureSettings(CommandSettings):
    """Options of a picture."""

    answers: Path | None = Field(default=None, description="file of answers: seconds")
    scores: tuple[Path, ...] = Field(default=(), description="files of scores: the frontier")
    title: str = Field(default="", description="the model and the machine, for instance")
    out: Path = Field(description="picture: .svg, .png or .pdf")

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if (self.answers is None) == (not self.scores):
            raise ValueError("name a file of answers, or files of scores: --answers or --scores")
        return self


def seconds_by_method(answers: Sequence[Answer]) -> dict[str, list[float]]:
    """Seconds of each method's answers, prompt by prompt in one order; passes of a prompt are averaged.

    A prompt of which a limit ended an answer is left out: nobody knows how long that would have taken.

    Raises:
        InvalidRequestError: No prompt has a whole answer by every method.
    """
    cut = {answer.prompt for answer in answers if answer.ended_by_length}
    whole = [answer for answer in answers if answer.prompt not in cut]
    methods = in_all_methods(whole, (answer.method for answer in answers))
    return {
        method: [
            fmean(row.seconds for row in rows)
            for rows in grouped(answered, lambda answer: answer.prompt).values()
        ]
        for method, answered in methods.items()
    }


def draw_seconds(seconds: Mapping[str, list[float]], axes: Any) -> None:
    """Draw seconds by method, the slowest method on top."""
    methods = sorted(seconds, key=lambda method: fmean(seconds[method]))
    for row, method in enumerate(methods):
        mean = estimate(seconds[method], "arithmetic")
        axes.barh(row, mean["value"], color="#9ecae1")
        axes.plot(seconds[method], [row] * len(seconds[method]), ".", color="#08519c", alpha=0.35)
        axes.errorbar(mean["value"], row, xerr=_spread(mean), color="black", capsize=3)
    means = [f"{_LABELS.get(method, method)}\n{digits(fmean(seconds[method]))} s" for method in methods]
    axes.set_yticks(range(len(methods)), means)
    axes.set_xlabel(f"seconds to a whole answer, {len(seconds[methods[0]])} prompts")


def frontier(paths: Sequence[Path]) -> tuple[int, dict[str, tuple[Estimate, Estimate]]]:
    """The number of prompts, and of each file of scores the mean speed-up and quality over them.

    They are the prompts to which every file has an answer that no limit ended.

    Raises:
        InvalidRequestError: A file cannot be read, two have one name, or no prompt has a whole answer in all.
    """
    models: dict[str, dict[str, list[Score]]] = {}  # by file, then by prompt
    for path in paths:
        if path.stem in models:
            raise InvalidRequestError(
                f"two files of scores have the name {path.stem}: points are named by it"
            )
        ended = [score for score in read_scores(path).values() if score.ended and score.speedup]
        models[path.stem] = grouped(ended, lambda score: score.id)
    common = [prompt for prompt in models[paths[0].stem] if all(prompt in rows for rows in models.values())]
    if not common:
        raise InvalidRequestError("no prompt has a whole answer in all files of scores")
    points: dict[str, tuple[Estimate, Estimate]] = {}
    for name, rows in models.items():
        scores = [score for prompt in common for score in rows[prompt]]
        clusters = [score.id for score in scores]
        points[name] = (
            estimate([score.speedup for score in scores], clusters=clusters),
            estimate([score.quality for score in scores], "arithmetic", clusters=clusters),
        )
    return len(common), points


def draw_frontier(prompts: int, points: Mapping[str, tuple[Estimate, Estimate]], axes: Any) -> None:
    """Draw a point for each model: quality by theoretical speed-up."""
    for name, (speedup, quality) in points.items():
        x, y = speedup["value"], quality["value"]
        axes.errorbar(x, y, xerr=_spread(speedup), yerr=_spread(quality), fmt="o", capsize=3, label=name)
    axes.set_xlabel(f"theoretical speed-up, {prompts} prompts")
    axes.set_ylabel("quality")
    axes.legend(frameon=False)  # names beside the points would cover each other


def _spread(mean: Estimate) -> list[list[float]] | None:
    """A mean's distances to the ends of its interval, as matplotlib takes them; None without an interval."""
    if mean["low"] is None or mean["high"] is None:
        return None
    return [[mean["value"] - mean["low"]], [mean["high"] - mean["value"]]]


def _run(settings: FigureSettings) -> str:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    axes = figure.subplots()
    if settings.answers:
        measured, answers = read_answers(settings.answers)
        if measured.get("benchmark", "speed") not in ("speed", "methods") or measured.get("together", 1) > 1:
            raise InvalidRequestError(
                f"{settings.answers} times no answers alone: draw a file of `methods`, or of `speed` without "
                "--together"
            )
        seconds = seconds_by_method(answers)
        figure.set_size_inches(8, 0.6 + 0.5 * len(seconds))
        draw_seconds(seconds, axes)
    else:
        figure.set_size_inches(8, 5)
        draw_frontier(*frontier(settings.scores), axes)
    axes.set_title(settings.title)
    axes.spines[["top", "right"]].set_visible(False)
    with rc_context({"svg.fonttype": "none"}):  # letters stay text, which can be searched
        figure.savefig(settings.out)
    return f"{settings.out} is drawn"


main: Command = command(FigureSettings, _run, "figure", __doc__)

if __name__ == "__main__":
    main()
