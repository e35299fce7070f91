"""Models by speed and quality, as `evals.frontier` measured them, and the report of a recipe's run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pasta_async.errors import InvalidRequestError
from pasta_async.evals.report.page import Plot, Rows, Section
from pasta_async.evals.report.plots import Point, quality_by_speed
from pasta_async.evals.report.results import origin
from pasta_async.evals.statistics import format_estimate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pasta_async.evals.statistics import Estimate

__all__ = ["BEST_RULE", "Model", "best", "dominated_by", "frontier_sections", "run_sections"]

BEST_RULE = (
    "The best point is the model with the highest theoretical speed-up among those whose score is not below "
    "the sequential baseline's beyond the 95% interval of the difference (or, if there is none, the one with "
    "the highest score). Models that learned from clean annotations or from structure alone cannot be it."
)
"""How `best` chooses, in words."""

_LENGTHS = (
    "Shorter answers look faster. The length-matched speed-up compares with a sequential answer of the same "
    "text: its tokens (and the one that ends it) / the critical path."
)
_AXES = (
    ("frontier", "theoretical", "theoretical speed-up"),
    ("frontier-length-matched", "length_matched", "length-matched theoretical speed-up"),
    ("frontier-wall-clock", "wall_clock", "speed-up by wall clock"),
)


@dataclass(frozen=True, slots=True)
class Model:
    """A model with its result."""

    label: str
    """In tables, and at its point unless `mark` is."""
    result: dict[str, Any]
    """As evals.frontier wrote it."""
    mark: str = ""
    group: str = ""
    """Models of one group have one colour: `round 2`."""
    candidate: bool = False
    """Whether it may be the best point."""

    @property
    def score(self) -> Estimate:
        """Percent."""
        return self.result["all"]["score"]

    @property
    def difference(self) -> Estimate:
        """Of its score to the baseline's, in points."""
        return self.result["all"]["difference"]

    @property
    def speedups(self) -> dict[str, Estimate | None]:
        """Theoretical, length-matched, and by wall clock, if anything was timed."""
        own, timed = self.result["all"], self.result.get("wall_clock")
        return {
            "theoretical": own["theoretical_speedup"],
            "length_matched": own["length_matched_speedup"],
            "wall_clock": timed and timed["speedup"],
        }

    @property
    def place(self) -> tuple[float, float]:
        """Theoretical speed-up, and score."""
        return self.result["all"]["theoretical_speedup"]["value"], self.score["value"]


def best(found: Sequence[Model]) -> Model | None:
    """The best point by `BEST_RULE`; None if no model is a candidate."""
    candidates = [model for model in found if model.candidate]
    as_good = [model for model in candidates if model.difference["high"] >= 0]
    if as_good:
        return max(as_good, key=lambda model: model.place[0])
    return max(candidates, key=lambda model: model.score["value"], default=None)


def dominated_by(model: Model, found: Sequence[Model]) -> list[Model]:
    """Those that are at least as good and as fast as a model, and better in one of both."""
    fast, good = model.place
    return [
        one for one in found if one.place[0] >= fast and one.place[1] >= good and one.place != model.place
    ]


def frontier_sections(found: Sequence[Model]) -> list[Section]:
    """Score against speed-up, and what each family of prompts is answered like.

    Args:
        found: The models, group by group; all were compared with the same sequential answers.
    """
    baseline = found[0].result["all"]["baseline"]
    same = all(model.result["all"]["baseline"] == baseline for model in found)
    section = Section("Score against speed-up", [*_summary(found, baseline), _LENGTHS])
    for name, key, axis in _AXES:
        named = [(one, speedup) for one in found if (speedup := one.speedups[key])]
        if not named:
            continue
        points = [Point(one.mark or one.label, speedup, one.score, group=one.group) for one, speedup in named]
        described = "; ".join(
            f"{one.label}: {format_estimate(speedup, '.2f')}, {format_estimate(one.score)}%"
            for one, speedup in named
        )
        quality = "score, % of the facts right"
        drawn = quality_by_speed(
            points, speed=axis, quality=quality, baseline=baseline["score"] if same else None
        )
        section.plots.append(Plot(name, described, drawn))
    rows = [_row("sequential baseline", baseline)] if same else []
    rows += [_row(model.label, model.result["all"], model) for model in found]
    section.tables.append(("95% intervals in brackets", rows))
    if any(model.candidate for model in found):
        section.tables.append(("Models of stage 1 that one of stage 2 beats in both", [*_beaten(found)]))
    return [section, _families(found)]


def _summary(found: Sequence[Model], baseline: dict[str, Any]) -> Iterator[str]:
    if chosen := best(found):
        yield (
            f"The sequential baseline's score is {format_estimate(baseline['score'])}%. {BEST_RULE} It is "
            f"{chosen.label}: speed-up {format_estimate(chosen.speedups['theoretical'], '.2f')}, score "
            f"{format_estimate(chosen.score)}%, {format_estimate(chosen.difference, '+.1f')} points from the "
            "baseline's."
        )


def _row(label: str, own: dict[str, Any], model: Model | None = None) -> dict[str, Any]:
    speedups = model.speedups if model else {}
    return {
        "": label,
        "prompts": own["prompts"],
        "score %": format_estimate(own["score"]),
        "to the baseline": format_estimate(own.get("difference"), "+.1f"),
        "all right %": format_estimate(own["right"]),
        **{axis: format_estimate(speedups.get(key), ".2f") for _, key, axis in _AXES},
        "text tokens": own["text_tokens"],
        "promises": own["promises"],
        "malformed %": own["malformed"]["value"],
    }


def _beaten(found: Sequence[Model]) -> Iterator[dict[str, Any]]:
    """For each model of stage 1, those of stage 2 that are at least as good and as fast."""
    later = [model for model in found if model.group]
    for model in found:
        if not model.group:
            ahead = dominated_by(model, later)
            yield {"": model.label, "beaten by": "; ".join(other.label for other in ahead) or "none"}


def _families(found: Sequence[Model]) -> Section:
    text = "Which prompts are answered in parallel is what stage 2 can learn beside how long answers are."
    kinds = {
        "Answers with a promise, %": ("parallel", ".0f"),
        "Answers with a sync, %": ("synced", ".0f"),
        "Score, %": ("score", ".1f"),
        "Theoretical speed-up": ("theoretical_speedup", ".2f"),
    }
    tables: list[tuple[str, Rows]] = []
    for caption, (name, form) in kinds.items():
        rows = [
            {"": model.label, **{f: format_estimate(own[name], form) for f, own in families.items()}}
            for model in found
            for families in [model.result["by_family"]]
        ]
        tables.append((caption, rows))
    return Section("By family of prompts", [text], [], tables)


def run_sections(run: Path) -> tuple[str, list[Section]]:
    """The title and the sections of a recipe's run, from what was measured so far; none if nothing was.

    Args:
        run: The folder of a run of `training.run`.

    Raises:
        InvalidRequestError: It is none.
    """
    try:
        plan = json.loads((run / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"{run} is not the folder of a run: {error}") from error
    states = {name: _read(run / "steps" / f"{name}.json") for name in plan["steps"]}
    done = {name for name, state in states.items() if state.get("finished")}
    names = [model["name"] for model in plan["models"] if f"evaluation/{model['name']}" in done]
    results = {name: _read(run / "evaluation" / name / "result.json") for name in names}
    found = [_model(name, result, plan["start"]) for name, result in results.items()]
    if not found:
        return plan["title"], []
    minutes = {name: state.get("seconds", 0.0) / 60 for name, state in states.items()}
    measured = [{"": one.label, **origin(one.result, one.result["environment"])} for one in found]
    source = Section("Where this comes from", tables=[("Measured", measured)])
    return plan["title"], [*frontier_sections(found), _times(plan["steps"], minutes, done), source]


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _model(name: str, result: dict[str, Any], start: str) -> Model:
    stage, _, short = name.partition("/")
    if stage == "stage1":
        return Model(f"stage 1: {short}", result, candidate=name == start)
    number, weight = stage.removeprefix("round"), short.removeprefix("lambda").replace("inf", "\N{INFINITY}")
    label = f"round {number}, \N{GREEK SMALL LETTER LAMDA} = {weight}"
    return Model(label, result, weight, f"round {number}", candidate=True)


def _times(steps: Mapping[str, Sequence[str]], minutes: Mapping[str, float], done: set[str]) -> Section:
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
    return Section("Time", ["Minutes of steps, one after another."], [], [("Steps", rows)])
