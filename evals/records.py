"""What the benchmarks have in common: where they ran, tables in Markdown, raw results as JSON lines."""

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
from typing import Any, Literal, TypeVar

from pasta_async.errors import InvalidRequestError
from pasta_async.jobs import Journal, write_json

_PACKAGES = ("pasta_async", "torch", "sglang", "transformers")

Row = TypeVar("Row")
Key = TypeVar("Key", bound=Hashable)


def environment() -> dict[str, Any]:
    """Where and when a benchmark runs; `load` is the load average before it, of everything on the machine."""
    return {
        "time": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "cpu": _cpu(),
        "cores": cores(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        **{name: found for name in _PACKAGES if (found := _version(name))},
    }


def cores() -> int:
    """The CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def markdown_table(rows: Sequence[dict[str, Any]]) -> str:
    """Rows with the same keys as a table; floats get three significant digits."""
    if not rows:
        return ""
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *([cell(row[key]) for key in head] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def grouped(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    """The rows of each kind, in their order; kinds as they come first."""
    groups = defaultdict[Key, list[Row]](list)
    for row in rows:
        groups[key(row)].append(row)
    return dict(groups)


def write_rows(path: Path | str, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows as JSON lines, over what was there; missing folders are made."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def write_result(folder: Path, result: Mapping[str, Any]) -> None:
    """Write a result, and where it was measured, as `result.json`; the folder is made if need be."""
    write_json(folder / "result.json", {**result, "environment": environment()})


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Read a file that holds `what`.

    Raises:
        InvalidRequestError: It cannot be read.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"{path} does not hold {what}: {error}") from error


@contextmanager
def opened_journal(path: Path | str | None, measured: Mapping[str, Any]) -> Generator[Journal | None]:
    """A journal of a measurement; None without a path.

    Its first line says what is measured, a line with `environment` where and when it was begun or gone on.

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
    """The rows of a journal without those that tell where it was measured; none without a journal."""
    return [row for row in journal.rows if "environment" not in row] if journal else []


def cell(value: object) -> str:
    """A value of a table: a float with three significant digits, an integer in groups, None as a dash."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if type(value) is int else str(value)


def own_memory(which: Literal["VmRSS", "VmHWM"]) -> int:
    """Resident bytes of this process, now or at most (Linux)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(which))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8") if info.exists() else ""
    found = re.search(r"^model name\s*: (.+)", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()
