"""One report from results: quality against speed-up, what the instruments found, load curves.

    python -m pasta_async.evals.report results/alpaca/result.json speed.jsonl --out report
    python -m pasta_async.evals.report "lambda 8=8/result.json" "lambda 8=8/speed.jsonl" chat=2/result.json
    python -m pasta_async.evals.report runs/tiny

Takes results of alpaca, frontier, faults, likelihood, ifeval, judge, speed and load. Those with the same
label are of the same model: one gives the quality, `speed` the wall clock. Or takes the folder of a run of
training.run, and compares the models that were measured so far.
Writes `report.md` and its plots as PNG files. What it says is in `evaluation.md`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from pydantic import Field

from pasta_async.cli.command import Command, CommandSettings, command
from pasta_async.evals import load
from pasta_async.evals.alpaca import tables as alpaca_tables
from pasta_async.evals.frontier import row
from pasta_async.evals.instruments import table
from pasta_async.evals.records import markdown_table
from pasta_async.evals.report import plots
from pasta_async.evals.report.plots import Point
from pasta_async.evals.report.results import best, read_results, read_run
from pasta_async.training.statistics import format_estimate, format_gain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.figure import Figure

    from pasta_async.evals.report.results import Model, Results
    from pasta_async.training.statistics import Estimate

__all__ = ["ReportSettings", "main", "write_report"]

_FAMILIES = {
    "Answers with a promise, %": ("parallel", ".0f"),
    "Answers with a sync, %": ("synced", ".0f"),
    "Score, %": ("score", ".1f"),
    "Theoretical speed-up": ("theoretical_speedup", ".2f"),
}

_Plots = dict[str, "Figure"]


class ReportSettings(CommandSettings):
    """What is reported on."""

    results: tuple[str, ...] = Field(
        description="files of results, PATH or LABEL=PATH; or the folder of a run"
    )
    out: Path | None = Field(
        default=None, description="the folder that is written; without it, report, in a run's folder its own"
    )
    target: float | None = Field(default=None, gt=0, description="latency target of the goodput, in seconds")
    margin: float = Field(
        default=2.0, ge=0, description="points by which the best model's score may be below the baseline's"
    )


def write_report(results: Results, folder: Path, target: float | None = None, margin: float = 2.0) -> None:
    """Write `report.md` and a PNG file for each plot.

    Args:
        results: What was read.
        folder: Is made if need be; files of the same names are written over.
        target: The latency target of goodput in seconds; None: twice the unloaded median in sequence.
        margin: Points by which the score of the best model may be below the baseline's.
    """
    drawn: _Plots = {}
    shown: dict[str, Any] = {"results": results, "plots": drawn, "margin": margin}
    shown["instruments"] = {
        label: table(own, ".3f" if own["benchmark"] == "likelihood" else ".1f")
        for label, own in results.instruments.items()
    }
    if results.alpaca:
        shown["alpaca"] = _alpaca(results, drawn)
    if results.models:
        shown |= _frontier(results, margin, drawn)
    shown["loads"] = [_load(label, blocks, target, drawn) for label, blocks in results.loads.items()]
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    filters: dict[str, Any] = environment.filters
    filters |= {"table": markdown_table, "estimate": format_estimate, "gain": format_gain}
    template = Path(__file__).with_name("evaluation.md").read_text(encoding="utf-8")
    text = environment.from_string(template).render(shown)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.md").write_text(re.sub(r"\n{3,}", "\n\n", text).strip() + "\n", encoding="utf-8")
    for name, figure in drawn.items():
        plots.save(figure, folder / f"{name}.png")


def _alpaca(results: Results, drawn: _Plots) -> dict[str, Any]:
    """AlpacaEval's results side by side; wall clock where something of that label was timed."""
    found, clocks = results.alpaca, results.clocks
    controlled = all("value" in result["length_controlled_win_rate"] for result in found.values())
    rate = "length_controlled_win_rate" if controlled else "win_rate"
    drawn["quality-by-speed"] = plots.quality_by_speed(
        [
            Point(label, clocks.get(label) or one["theoretical_speedup"], one[rate], label in clocks)
            for label, one in found.items()
        ],
        quality="win rate against sequential, %" + ", lengths controlled" * controlled,
        baseline=plots.exactly(50),
        published=plots.PUBLISHED,
    )
    every, sources = list[dict[str, Any]](), dict[str, dict[str, Any]]()
    for label, result in found.items():
        (whole,), by_source = alpaca_tables(result)
        every.append({"": label, **whole, "wall clock": format_estimate(clocks.get(label), ".2f")})
        for one in by_source:
            source = {"source": one["source"], "prompts": one["prompts"], **dict.fromkeys(found, "-")}
            sources.setdefault(one["source"], source)[label] = one["win rate %"]
    return {"all": every, "sources": [*sources.values()]}


def _frontier(results: Results, margin: float, drawn: _Plots) -> dict[str, Any]:
    """Models by speed and score, group by group."""
    models = results.models
    baseline = models[0].figures["baseline"]
    same = all(model.figures["baseline"] == baseline for model in models)
    axes: dict[str, tuple[str, Callable[[Model], Estimate | None]]] = {
        "frontier": ("theoretical speed-up", lambda one: one.figures["theoretical_speedup"]),
        "frontier-length-matched": (
            "length-matched theoretical speed-up",
            lambda one: one.figures["length_matched_speedup"],
        ),
        "frontier-wall-clock": ("speed-up by wall clock", results.clock),
    }
    for name, (axis, speedup) in axes.items():
        found = [(model, speedup(model)) for model in models]
        points = [
            Point(one.label, fast, one.figures["score"], group=one.group) for one, fast in found if fast
        ]
        if points:
            drawn[name] = plots.quality_by_speed(
                points, speed=axis, quality="score, %", baseline=baseline["score"] if same else None
            )
    rows = [row("sequential baseline", baseline, **{"wall clock": "-"})] if same else []
    for model in models:
        clock = format_estimate(results.clock(model), ".2f")
        rows.append(row(model.name, model.figures, **{"wall clock": clock}))
    families = {
        caption: [
            {"": model.name}
            | {name: format_estimate(own[key], form) for name, own in model.result["by_family"].items()}
            for model in models
        ]
        for caption, (key, form) in _FAMILIES.items()
    }
    return {"frontier": rows, "baseline": baseline, "best": best(models, margin), "families": families}


def _load(label: str, blocks: Sequence[load.Block], target: float | None, drawn: _Plots) -> dict[str, Any]:
    target = target or load.default_target(blocks)
    found = load.figures(blocks, target)
    file = "load-" + re.sub(r"\W+", "-", label.lower()).strip("-")
    for mode in load.UNITS:
        if own := [one for one in found if one.mode == mode]:
            drawn[f"{file}-{mode}"] = plots.load_curves(own)
    return {"label": label, "file": file, "target": f"{target:.3g} s", "rows": load.summarise(found)}


def _run(settings: ReportSettings) -> str:
    folder = Path(settings.results[0])
    of_a_run = folder.is_dir() and len(settings.results) == 1
    results = read_run(folder) if of_a_run else read_results(settings.results)
    if not results.sources:
        return "nothing to compare was measured yet"
    out = settings.out or (folder / "report" if of_a_run else Path("report"))
    write_report(results, out, settings.target, settings.margin)
    return f"{out / 'report.md'}, with its plots beside it"


main: Command = command(ReportSettings, _run, "report", __doc__, positional=("results",))

if __name__ == "__main__":
    main()
