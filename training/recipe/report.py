"""The report of a run: what its models came to, and how long everything took."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pasta_async.training.recipe.plan import weight_name
from pasta_async.training.recipe.schema import BASELINE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pasta_async.evals.frontier.models import Measured
    from pasta_async.evals.report.sections import Section
    from pasta_async.training.recipe.ledger import Ledger
    from pasta_async.training.recipe.plan import Plan
    from pasta_async.training.recipe.step import Step

__all__ = ["minutes", "write_run_report"]


def write_run_report(plan: Plan, ledger: Ledger) -> Path | None:
    """Write OUT/report from the evaluations that are done; None if there is nothing to compare yet."""
    from pasta_async.evals.frontier.sections import sections  # draws, so it takes its time
    from pasta_async.evals.report.page import write_report

    results = dict(_results(plan, ledger))
    baseline = results.get(f"stage1/{BASELINE}")
    found = _measured(plan, results)
    if baseline is None or not found:
        return None
    folder = plan.out / "report"
    parts = [*sections(found, baseline), _times(plan, ledger), _origin(baseline, found)]
    write_report(folder, parts, {}, title=plan.recipe.title or plan.out.name)
    return folder


def minutes(steps: Sequence[Step], ledger: Ledger) -> float:
    """Wall time of steps so far, over all their starts."""
    return sum(done.seconds for step in steps if (done := ledger.read(step))) / 60


def _results(plan: Plan, ledger: Ledger) -> Iterator[tuple[str, dict[str, Any]]]:
    for step in plan.steps:
        kind, _, model = step.name.partition("/")
        if kind == "evaluation" and ledger.finished(step):
            yield model, json.loads(step.result.read_text(encoding="utf-8"))


def _measured(plan: Plan, results: dict[str, dict[str, Any]]) -> list[Measured]:
    from pasta_async.evals.frontier.models import Measured

    groups = {"maker": "clean annotations", "points": "structure alone", "details": "structure alone"}
    found: list[Measured] = []
    for name, variant in plan.recipe.stage1.variants.items():
        if (result := results.get(f"stage1/{name}")) is not None:
            group = groups.get(variant.annotator, "stage 1")
            elected = name == plan.compared
            found.append(Measured(f"stage1/{name}", group, f"stage 1: {name}", result, elected))
    stage2 = plan.recipe.stage2
    for number in range(1, stage2.rounds + 1 if stage2 else 1):
        for weight in stage2.quality_weights if stage2 else ():
            name = f"round{number}/{weight_name(weight)}"
            if (result := results.get(name)) is not None:
                short = f"{weight:g}".replace("inf", "\N{INFINITY}")
                found.append(Measured(name, f"round {number}", short, result, True, number))
    order = list(dict.fromkeys(model.group for model in found))
    return sorted(found, key=lambda model: order.index(model.group))


def _times(plan: Plan, ledger: Ledger) -> Section:
    from pasta_async.evals.report.sections import Section
    from pasta_async.training.recipe.plan import needed

    groups: dict[str, list[Step]] = {}
    for step in plan.steps:
        groups.setdefault(step.name.partition("/")[0], []).append(step)
    rows = [
        {
            "": name,
            "steps": len(own),
            "done": sum(map(ledger.finished, own)),
            "minutes": minutes(own, ledger),
        }
        for name, own in {**groups, "all": plan.steps}.items()
    ]
    paths = [
        {"model": model.name, "minutes": minutes(needed(plan.steps, [model.name]), ledger)}
        for model in plan.models
        if ledger.finished(model)
    ]
    words = (
        f"The whole run took {ledger.seconds / 60:.0f} minutes of wall time, over all its starts. "
        "Steps that ran beside others took longer than alone."
    )
    section = Section("Time", [words], [], [("Steps", rows)])
    if paths:
        section.tables.append(("From the start to one model, all that it needs", paths))
    return section


def _origin(baseline: dict[str, Any], found: Sequence[Measured]) -> Section:
    from pasta_async.evals.report.sections import Section

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
