"""What a run of a recipe has measured so far: its models by speed and score, as tables and a plot.

    python -m pasta_async.evals.report runs/pasta-tiny

Writes `report.md` and `frontier.png`. Every other command prints its own tables.
"""

# matplotlib leaves many of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from pasta_async.cli.command import Command, CommandSettings, command
from pasta_async.evals.frontier import row
from pasta_async.evals.records import grouped, markdown_table, read_json
from pasta_async.training.statistics import Estimate, format_estimate, format_gain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_FAMILIES = {
    "Answers with a promise, %": ("parallel", ".0f"),
    "Answers with a sync, %": ("synced", ".0f"),
    "Score, %": ("score", ".1f"),
    "Theoretical speed-up": ("theoretical_speedup", ".2f"),
}


class ReportSettings(CommandSettings):
    """What is reported on."""

    run: Path = Field(description="folder of a run of pasta_async.training.run")
    out: Path | None = Field(default=None, description="folder to write; default: report, in the run's")
    margin: float = Field(default=2.0, ge=0, description="points that the best may score below the baseline")


@dataclass(frozen=True, slots=True)
class Model:
    """A model with its result of `evals.frontier`."""

    label: str
    result: dict[str, Any]
    group: str = ""
    """Models of one group have one colour: `round 2`."""
    candidate: bool = False
    """Whether it may be the best point."""

    @property
    def name(self) -> str:
        """Its group and its label."""
        return f"{self.group}, {self.label}" if self.group else self.label

    @property
    def figures(self) -> dict[str, Any]:
        """Of all prompts together."""
        return self.result["all"]

    @property
    def comparable(self) -> bool:
        """Whether it has a speed-up: not so where a limit ended every answer."""
        return self.figures["theoretical_speedup"] is not None

    @property
    def place(self) -> tuple[float, float]:
        """Theoretical speed-up, if it has one, and score."""
        return self.figures["theoretical_speedup"]["value"], self.figures["score"]["value"]


def best(found: Sequence[Model], margin: float) -> Model | None:
    """The candidate with the highest theoretical speed-up among those that are not worse than the baseline.

    That is: with 95% confidence, one-sided, its score is less than `margin` points below the baseline's. None
    if there is none.
    """
    able = [one for one in found if one.candidate and one.comparable]
    bounds = [(one, (one.figures["difference"] or {}).get("bound")) for one in able]
    as_good = [one for one, bound in bounds if bound is not None and bound >= -margin]
    return max(as_good, key=lambda one: one.place, default=None)


def unbeaten(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other one beats in both, from the slowest to the fastest."""
    kept: list[tuple[float, float]] = []
    for place in sorted(places, reverse=True):
        if not kept or place[1] > kept[-1][1]:
            kept.append(place)
    return kept[::-1]


def write_report(run: Path, folder: Path, margin: float) -> bool:
    """Write `report.md` and `frontier.png` of what a run has measured so far; for the margin see `best`.

    Returns:
        Whether there was anything to compare.

    Raises:
        InvalidRequestError: The folder is not that of a run.
    """
    plan = read_json(run / "run.json", "what a run consists of")
    paths = {name: run / "steps" / f"{name}.json" for name in plan["steps"]}
    found = {name: read_json(path, "the state of a step") for name, path in paths.items() if path.exists()}
    states = {name: found.get(name, {}) for name in paths}
    models = [
        _model(name, read_json(run / "evaluation" / name / "result.json", "a result"), plan["start"])
        for name in (model["name"] for model in plan["models"])
        if states[f"evaluation/{name}"].get("finished")
    ]
    if not models:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join([f"# {plan['title']}", *_scores(models, margin), "## Time", _times(states)])
    (folder / "report.md").write_text(text + "\n", encoding="utf-8")
    _draw([one for one in models if one.comparable], models[0].figures["baseline"], folder / "frontier.png")
    return True


def _model(name: str, result: dict[str, Any], start: str) -> Model:
    stage, _, short = name.partition("/")
    if stage == "stage1":
        return Model(f"stage 1: {short}", result, candidate=name == start)
    weight = short.removeprefix("lambda").replace("inf", "\N{INFINITY}")
    label = f"\N{GREEK SMALL LETTER LAMDA} = {weight}"
    return Model(label, result, f"round {stage.removeprefix('round')}", candidate=True)


def _scores(models: Sequence[Model], margin: float) -> list[str]:
    """The best point, the plot, and tables of all models and of their families."""
    baseline, chosen = models[0].figures["baseline"], best(models, margin)
    verdict = "There is no model that is not worse."
    if chosen:
        own = chosen.figures
        speedup, score = format_estimate(own["theoretical_speedup"], ".2f"), format_estimate(own["score"])
        verdict = (
            f"The best point is {chosen.name}: speed-up {speedup}, score {score}%, "
            f"{format_gain(own['difference'])} points from the baseline's."
        )
    rule = (
        "It is the fastest of the models whose score, with 95% confidence (one-sided), is not more than "
        f"{margin:g} points below the sequential baseline's. Models that learned from clean annotations or "
        "from structure alone cannot be it."
    )
    rows = [row("sequential baseline", baseline), *(row(one.name, one.figures) for one in models)]
    parts = [f"{verdict} {rule}", "![Score against theoretical speed-up](frontier.png)", markdown_table(rows)]
    for caption, (key, form) in _FAMILIES.items():
        families = [
            {"": one.name}
            | {name: format_estimate(own[key], form) for name, own in one.result["by_family"].items()}
            for one in models
        ]
        parts += [f"{caption}, by family of prompts:", markdown_table(families)]
    return parts


def _times(states: dict[str, dict[str, Any]]) -> str:
    """Minutes of each kind of step."""
    rows = list[dict[str, Any]]()
    for group in (*dict.fromkeys(name.partition("/")[0] for name in states), "all"):
        own = [state for name, state in states.items() if group in (name.partition("/")[0], "all")]
        done = sum(bool(state.get("finished")) for state in own)
        minutes = sum(state.get("seconds", 0.0) for state in own) / 60
        rows.append({"steps of": group, "steps": len(own), "done": done, "minutes": minutes})
    return markdown_table(rows)


def _draw(models: Sequence[Model], baseline: dict[str, Any], path: Path) -> None:
    """Every model with its intervals, a line through those of a round, and one through the unbeaten."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(fname=Path(__file__).with_name("report.mplstyle")):
        figure: Figure = Figure(figsize=(8.0, 4.9))
        axes = figure.subplots()
        axes.set(xlabel="theoretical speed-up", ylabel="score, %")
        sequential = 1.0, baseline["score"]["value"]
        frontier = unbeaten([sequential, *(one.place for one in models)])
        axes.plot(*zip(*frontier, strict=True), color="#655d4f", lw=4, alpha=0.25, label="frontier")
        axes.plot(*sequential, "s", color="#25211a")
        axes.annotate("sequential", sequential, (9, 7), textcoords="offset points")
        for number, own in enumerate(grouped(models, lambda one: one.group or one.name).values()):
            _draw_group(axes, own, f"C{number % 8}")
        axes.margins(x=0.16, y=0.16)
        axes.legend(loc="best")
        figure.savefig(path, dpi=160, metadata={"Software": None})  # the same plot gives the same bytes


def _draw_group(axes: Axes, models: Sequence[Model], colour: str) -> None:
    if models[0].group:
        line = zip(*(one.place for one in models), strict=True)
        axes.plot(*line, "-", color=colour, lw=1.4, label=models[0].group)
    for one in models:
        x, y = (_reach(one.figures[name]) for name in ("theoretical_speedup", "score"))
        axes.errorbar(*one.place, xerr=x, yerr=y, fmt="o", color=colour, lw=1.6, ms=8)
        axes.annotate(one.label, one.place, (9, 7), textcoords="offset points", fontsize=9.5)


def _reach(found: Estimate) -> list[list[float]]:
    """How far an interval reaches below and above its value; nowhere if there is none."""
    if found["low"] is None or found["high"] is None:
        return [[0.0], [0.0]]
    return [[found["value"] - found["low"]], [found["high"] - found["value"]]]


def _run(settings: ReportSettings) -> str:
    out = settings.out or settings.run / "report"
    if not write_report(settings.run, out, settings.margin):
        return "nothing to compare was measured yet"
    return f"{out / 'report.md'}, with its plot beside it"


main: Command = command(ReportSettings, _run, "report", __doc__, positional=("run",))

if __name__ == "__main__":
    main()
