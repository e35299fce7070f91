"""One page from results: quality against speed-up, realised against theoretical, load, tables.

    python -m pasta_async.evals.report results/alpaca/result.json speed.jsonl --out report
    python -m pasta_async.evals.report "lambda 8=8/result.json" "lambda 8=8/speed.jsonl" chat=2/result.json
    python -m pasta_async.evals.report runs/tiny

Takes what pasta_async.evals.alpaca, frontier, speed, methods and load wrote. Results with the same label are
of the same model: one gives the quality, the other the speed. Or takes the folder of a run of training.run,
and compares the models that were measured so far.
Writes `index.html`, which needs nothing else, its plots as PNG files, its tables as `tables.md`.
"""

from __future__ import annotations

from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from pydantic import Field

from pasta_async.cli.command import Command, command
from pasta_async.evals import load, speed
from pasta_async.evals.alpaca import tables as alpaca_tables
from pasta_async.evals.commands import Settings
from pasta_async.evals.methods.__main__ import summarise as method_rows
from pasta_async.evals.report import plots
from pasta_async.evals.report.models import Model, frontier_sections, run_sections
from pasta_async.evals.report.page import Plot, Rows, Section, slug, write_report
from pasta_async.evals.report.results import Results, read_results, spreads
from pasta_async.evals.statistics import format_estimate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.evals.report.plots import Spread

__all__ = ["ReportSettings", "main", "sections"]

_PAPER = (
    "The paper's end points are published figures of another model (Gemma 7B, finetuned), judge (GPT-4), "
    "engine and machine (one H100): they show the range that was reached there, and are not comparable point "
    "by point."
)


def sections(results: Results, *, target: float | None = None) -> list[Section]:
    """All that the results give rise to.

    Args:
        results: What was read.
        target: The latency target of goodput in seconds; None: twice the unloaded median in sequence.
    """
    timed = spreads(results)
    models = [Model(label, _with_wall_clock(label, one, timed)) for label, one in results.frontier.items()]
    return [
        *([_alpaca(results, timed)] if results.alpaca else []),
        *(frontier_sections(models) if models else []),
        *([_realised(results, timed)] if timed else []),
        *(_load(label, blocks, target) for label, blocks in results.load.items()),
        Section("Where this comes from", tables=[("Files", results.sources)]),
    ]


def _with_wall_clock(label: str, result: dict[str, Any], timed: Sequence[Spread]) -> dict[str, Any]:
    """A result of `frontier` with what `speed` timed under the same label."""
    found = [spread.speedup for spread in timed if spread.label == label]
    return {**result, "wall_clock": {"speedup": found[0]}} if found else result


def _alpaca(results: Results, timed: Sequence[Spread]) -> Section:
    """AlpacaEval's results side by side; speed-ups are wall clock where something of that label was timed."""
    clocks = {spread.label: spread.speedup for spread in timed}
    controlled = all("value" in result["length_controlled_win_rate"] for result in results.alpaca.values())
    points: list[plots.Point] = []
    wholes: Rows = []
    sources: dict[str, dict[str, Any]] = {}
    for label, result in results.alpaca.items():
        win_rate = result["length_controlled_win_rate" if controlled else "win_rate"]
        speedup = clocks.get(label) or result["theoretical_speedup"]
        points.append(plots.Point(label, speedup, win_rate, label in clocks))
        (whole,), by_source = alpaca_tables(result)
        timing = format_estimate(clocks.get(label), ".2f")
        wholes.append({"": label, **whole, "wall clock": timing})
        for row in by_source:
            known = sources.setdefault(row["source"], {"source": row["source"], "prompts": row["prompts"]})
            known[label] = row["win rate %"]
    drawing = plots.quality_by_speed(
        points,
        quality="win rate against sequential, %" + ", lengths controlled" * controlled,
        baseline=plots.exactly(50),
        published=plots.PUBLISHED,
    )
    described = "; ".join(
        f"{one.label}: {format_estimate(one.speedup, '.2f')}, {format_estimate(one.quality)}"
        for one in points
    )
    return Section(
        "Quality against speed: AlpacaEval",
        [
            "50% is as good as the sequential answer of the same model.",
            _PAPER,
            *dict.fromkeys(map(_how, results.alpaca.values())),
        ],
        [Plot("quality-by-speed", described, drawing)],
        [("All prompts, 95% intervals", wholes), ("Win rate in % by source", [*sources.values()])],
    )


def _how(result: dict[str, Any]) -> str:
    """How something was judged."""
    official = "AlpacaEval's 805" if result["prompts"]["official"] else "not AlpacaEval's own"
    return (
        f"Judged by {result['judge']['model']} through alpaca-eval {result['versions']['alpaca_eval']}; "
        f"reference: the same model's sequential answers; prompts: {official}. "
        f"Lengths controlled by {result['length_control']}. {result['why_this_length_control']}."
    )


def _realised(results: Results, timed: Sequence[Spread]) -> Section:
    described = "; ".join(
        f"{one.label}: {format_estimate(one.speedup, '.2f')} of {geometric_mean(one.theoretical):.2f}"
        for one in timed
    )
    return Section(
        "Realised against theoretical speed-up",
        [
            "Theoretical: the baseline's tokens / the critical path, tags counted. What is missing to the "
            "diagonal is what forks, joins and larger batches cost on that engine and machine."
        ],
        [Plot("realised", described, plots.realised(timed))],
        [
            *((f"Speed: {label}", speed.summarise(runs)) for label, runs in results.speed.items()),
            *((f"Methods: {label}", method_rows(rows)) for label, rows in results.methods.items()),
        ],
    )


def _load(label: str, blocks: Sequence[load.Block], target: float | None) -> Section:
    target = target or load.default_target(blocks)
    found = load.figures(blocks, target)
    section = Section(f"Under load: {label}", [f"Latency target of the goodput: {target:.3g} s."])
    names = [name for name in dict.fromkeys(one.method for one in found) if name != load.BASE]
    section.texts += [f"{load.describe_break_even(found, name)}." for name in names]
    for mode, _ in load.UNITS:
        if own := [one for one in found if one.mode == mode]:
            name, described = f"load-{slug(label)}-{mode}", " ".join(section.texts)
            section.plots.append(Plot(name, described, plots.load_curves(own)))
    section.tables.append(("Every load", load.summarise(found)))
    return section


class ReportSettings(Settings):
    """What is reported on."""

    results: tuple[str, ...] = Field(
        description="files of results, PATH or LABEL=PATH; or the folder of a run"
    )
    out: Path | None = Field(
        default=None, description="the folder that is written; without it, report, in a run's folder its own"
    )
    title: str | None = Field(default=None, description="of the page")
    target: float | None = Field(default=None, gt=0, description="latency target of the goodput, in seconds")


def _run(settings: ReportSettings) -> None:
    folder = Path(settings.results[0])
    if folder.is_dir() and len(settings.results) == 1:
        title, found = run_sections(folder)
        out = settings.out or folder / "report"
    else:
        title = "Parallel decoding, measured"
        found = sections(read_results(settings.results), target=settings.target)
        out = settings.out or Path("report")
    if not found:
        print("nothing to compare was measured yet")
        return
    write_report(out, found, title=settings.title or title)
    print(f"{out / 'index.html'}, with its plots and tables.md beside it")


main: Command = command(ReportSettings, _run, "report", __doc__, positional=("results",))

if __name__ == "__main__":
    main()
