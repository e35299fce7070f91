"""Seconds to a whole answer, drawn: a bar for each method, a dot for each answer.

    python -m pasta_async.evals.figure --answers methods.jsonl --out seconds.svg

The file is one that `methods` or `speed` writes with --out. Bars are means over the prompts that every
method answered, with 95% intervals.
"""

# matplotlib leaves some of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from pydantic import Field

from pasta_async.cli.command import Command, CommandSettings, command
from pasta_async.evals.answers import Answer, in_all_methods, read_answers
from pasta_async.evals.report import digits, grouped
from pasta_async.evals.statistics import estimate

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
    """Options of the figure."""

    answers: Path = Field(description="file of answers")
    title: str = Field(default="", description="the model and the machine, for instance")
    out: Path = Field(description="picture: .svg, .png or .pdf")


def seconds_by_method(answers: Sequence[Answer]) -> dict[str, list[float]]:
    """Seconds of each method's answers, prompt by prompt in one order; passes of a prompt are averaged.

    A prompt of which a limit ended an answer is left out: nobody knows how long that would have taken.

    Raises:
        InvalidRequestError: No prompt has a whole answer by every method.
    """
    cut = {answer.prompt for answer in answers if answer.ended_by_length}
    whole = [answer for answer in answers if answer.prompt not in cut]
    methods = in_all_methods(whole, dict.fromkeys(answer.method for answer in answers))
    return {
        method: [
            fmean(row.seconds for row in rows)
            for rows in grouped(answered, lambda answer: answer.prompt).values()
        ]
        for method, answered in methods.items()
    }


def draw(seconds: Mapping[str, list[float]], title: str, out: Path) -> None:
    """Draw seconds by method, the slowest method on top."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    methods = sorted(seconds, key=lambda method: fmean(seconds[method]))
    figure = Figure(figsize=(8, 0.6 + 0.5 * len(methods)), layout="constrained")
    axes = figure.subplots()
    for row, method in enumerate(methods):
        mean = estimate(seconds[method], "arithmetic")
        axes.barh(row, mean["value"], color="#9ecae1")
        axes.plot(seconds[method], [row] * len(seconds[method]), ".", color="#08519c", alpha=0.35)
        if mean["low"] is not None and mean["high"] is not None:
            spread = [[mean["value"] - mean["low"]], [mean["high"] - mean["value"]]]
            axes.errorbar(mean["value"], row, xerr=spread, color="black", capsize=3)
    means = [f"{_LABELS.get(method, method)}\n{digits(fmean(seconds[method]))} s" for method in methods]
    axes.set_yticks(range(len(methods)), means)
    axes.set_xlabel(f"seconds to a whole answer, {len(seconds[methods[0]])} prompts")
    axes.set_title(title)
    axes.spines[["top", "right"]].set_visible(False)
    with rc_context({"svg.fonttype": "none"}):  # letters stay text, which can be searched
        figure.savefig(out)


def _run(settings: FigureSettings) -> str:
    _, answers = read_answers(settings.answers)
    draw(seconds_by_method(answers), settings.title, settings.out)
    return f"{settings.out} is drawn"


main: Command = command(FigureSettings, _run, "figure", __doc__)

if __name__ == "__main__":
    main()
