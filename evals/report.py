"""Tables, result files, and a picture of models by speed and quality.

    python -m pasta_async.evals.report --results results/lambda1 --results results/lambda4 --out report

reads results of `evals.quality`, and writes `report.md` and `frontier.png`.
"""

# matplotlib leaves many of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
import os
import platform
import re
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import Field

from pasta_async.cli.command import Command, CommandSettings, command
from pasta_async.errors import InvalidRequestError
from pasta_async.evals.statistics import Estimate, Gain, digits, format_estimate, format_gain
from pasta_async.jobs import Journal, write_json

Row = TypeVar("Row")
Key = TypeVar("Key", bound=Hashable)

SPEED = "theoretical speed-up"
"""The figure of a `quality` result that the horizontal axis of the picture has."""


def environment() -> dict[str, Any]:
    """Time, machine and versions of a benchmark; `load` is the machine's load average before it."""
    versions: dict[str, str] = {}
    for package in ("pasta_async", "torch", "sglang", "transformers"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "time": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "cpu": _cpu(),
        "cores": cores(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        **versions,
    }


def cores() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8") if info.exists() else ""
    model = re.search(r"^model name\s*: (.+)", text, re.MULTILINE)
    return model[1].strip() if model else platform.processor() or platform.machine()


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a table whose columns are the keys of the first row; see `cell`."""
    if not rows:
        return ""
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *([cell(row.get(key)) for key in head] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(value: object) -> str:
    """A value of a table: an estimate, a float with three digits, an integer in groups, None as a dash."""
    if value is None:
        return "-"
    if isinstance(value, dict):
        return (
            format_gain(cast("Gain", value)) if "bound" in value else format_estimate(cast("Estimate", value))
        )
    if isinstance(value, float):
        return digits(value)
    return f"{value:,}" if type(value) is int else str(value)


def transposed(columns: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows for `markdown_table`, one for each figure of the first column, from figures by column."""
    names = next(iter(columns.values()))
    return [{"": name, **{head: own.get(name) for head, own in columns.items()}} for name in names]


def grouped(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    """Rows of each kind, in their order; kinds as they come first."""
    groups = defaultdict[Key, list[Row]](list)
    for row in rows:
        groups[key(row)].append(row)
    return dict(groups)


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as JSON lines, over what was there; missing folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


@contextmanager
def opened_journal(path: Path | None, measured: Mapping[str, Any]) -> Generator[Journal | None]:
    """A journal of a measurement; None without a path.

    Its first line says what is measured; a line with `environment` where and when it was begun or gone on.

    Raises:
        InvalidRequestError: The file holds something else.
    """
    if path is None:
        yield None
        return
    with Journal(path, measured) as journal:
        journal.append({"environment": environment()})
        yield journal


def measurements(journal: Journal | None) -> list[dict[str, Any]]:
    """Rows of a journal without those that tell where it was measured; none without a journal."""
    return [row for row in journal.rows if "environment" not in row] if journal else []


class ReportSettings(CommandSettings):
    """Settings of a report."""

    results: tuple[Path, ...] = Field(
        min_length=1, description="folders of evals.quality, one for each model"
    )
    out: Path = Field(description="folder to write")
    figure: str = Field(default="", description="the figure of quality to draw; default: the first one")


def write_report(settings: ReportSettings) -> str:
    """Write `report.md`, a row for each model, and `frontier.png`; the table.

    Raises:
        InvalidRequestError: A folder has no result, or not that figure.
    """
    results = {folder.name: _read_result(folder) for folder in settings.results}
    known = [name for name in next(iter(results.values()))["methods"]["baseline"] if name != "prompts"]
    figure = settings.figure or known[0]
    if any(figure not in result["methods"].get("parallel", ()) for result in results.values()):
        raise InvalidRequestError(f"not every result has {figure!r} of parallel answers; known: {known}")
    columns = {
        name: {
            "answers": result["answers"]["backend"],
            SPEED: result[SPEED],
            **{form: own[figure] for form, own in result["methods"].items()},
            "parallel - baseline": result["differences"]["parallel - baseline"][figure],
        }
        for name, result in results.items()
    }
    rows = [{figure: name, **own} for name, own in columns.items()]
    settings.out.mkdir(parents=True, exist_ok=True)
    table = markdown_table(rows)
    (settings.out / "report.md").write_text(f"{table}\n\n![](frontier.png)\n", encoding="utf-8")
    _draw(columns, figure, settings.out / "frontier.png")
    return table


def _read_result(folder: Path) -> dict[str, Any]:
    try:
        result: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        if result["methods"]["baseline"] and result[SPEED]:
            return result
    except (OSError, ValueError, LookupError) as error:
        raise InvalidRequestError(f"{folder} holds no result of evals.quality: {error!r}") from error
    raise InvalidRequestError(f"{folder}: a limit ended every answer, so there is no speed-up")


def write_result(folder: Path, result: Mapping[str, Any]) -> None:
    """Write a result, and where it was measured, as `result.json`; the folder is made if need be."""
    write_json(folder / "result.json", {**result, "environment": environment()})


def unbeaten(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other one beats in both coordinates, from left to right."""
    kept: list[tuple[float, float]] = []
    for point in sorted(points, reverse=True):
        if not kept or point[1] > kept[-1][1]:
            kept.append(point)
    return kept[::-1]


def _draw(columns: Mapping[str, Mapping[str, Any]], figure: str, path: Path) -> None:
    """Every model with its intervals, its plain answers at a speed-up of 1, and a line of the unbeaten."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    points = {name: (own[SPEED], own["parallel"]) for name, own in columns.items()}
    points |= {f"{name}, in sequence": ({"value": 1.0}, own["baseline"]) for name, own in columns.items()}
    with mpl.rc_context(fname=Path(__file__).with_name("report.mplstyle")):
        picture: Figure = Figure(figsize=(8.0, 4.9))
        axes = picture.subplots()
        axes.set(xlabel=SPEED, ylabel=figure)
        line = unbeaten((x["value"], y["value"]) for x, y in points.values())
        axes.plot(*zip(*line, strict=True), color="#655d4f", lw=4, alpha=0.25)
        for name, (x, y) in points.items():
            place = x["value"], y["value"]
            axes.errorbar(*place, xerr=_reach(x), yerr=_reach(y), fmt="o", lw=1.6, ms=8)
            axes.annotate(name, place, (9, 7), textcoords="offset points", fontsize=9.5)
        axes.margins(x=0.16, y=0.16)
        picture.savefig(path, dpi=160, metadata={"Software": None})  # the same plot gives the same bytes


def _reach(estimate: Mapping[str, float | None]) -> list[list[float]]:
    """Distances of an interval's ends from its value; 0 if there is none."""
    value, low, high = estimate["value"], estimate.get("low"), estimate.get("high")
    if value is None or low is None or high is None:
        return [[0.0], [0.0]]
    return [[value - low], [high - value]]


main: Command = command(ReportSettings, write_report, "report", __doc__)

if __name__ == "__main__":
    main()
