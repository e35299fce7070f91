"""Tables and result files: `python -m pasta_async.evals.report FOLDER` makes one page of those of a folder.

Each FOLDER/NAME.md is the table of a measurement; FOLDER/results.md gets them all, FOLDER/results.json their
cells, and both where they were measured, which the file of answers FOLDER/NAME.jsonl tells.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from pydantic import Field

from pasta_async.cli.command import Command, CommandSettings, command
from pasta_async.errors import InvalidRequestError
from pasta_async.evals.statistics import Difference, Estimate
from pasta_async.model_folder import write_json
from pasta_async.training.data import corpus

Row = TypeVar("Row")
Key = TypeVar("Key", bound=Hashable)


def environment() -> dict[str, Any]:
    """Time, machine and versions of a benchmark; `load` is the machine's load average before it, if known."""
    versions = {"gpu": gpu} if (gpu := _gpu()) else dict[str, str]()
    for package in ("pasta_async", "torch", "sglang", "transformers"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "time": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        **versions,
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8") if info.exists() else ""
    model = re.search(r"^model name\s*: (.+)", text, re.MULTILINE)
    return model[1].strip() if model else platform.processor() or platform.machine()


def _gpu() -> str:
    """Name, memory and driver of each GPU, as its driver tells them; empty without one."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        output = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return "; ".join(output.strip().splitlines())


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a table whose columns are the keys of the first row; see `cell`."""
    if not rows:
        return ""
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *([cell(row.get(key)) for key in head] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(value: object) -> str:
    """A value of a table: a float with three digits, an integer in groups, None as a dash.

    An estimate is `51.2 (47.9 to 54.4)`, a difference `+1.2 (-0.4 to +2.9), at least -0.1`.
    """
    if value is None:
        return "-"
    if isinstance(value, dict):
        figure = cast("Estimate | Difference", value)
        sign = "+" if "bound" in figure else ""
        shown = digits(figure["value"], sign)
        if figure["low"] is not None and figure["high"] is not None:
            shown += f" ({digits(figure['low'], sign)} to {digits(figure['high'], sign)})"
        bound = figure.get("bound")
        return shown if bound is None else f"{shown}, at least {digits(bound, sign)}"
    if isinstance(value, float):
        return digits(value)
    return f"{value:,}" if type(value) is int else str(value)


def digits(value: float, sign: Literal["", "+"] = "") -> str:
    """A number with three significant digits, or all of them before the point."""
    return f"{value:{sign}.0f}" if abs(value) >= 999.5 else f"{value:{sign}.3g}"


def transposed(columns: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows for `markdown_table`, one for each figure of the first column, from figures by column."""
    names = next(iter(columns.values()))
    return [{"": name, **{head: figures.get(name) for head, figures in columns.items()}} for name in names]


def grouped(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    """Rows by their key, in their order; keys in the order of their first rows."""
    groups = defaultdict[Key, list[Row]](list)
    for row in rows:
        groups[key(row)].append(row)
    return dict(groups)


# One page of a folder's tables ------------------------------------------------------------------------------


class ReportSettings(CommandSettings):
    """Options of the page."""

    folder: Path = Field(description="has a table of each measurement, NAME.md")


def write_page(settings: ReportSettings) -> str:
    """Write `results.md` and `results.json`; returns a line that says so.

    Raises:
        InvalidRequestError: The folder has no table.
    """
    folder = settings.folder
    page = folder / "results.md"
    texts = {
        file.stem: file.read_text("utf-8").strip() for file in sorted(folder.glob("*.md")) if file != page
    }
    tables = {name: rows for name, text in texts.items() if (rows := _read_table(text))}
    if not tables:
        raise InvalidRequestError(f"{folder} has no table: NAME.md, as the commands of evals print them")
    # A resumed run has several environments: the last one counts.
    answers = {name: file for name in tables if (file := folder / f"{name}.jsonl").exists()}
    where = {
        name: row["environment"]
        for name, file in answers.items()
        for _, row in corpus.read_lines(file, dict[str, Any])
        if "environment" in row
    }
    write_json(folder / "results.json", {"environments": where, "tables": tables})
    parts = ["# Results", *(f"## {name}\n\n{text}" for name, text in texts.items())]
    if where:
        machines = [{"table": name, **measured} for name, measured in where.items()]
        parts.append(f"## where they were measured\n\n{markdown_table(machines)}")
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return f"{page} and {folder / 'results.json'} have {len(tables)} tables"


def _read_table(text: str) -> list[dict[str, str]]:
    """The rows of the first table in a text, by column; `markdown_table` made it. Empty if there is none."""
    for is_table, lines in groupby(text.splitlines(), lambda line: line.startswith("|")):
        if is_table:
            head, _, *rows = [[part.strip() for part in line.strip("|").split("|")] for line in lines]
            return [dict(zip(head, row, strict=True)) for row in rows]
    return []


main: Command = command(ReportSettings, write_page, "report", __doc__, positional=["folder"])

if __name__ == "__main__":
    main()
