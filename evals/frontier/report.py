"""The report of a recipe's run: `python -m pasta_async.evals.frontier.report RUN`.

Writes RUN/report from the models that were measured so far: speed-up against score, rounds, lengths, times.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from typing import TYPE_CHECKING, Any

from pydantic import Field

from pasta_async.cli.command import run_command
from pasta_async.errors import InvalidRequestError
from pasta_async.evals.commands import Settings
from pasta_async.evals.report import plots
from pasta_async.evals.report.page import Plot, Rows, Section, write_report
from pasta_async.evals.report.plots import Point
from pasta_async.evals.statistics import format_estimate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pasta_async.evals.statistics import Estimate

    Speedup = Callable[["Measured"], Estimate | None]

__all__ = ["BEST_RULE", "Measured", "ReportSettings", "best", "dominated_by", "main", "report", "sections"]

_GROUPS = {"maker": "clean annotations", "points": "structure alone", "details": "structure alone"}

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


_LENGTHS = (
    "Shorter answers look faster. The length-matched speed-up compares with a sequential answer of the same "
    "text: its tokens (and the one that ends it) / the critical path."
)


def sections(found: Sequence[Measured], baseline: dict[str, Any]) -> list[Section]:
    """The frontier, rounds, lengths, and what each family of prompts is answered like.

    Args:
        found: The models, group by group.
        baseline: The sequential model's result.
    """
    parts = [_frontier(found, baseline)]
    elected = [model for model in found if model.elected]
    if len(elected) > 1:
        parts.append(Section("What the rounds do", [], [_rounds(elected)]))
    return [*parts, _lengths(found, baseline), _families(found, baseline)]


def _frontier(found: Sequence[Measured], baseline: dict[str, Any]) -> Section:
    section = Section("Score against speed-up", [_summary(found, baseline)])
    kinds: list[tuple[str, str, Speedup]] = [
        ("frontier", "theoretical speed-up", lambda model: model.speedup),
        ("frontier-length-matched", "length-matched theoretical speed-up", lambda m: m.length_matched),
        ("frontier-wall-clock", "speed-up by wall clock", lambda model: model.wall_clock),
    ]
    for name, axis, speedup in kinds:
        points = [
            Point(m.short, speed, m.score, True, m.group, bool(m.round))
            for m in found
            if (speed := speedup(m))
        ]
        shown = [model for model in found if speedup(model)]
        if points:
            drawing = plots.quality_by_speed(
                points, speed=axis, quality="score, % of the facts right", baseline=baseline["all"]["score"]
            )
            section.plots.append(Plot(name, _described(shown, speedup), drawing))
    section.tables.append(("95% intervals in brackets", [_baseline_row(baseline), *map(_row, found)]))
    if beaten := [*_beaten(found)]:
        section.tables.append(("Who is beaten in both", beaten))
    return section


def _described(found: Sequence[Measured], speedup: Speedup) -> str:
    return "; ".join(
        f"{m.label}: {format_estimate(speedup(m), '.2f')}, {format_estimate(m.score)}%" for m in found
    )


def _summary(found: Sequence[Measured], baseline: dict[str, Any]) -> str:
    chosen = best(found)
    text = f"The sequential baseline's score is {format_estimate(baseline['all']['score'])}%. {BEST_RULE}"
    if chosen is None:
        return text
    return (
        f"{text} It is {chosen.label} ({chosen.name}): speed-up {format_estimate(chosen.speedup, '.2f')}, "
        f"score {format_estimate(chosen.score)}%, {format_estimate(chosen.difference, '+.1f')} points from "
        "the baseline's."
    )


def _rounds(elected: Sequence[Measured]) -> Plot:
    """A path for each weight of quality, from the model of stage 1 on."""
    weights = dict.fromkeys(model.short for model in elected if model.round)
    paths = [
        (
            f"\N{GREEK SMALL LETTER LAMDA} = {weight}",
            [
                (model.round, model.speedup["value"], model.score["value"])
                for model in elected
                if not model.round or model.short == weight
            ],
        )
        for weight in weights
    ]
    return Plot("rounds", _described(elected, lambda model: model.speedup), plots.rounds(paths))


def _row(model: Measured) -> dict[str, Any]:
    own = model.result["all"]
    return {
        "": model.label,
        "score %": format_estimate(model.score),
        "to the baseline": format_estimate(model.difference, "+.1f"),
        "all right %": format_estimate(own["right"]),
        "theoretical speed-up": format_estimate(model.speedup, ".2f"),
        "length-matched": format_estimate(model.length_matched, ".2f"),
        "wall clock": format_estimate(model.wall_clock, ".2f"),
        "text tokens": own["text_tokens"],
        "promises": own["promises"],
        "malformed %": own["malformed"]["value"],
    }


def _baseline_row(baseline: dict[str, Any]) -> dict[str, Any]:
    own = baseline["all"]
    return {
        "": "sequential baseline",
        "score %": format_estimate(own["score"]),
        "to the baseline": "-",
        "all right %": format_estimate(own["right"]),
        "theoretical speed-up": "1",
        "length-matched": "1",
        "wall clock": "1",
        "text tokens": own["text_tokens"],
        "promises": 0.0,
        "malformed %": own["malformed"]["value"],
    }


def _beaten(found: Sequence[Measured]) -> Iterator[dict[str, Any]]:
    """For each model of stage 1, those of stage 2 that are at least as good and as fast."""
    later = [model for model in found if model.round]
    for model in found:
        if not model.round:
            ahead = dominated_by(model, later)
            yield {"": model.label, "beaten by": "; ".join(other.label for other in ahead) or "none"}


def _lengths(found: Sequence[Measured], baseline: dict[str, Any]) -> Section:
    own = baseline["all"]["text_tokens"]
    groups = list(dict.fromkeys(model.group for model in found))
    bars = [
        (m.label, m.result["all"]["text_tokens"], m.length_matched, m.speedup["value"], groups.index(m.group))
        for m in found
    ]
    description = "; ".join(f"{label}: {tokens:.1f} tokens" for label, tokens, *_ in bars)
    plot = Plot("lengths", f"sequential: {own:.1f}; {description}", plots.bars_of_length(bars, own))
    return Section("Lengths", [_LENGTHS], [plot])


def _families(found: Sequence[Measured], baseline: dict[str, Any]) -> Section:
    text = "Which prompts are answered in parallel is what stage 2 can learn beside how long answers are."
    section = Section("By family of prompts", [text])

    def rows(name: str, form: str, models: Sequence[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
        return [
            {"": label, **{f: format(own[name]["value"], form) for f, own in result["by_family"].items()}}
            for label, result in models
        ]

    models = [(model.label, model.result) for model in found]
    every = [("sequential baseline", baseline), *models]
    section.tables += [
        ("Answers with a promise, %", rows("parallel", ".0f", models)),
        ("Answers with a sync, %", rows("synced", ".0f", models)),
        ("Score, %", rows("score", ".1f", every)),
        ("Theoretical speed-up", rows("theoretical_speedup", ".2f", models)),
    ]
    return section


class ReportSettings(Settings):
    """What to report on."""

    run: Path = Field(description="folder of a run of training.run")


def report(settings: ReportSettings) -> None:
    """Write the report of a run, if its baseline and another model were measured.

    Raises:
        InvalidRequestError: The folder is none of a run.
    """
    run = settings.run
    try:
        plan = json.loads((run / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"{run} is not the folder of a run: {error}") from error
    states = {name: _read(run / "steps" / f"{name}.json") for name in plan["steps"]}
    done = {name for name, state in states.items() if state.get("finished")}
    results = {
        name.removeprefix("evaluation/"): _read(run / name / "result.json")
        for name in done
        if name.startswith("evaluation/")
    }
    baseline, found = results.get(plan["baseline"]), _measured(plan, results)
    if baseline is None or not found:
        print("nothing to compare was measured yet")
        return
    minutes = {name: state.get("seconds", 0.0) / 60 for name, state in states.items()}
    parts = [*sections(found, baseline), _times(plan, minutes, done), _origin(baseline, found)]
    write_report(run / "report", parts, title=plan["title"])
    print(f"{run / 'report' / 'index.html'}, with its plots and tables.md beside it")


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _measured(plan: Mapping[str, Any], results: Mapping[str, dict[str, Any]]) -> list[Measured]:
    """The models but the baseline that were measured, group by group."""
    found: list[Measured] = []
    for model in plan["models"]:
        name = str(model["name"])
        stage, _, short = name.partition("/")
        if (result := results.get(name)) is None:
            continue
        if stage == "stage1":
            group = _GROUPS.get(model["annotator"], "stage 1")
            found.append(Measured(name, group, f"stage 1: {short}", result, name == plan["start"]))
        else:
            number = int(stage.removeprefix("round"))
            weight = short.removeprefix("lambda").replace("inf", "\N{INFINITY}")
            found.append(Measured(name, f"round {number}", weight, result, True, number))
    order = list(dict.fromkeys(model.group for model in found))
    return sorted(found, key=lambda model: order.index(model.group))


def _times(plan: Mapping[str, Any], minutes: Mapping[str, float], done: set[str]) -> Section:
    steps: Mapping[str, list[str]] = plan["steps"]
    groups: dict[str, list[str]] = {}
    for name in steps:
        groups.setdefault(name.partition("/")[0], []).append(name)
    rows: Rows = [
        {
            "": group,
            "steps": len(names),
            "done": len(done.intersection(names)),
            "minutes": sum(minutes[name] for name in names),
        }
        for group, names in {**groups, "all": [*steps]}.items()
    ]
    models = [name for name in (model["name"] for model in plan["models"]) if name in done]
    paths = [{"model": name, "minutes": sum(minutes[one] for one in _path(steps, [name]))} for name in models]
    section = Section("Time", ["Minutes of steps, one after another."], [], [("Steps", rows)])
    if paths:
        section.tables.append(("From the start to one model, all that it needs", paths))
    return section


def _path(steps: Mapping[str, Sequence[str]], names: Iterable[str]) -> set[str]:
    """Steps and all that they need."""
    own = set(names)
    return own | {one for name in own for one in _path(steps, steps[name])}


def _origin(baseline: dict[str, Any], found: Sequence[Measured]) -> Section:
    named = [("sequential baseline", baseline), *((model.label, model.result) for model in found)]
    rows = [
        {
            "": label,
            "backend": result["backend"],
            "prompts": result["all"]["prompts"],
            "when": result["environment"]["time"],
            "processor": result["environment"]["cpu"],
            "cores": result["environment"]["cores"],
            "load before": result["environment"]["load"],
        }
        for label, result in named
    ]
    return Section("Where this comes from", [], [], [("Measured", rows)])


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    run_command(
        ReportSettings,
        report,
        program="pasta_async.evals.frontier.report",
        description=__doc__,
        positional=("run",),
        arguments=arguments,
    )


if __name__ == "__main__":
    main()
