"""The report of a recipe's run: `python -m pasta_async.evals.frontier.report RUN`.

Writes RUN/report from the models that were measured so far: speed-up against score, rounds, lengths, times.
"""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from pasta_async.cli.command import run_command
from pasta_async.errors import InvalidRequestError
from pasta_async.evals.frontier.models import Measured
from pasta_async.evals.frontier.sections import sections
from pasta_async.evals.report.page import write_report
from pasta_async.evals.report.sections import Section

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["ReportSettings", "main", "report"]

_GROUPS = {"maker": "clean annotations", "points": "structure alone", "details": "structure alone"}


class ReportSettings(BaseModel):
    """What to report on."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

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
        raise InvalidRequestError(f"{run} is no folder of a run: {error}") from error
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
    write_report(run / "report", parts, {}, title=plan["title"])
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
    rows: list[dict[str, Any]] = [
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
