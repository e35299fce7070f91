"""What the report says: sections of words, plots and tables, whatever they are written out as."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pasta_async.evals.alpaca.outcome import tables as alpaca_tables
from pasta_async.evals.load import figures, pays_up_to
from pasta_async.evals.load import summarise as load_rows
from pasta_async.evals.load.summary import default_target
from pasta_async.evals.methods.__main__ import summarise as method_rows
from pasta_async.evals.report import plots
from pasta_async.evals.report.points import PUBLISHED, lengths_controlled, points, spreads
from pasta_async.evals.speedups import summarise as speed_rows
from pasta_async.evals.statistics import geometric_mean, told
from pasta_async.evals.task import table as task_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pasta_async.evals.load import Block
    from pasta_async.evals.load.driving import Mode
    from pasta_async.evals.report.plots import Drawing
    from pasta_async.evals.report.points import Point, Spread
    from pasta_async.evals.report.reading import Results

__all__ = ["Plot", "Section", "sections"]

Rows = list[dict[str, Any]]

_PAPER = (
    "The paper's end points are published figures of another model (Gemma 7B, finetuned), judge (GPT-4), "
    "engine and machine (one H100): they show the range that was reached there, and are not comparable point "
    "by point."
)


_MODES: tuple[tuple[Mode, str], ...] = (("closed", "at once"), ("open", "a second"))


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot, with its file name and what it says in words."""

    name: str
    says: str
    drawing: Drawing


@dataclass(slots=True)
class Section:
    """A part of the report."""

    title: str
    words: list[str] = field(default_factory=list[str])
    plots: list[Plot] = field(default_factory=list[Plot])
    tables: list[tuple[str, Rows]] = field(default_factory=list[tuple[str, Rows]])
    """Captions and rows."""


def sections(results: Results, *, target: float | None = None) -> list[Section]:
    """All that the results give rise to.

    Args:
        results: What was read.
        target: The latency target of goodput in seconds; None: twice the unloaded median in sequence.
    """
    timed = spreads(results)
    found = [*_qualities(results)]
    if results.alpaca:
        found.append(_alpaca(results))
    found += _task(results)
    if timed:
        found.append(_realised(results, timed))
    return [
        *found,
        *(_load(label, blocks, target) for label, blocks in results.load.items()),
        _origin(results),
    ]


def _qualities(results: Results) -> Iterator[Section]:
    if results.alpaca:
        found = points(results, "alpaca")
        axis = "win rate against sequential, %" + ", lengths controlled" * lengths_controlled(results)
        drawing = plots.quality_by_speed(found, axis=axis, even=50, published=PUBLISHED)
        words = ["50% is as good as the sequential answer of the same model.", _PAPER]
        yield _pareto("quality-by-speed", "Quality against speed: AlpacaEval", words, found, drawing)
    if results.task:
        found = points(results, "task")
        drawing = plots.quality_by_speed(found, axis="right answers, %", even=_task_baseline(results))
        words = [
            "The synthetic task's own program decides what is right: an exact score, of this task alone."
        ]
        yield _pareto("task-by-speed", "Quality against speed: synthetic task", words, found, drawing)


def _task_baseline(results: Results) -> float | None:
    """The baseline's share of right answers, where there is one model and so one baseline."""
    values = [result["all"]["right"]["baseline"]["value"] for result in results.task.values()]
    return values[0] if len(values) == 1 else None


def _pareto(name: str, title: str, words: list[str], found: Sequence[Point], drawing: Drawing) -> Section:
    rows = [
        {
            "": point.label,
            "speed-up": told(point.speedup, ".2f"),
            "it is": "wall clock" if point.measured else "theoretical",
            "quality %": told(point.quality),
        }
        for point in found
    ]
    says = "; ".join(f"{row['']}: {row['speed-up']}, {row['quality %']}" for row in rows)
    return Section(title, words, [Plot(name, says, drawing)], [("95% intervals in brackets", rows)])


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


def _task(results: Results) -> Iterator[Section]:
    for label, result in results.task.items():
        yield Section(
            f"Task score: {label}", [], [], [("Held-out prompts, 95% intervals", task_table(result))]
        )


def _realised(results: Results, timed: Sequence[Spread]) -> Section:
    says = "; ".join(
        f"{one.label}: {told(one.speedup, '.2f')} of {geometric_mean(one.theoretical):.2f}" for one in timed
    )
    section = Section(
        "Realised against theoretical speed-up",
        [
            "Theoretical: the baseline's tokens / the critical path, tags counted. What is missing to the "
            "diagonal is what forks, joins and larger batches cost on that engine and machine."
        ],
        [Plot("realised", says, plots.realised(timed)), Plot("speed-ups", says, plots.speedups(timed))],
    )
    section.tables += [(f"Speed: {label}", speed_rows(runs)) for label, runs in results.speed.items()]
    section.tables += [(f"Methods: {label}", method_rows(rows)) for label, rows in results.methods.items()]
    return section


def _load(label: str, blocks: Sequence[Block], target: float | None) -> Section:
    target = target or default_target(blocks)
    found = figures(blocks, target)
    section = Section(f"Under load: {label}", [f"Latency target of the goodput: {target:.3g} s."])
    for mode, unit in _MODES:
        own = [one for one in found if one.mode == mode]
        if not own:
            continue
        ends: Mapping[str, float | None] = {
            name: pays_up_to(found, name, mode)
            for name in dict.fromkeys(one.method for one in own)
            if name != "sequential"
        }
        says = "; ".join(
            f"{name}: never sooner than in sequence"
            if end is None
            else f"{name}: sooner than in sequence up to {end:g} {unit}"
            for name, end in ends.items()
        )
        if says:
            section.words.append(f"{says}.")
        stem = f"load-{_slug(label)}-{mode}"
        section.plots.append(Plot(f"{stem}-latency", says, plots.latencies(own, mode)))
        section.plots.append(Plot(f"{stem}-goodput", says, plots.throughputs(own, mode)))
    section.tables.append(("Every load", load_rows(found)))
    return section


def _slug(label: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in label.lower()).strip("-")


def _origin(results: Results) -> Section:
    rows = [
        {
            "label": source.label,
            "file": source.name,
            "what": source.benchmark,
            "backend": source.backend,
            "when": source.environment.get("time", "-"),
            "processor": source.environment.get("cpu", "-"),
            "cores": source.environment.get("cores", "-"),
            "load before": source.environment.get("load", "-"),
        }
        for source in results.sources
    ]
    return Section("Where this comes from", [], [], [("Files", rows)])
