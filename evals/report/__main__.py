"""One page from results: quality against speed-up, realised against theoretical, load, tables.

    python -m pasta_async.evals.report results/alpaca/result.json speed.jsonl --out report
    python -m pasta_async.evals.report "lambda 8=8/result.json" "lambda 8=8/speed.jsonl" chat=2/result.json
    python -m pasta_async.evals.report runs/tiny

Takes what pasta_async.evals.alpaca, frontier, speed, methods and load wrote. Results with the same label are
of the same model: one gives the quality, the other the speed. Or takes the folder of a run of training.run,
and compares the models that were measured so far.
Writes the report as Markdown, `tables.md`, its plots as PNG files, and `index.html`, the same as one page
that needs nothing else. What it says is in `evaluation.md`.
"""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from markdown_it import MarkdownIt
from pydantic import Field

from pasta_async.cli.command import Command, CommandSettings, command
from pasta_async.evals import load, speed
from pasta_async.evals.alpaca import tables as alpaca_tables
from pasta_async.evals.frontier import row
from pasta_async.evals.methods.__main__ import summarise as method_rows
from pasta_async.evals.records import markdown_table
from pasta_async.evals.report import plots
from pasta_async.evals.report.plots import Point
from pasta_async.evals.report.results import best, dominated_by, read_results, read_run, timed
from pasta_async.trace.page import standalone
from pasta_async.training.statistics import estimate, format_estimate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.figure import Figure

    from pasta_async.evals.report.results import Model, Results
    from pasta_async.training.statistics import Estimate

__all__ = ["Report", "ReportSettings", "main"]

_AXES = {
    "frontier": ("theoretical_speedup", "theoretical speed-up"),
    "frontier-length-matched": ("length_matched_speedup", "length-matched theoretical speed-up"),
    "frontier-wall-clock": ("wall_clock", "speed-up by wall clock"),
}
_FAMILIES = {
    "Answers with a promise, %": ("parallel", ".0f"),
    "Answers with a sync, %": ("synced", ".0f"),
    "Score, %": ("score", ".1f"),
    "Theoretical speed-up": ("theoretical_speedup", ".2f"),
}

Rows = list[dict[str, Any]]


class ReportSettings(CommandSettings):
    """What is reported on."""

    results: tuple[str, ...] = Field(
        description="files of results, PATH or LABEL=PATH; or the folder of a run"
    )
    out: Path | None = Field(
        default=None, description="the folder that is written; without it, report, in a run's folder its own"
    )
    title: str | None = Field(default=None, description="of the page")
    target: float | None = Field(default=None, gt=0, description="latency target of the goodput, in seconds")


class Report:
    """A report on some results: what its template shows, and its plots.

    Args:
        results: What was read.
        target: The latency target of goodput in seconds; None: twice the unloaded median in sequence.
    """

    def __init__(self, results: Results, target: float | None = None) -> None:
        self._plots: dict[str, Figure] = {}
        pairs = timed(results)
        clocks = {label: estimate([one.speedup for one in own]) for label, own in pairs.items()}
        self._shown: dict[str, Any] = {"results": results, "plots": self._plots}
        if results.of["alpaca"]:
            self._shown["alpaca"] = self._alpaca(results.of["alpaca"], clocks)
        if results.models:
            self._shown |= self._frontier(results.models, clocks)
        if pairs:
            self._plots["realised"] = plots.realised(pairs)
            self._shown["timed"] = {
                **{f"Speed: {label}": speed.summarise(runs) for label, runs in results.of["speed"].items()},
                **{f"Methods: {label}": method_rows(rows) for label, rows in results.of["methods"].items()},
            }
        self._shown["loads"] = [self._load(*item, target) for item in results.of["load"].items()]

    def write(self, folder: Path, title: str) -> None:
        """Write `tables.md`, a PNG file for each plot, and `index.html`.

        Args:
            folder: Is made if need be; files of the same names are written over.
            title: Of the page.
        """
        environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
        filters: dict[str, Any] = environment.filters
        filters |= {"table": markdown_table, "estimate": format_estimate}
        template = Path(__file__).with_name("evaluation.md").read_text(encoding="utf-8")
        text = environment.from_string(template).render(self._shown)
        text = re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tables.md").write_text(text, encoding="utf-8")
        (folder / "index.html").write_text(self._page(text, title), encoding="utf-8")
        for name, figure in self._plots.items():
            (folder / f"{name}.png").write_bytes(plots.render(figure, "png"))

    def _page(self, text: str, title: str) -> str:
        html: str = MarkdownIt("zero").enable(["heading", "image", "table"]).render(text)  # escapes the rest
        for name, figure in self._plots.items():
            image = base64.b64encode(plots.render(figure, "svg")).decode()
            html = html.replace(f'src="{name}.png"', f'src="data:image/svg+xml;base64,{image}"')
        html = html.replace("<table>", '<div class="scroll" tabindex="0" role="group"><table>')
        html = html.replace("</table>", "</table></div>")
        sections = [part.split("</h2>", 1) for part in html.split("<h2>")[1:]]
        page = standalone("evaluation.html", ["evals/report", "trace"])
        template = jinja2.Template(page.html, trim_blocks=True)
        return template.render(policy=page.policy, title=title, sections=sections)

    def _alpaca(self, found: dict[str, Any], clocks: Mapping[str, Estimate]) -> dict[str, Any]:
        """AlpacaEval's results side by side; wall clock where something of that label was timed."""
        controlled = all("value" in result["length_controlled_win_rate"] for result in found.values())
        rate = "length_controlled_win_rate" if controlled else "win_rate"
        self._plots["quality-by-speed"] = plots.quality_by_speed(
            [
                Point(label, clocks.get(label) or one["theoretical_speedup"], one[rate], label in clocks)
                for label, one in found.items()
            ],
            quality="win rate against sequential, %" + ", lengths controlled" * controlled,
            baseline=plots.exactly(50),
            published=plots.PUBLISHED,
        )
        every, sources = Rows(), dict[str, dict[str, Any]]()
        for label, result in found.items():
            (whole,), by_source = alpaca_tables(result)
            every.append({"": label, **whole, "wall clock": format_estimate(clocks.get(label), ".2f")})
            for one in by_source:
                source = {"source": one["source"], "prompts": one["prompts"], **dict.fromkeys(found, "-")}
                sources.setdefault(one["source"], source)[label] = one["win rate %"]
        return {"all": every, "sources": [*sources.values()]}

    def _frontier(self, models: Sequence[Model], clocks: Mapping[str, Estimate]) -> dict[str, Any]:
        """Models by speed and score, group by group."""
        baseline = models[0].figures["baseline"]
        same = all(model.figures["baseline"] == baseline for model in models)
        for name, (key, axis) in _AXES.items():
            if points := [point for model in models if (point := model.point(key, clocks))]:
                score = baseline["score"] if same else None
                about = "score, % of the facts right"
                self._plots[name] = plots.quality_by_speed(points, speed=axis, quality=about, baseline=score)
        rows = [row("sequential baseline", baseline, **{"wall clock": "-"})] if same else []
        for model in models:
            clock = format_estimate(model.speedup("wall_clock", clocks), ".2f")
            rows.append(row(model.name, model.figures, **{"wall clock": clock}))
        later = [model for model in models if model.group]
        ahead = {m.name: [one.name for one in dominated_by(m, later)] for m in models if not m.group}
        return {
            "frontier": rows,
            "baseline": baseline,
            "best": best(models),
            "beaten": [{"": name, "beaten by": "; ".join(found) or "none"} for name, found in ahead.items()],
            "families": {
                caption: [
                    {"": model.name, **{f: format_estimate(own[key], form) for f, own in families.items()}}
                    for model in models
                    for families in [model.result["by_family"]]
                ]
                for caption, (key, form) in _FAMILIES.items()
            },
        }

    def _load(self, label: str, blocks: Sequence[load.Block], target: float | None) -> dict[str, Any]:
        target = target or load.default_target(blocks)
        found = load.figures(blocks, target)
        file = "load-" + re.sub(r"\W+", "-", label.lower()).strip("-")
        for mode in load.UNITS:
            if own := [one for one in found if one.mode == mode]:
                self._plots[f"{file}-{mode}"] = plots.load_curves(own)
        return {
            "label": label,
            "file": file,
            "target": f"{target:.3g} s",
            "rows": load.summarise(found),
        }


def _run(settings: ReportSettings) -> str:
    folder = Path(settings.results[0])
    of_a_run = folder.is_dir() and len(settings.results) == 1
    results = read_run(folder) if of_a_run else read_results(settings.results)
    if not results.sources:
        return "nothing to compare was measured yet"
    out = settings.out or (folder / "report" if of_a_run else Path("report"))
    Report(results, settings.target).write(out, settings.title or results.title)
    return f"{out / 'index.html'}, with its plots and tables.md beside it"


main: Command = command(ReportSettings, _run, "report", __doc__, positional=("results",))

if __name__ == "__main__":
    main()
