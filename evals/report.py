"""Tables, result files, and a picture of models by speed and quality.

    python -m pasta_async.evals.report --results lambda1 --results lambda4 --figure "judge, %" --out f.png

It reads results of `evals.quality`, a folder for each model.
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
    return [{"": name, **{head: figures.get(name) for head, figures in columns.items()}} for name in names]


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


def write_result(folder: Path, result: Mapping[str, Any]) -> None:
    """Write a result, and where it was measured, as `result.json`; the folder is made if need be."""
    write_json(folder / "result.json", {**result, "environment": environment()})


class ReportSettings(CommandSettings):
    """Settings of a report."""

    results: tuple[Path, ...] = Field(
        min_length=1, description="folders of evals.quality, one for each model"
    )
    figure: str = Field(description="the figure of quality to draw, as its table names it")
    out: Path = Field(description="picture to write (.png, .svg, .pdf)")


def write_report(settings: ReportSettings) -> str:
    """Draw models by speed and quality; the table of what is drawn.

    Raises:
        InvalidRequestError: A folder has no result, not that figure, or no speed-up.
    """
    rows: list[dict[str, Any]] = []
    for folder in settings.results:
        try:
            result: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
            figures = {form: estimates[settings.figure] for form, estimates in result["methods"].items()}
            rows.append({settings.figure: folder.name, SPEED: result[SPEED], **figures})
            rows[-1]["difference"] = result["differences"]["parallel - baseline"][settings.figure]
        except (OSError, ValueError, LookupError) as error:
            reason = f"{folder} holds no result of evals.quality with {settings.figure!r}: {error!r}"
            raise InvalidRequestError(reason) from error
        if not (rows[-1][SPEED] and figures["parallel"] and figures["baseline"]):
            raise InvalidRequestError(f"{folder} has no speed-up, or no figure: a limit ended every answer")
    _draw(rows, settings.figure, settings.out)
    return markdown_table(rows)


def unbeaten(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other one beats in both coordinates, from left to right."""
    kept: list[tuple[float, float]] = []
    for point in sorted(points, reverse=True):
        if not kept or point[1] > kept[-1][1]:
            kept.append(point)
    return kept[::-1]


def _draw(rows: Sequence[Mapping[str, Any]], figure: str, path: Path) -> None:
    """Every model's parallel answers, its plain ones at a speed-up of 1, and a line of the unbeaten."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(8.0, 4.9), layout="constrained")
    axes = picture.subplots()
    axes.set(xlabel=SPEED, ylabel=figure)
    points: list[tuple[float, float]] = []
    for row in rows:
        plain, parallel = ((1.0, row["baseline"]["value"]), (row[SPEED]["value"], row["parallel"]["value"]))
        points += [plain, parallel]
        axes.plot(*zip(plain, parallel, strict=True), "o--", label=row[figure])
    axes.plot(*zip(*unbeaten(points), strict=True), color="grey", lw=4, alpha=0.3, zorder=0)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=160)


main: Command = command(ReportSettings, write_report, "report", __doc__)

if __name__ == "__main__":
    main()
