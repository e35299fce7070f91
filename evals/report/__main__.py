"""One page from results: quality against speed-up, realised against theoretical, load, timelines, tables.

    python -m pasta_async.evals.report results/alpaca/result.json speed.jsonl --out report
    python -m pasta_async.evals.report "lambda 8=8/result.json" "lambda 8=8/speed.jsonl" chat=2/result.json

Takes what pasta_async.evals.alpaca, task, speed, methods and load wrote, and answers that `pasta-async
generate --json` printed. Results with the same label are of the same model: one gives the quality, the other
the speed. Writes `index.html`, which needs nothing else, its plots as PNG files, its tables as `tables.md`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from pasta_async.cli.command import run_command
from pasta_async.evals import load, speed, task
from pasta_async.evals.alpaca.outcome import tables as alpaca_tables
from pasta_async.evals.commands import Settings
from pasta_async.evals.methods.__main__ import summarise as method_rows
from pasta_async.evals.report import plots
from pasta_async.evals.report.page import Plot, Rows, Section, slug, write_report
from pasta_async.evals.report.results import Results, lengths_controlled, points, read_results, spreads
from pasta_async.evals.statistics import format_estimate, geometric_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pasta_async.evals.report.plots import Drawing, Point, Spread

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
    return [
        *_qualities(results),
        *([_alpaca(results)] if results.alpaca else []),
        *(
            Section(f"Task score: {label}", tables=[("Held-out prompts, 95% intervals", task.table(result))])
            for label, result in results.task.items()
        ),
        *([_realised(results, timed)] if timed else []),
        *(_load(label, blocks, target) for label, blocks in results.load.items()),
        *(Section(f"Timeline: {label}", timeline=answer) for label, answer in results.answers.items()),
        Section("Where this comes from", tables=[("Files", results.sources)]),
    ]


def _qualities(results: Results) -> Iterator[Section]:
    if results.alpaca:
        found = points(results, "alpaca")
        axis = "win rate against sequential, %" + ", lengths controlled" * lengths_controlled(results)
        drawing = plots.quality_by_speed(
            found, quality=axis, baseline=plots.exactly(50), frontier=True, published=plots.PUBLISHED
        )
        texts = ["50% is as good as the sequential answer of the same model.", _PAPER]
        yield _frontier("quality-by-speed", "Quality against speed: AlpacaEval", texts, found, drawing)
    if results.task:
        found = points(results, "task")
        baselines = [result["all"]["right"]["baseline"] for result in results.task.values()]
        baseline = baselines[0] if len(baselines) == 1 else None
        drawing = plots.quality_by_speed(found, quality="right answers, %", baseline=baseline, frontier=True)
        texts = [
            "The synthetic task's own program decides what is right: an exact score, of this task alone."
        ]
        yield _frontier("task-by-speed", "Quality against speed: synthetic task", texts, found, drawing)


def _frontier(name: str, title: str, texts: list[str], found: Sequence[Point], drawing: Drawing) -> Section:
    rows: Rows = [
        {
            "": point.label,
            "speed-up": format_estimate(point.speedup, ".2f"),
            "it is": "wall clock" if point.measured else "theoretical",
            "quality %": format_estimate(point.quality),
        }
        for point in found
    ]
    description = "; ".join(f"{row['']}: {row['speed-up']}, {row['quality %']}" for row in rows)
    return Section(title, texts, [Plot(name, description, drawing)], [("95% intervals in brackets", rows)])


def _alpaca(results: Results) -> Section:
    """All of AlpacaEval's results side by side."""
    wholes: Rows = []
    sources: dict[str, dict[str, Any]] = {}
    for label, result in results.alpaca.items():
        (whole,), by_source = alpaca_tables(result)
        wholes.append({"": label, **whole})
        for row in by_source:
            known = sources.setdefault(row["source"], {"source": row["source"], "prompts": row["prompts"]})
            known[label] = row["win rate %"]
    tables = [("All prompts, 95% intervals", wholes), ("Win rate in % by source", [*sources.values()])]
    return Section("AlpacaEval in full", [*dict.fromkeys(map(_how, results.alpaca.values()))], [], tables)


def _how(result: dict[str, Any]) -> str:
    """How something was judged."""
    official = "AlpacaEval's 805" if result["prompts"]["official"] else "not AlpacaEval's own"
    return (
        f"Judged by {result['judge']['model']} through alpaca-eval {result['versions']['alpaca_eval']}; "
        f"reference: the same model's sequential answers; prompts: {official}. "
        f"Lengths controlled by {result['length_control']}. {result['why_this_length_control']}."
    )


def _realised(results: Results, timed: Sequence[Spread]) -> Section:
    description = "; ".join(
        f"{one.label}: {format_estimate(one.speedup, '.2f')} of {geometric_mean(one.theoretical):.2f}"
        for one in timed
    )
    return Section(
        "Realised against theoretical speed-up",
        [
            "Theoretical: the baseline's tokens / the critical path, tags counted. What is missing to the "
            "diagonal is what forks, joins and larger batches cost on that engine and machine."
        ],
        [
            Plot("realised", description, plots.realised(timed)),
            Plot("speed-ups", description, plots.speedups(timed)),
        ],
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
        if any(one.mode == mode for one in found):
            drawing = plots.load_curves(found, mode)
            section.plots.append(Plot(f"load-{slug(label)}-{mode}", " ".join(section.texts), drawing))
    section.tables.append(("Every load", load.summarise(found)))
    return section


class ReportSettings(Settings):
    """What is reported on."""

    results: tuple[str, ...] = Field(description="files of results, or answers: PATH or LABEL=PATH")
    out: Path = Field(default=Path("report"), description="the folder that is written")
    title: str = Field(default="Parallel decoding, measured", description="of the page")
    target: float | None = Field(default=None, gt=0, description="latency target of the goodput, in seconds")


def _run(settings: ReportSettings) -> None:
    found = sections(read_results(settings.results), target=settings.target)
    write_report(settings.out, found, title=settings.title)
    print(f"{settings.out / 'index.html'}, with its plots and tables.md beside it")


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the results and write the report."""
    run_command(
        ReportSettings,
        _run,
        program="report",
        description=__doc__,
        positional=("results",),
        arguments=arguments,
    )


if __name__ == "__main__":
    main()
