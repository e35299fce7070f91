"""Results from files; each says itself what it is of."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasta_async.errors import InvalidRequestError
from pasta_async.evals.load import Block
from pasta_async.evals.report.plots import Spread
from pasta_async.evals.timing import Timed, compare

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.evals.timing import Comparison

__all__ = ["Results", "origin", "read_results", "spreads"]


@dataclass(slots=True)
class Results:
    """What the files hold, by label."""

    alpaca: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    frontier: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    speed: dict[str, list[Timed]] = field(default_factory=dict[str, list[Timed]])
    methods: dict[str, list[Timed]] = field(default_factory=dict[str, list[Timed]])
    load: dict[str, list[Block]] = field(default_factory=dict[str, list[Block]])
    sources: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """A row of a table for each file: what was measured where and when (last, if it was gone on with)."""


def read_results(names: Sequence[str]) -> Results:
    """Read files, each named by its path or as ``LABEL=PATH``.

    Raises:
        InvalidRequestError: A file is no result, is broken off, or says the same as another one.
    """
    results = Results()
    for name in names:
        label, _, path = name.rpartition("=")
        _read(results, label or _label(Path(path)), Path(path))
    return results


def _label(path: Path) -> str:
    return path.parent.name if path.stem == "result" and path.parent.name else path.stem


def _read(results: Results, label: str, path: Path) -> None:
    rows = _rows(path)
    head = rows[0]
    kind = str(head.get("benchmark"))
    if kind in ("alpaca", "frontier"):
        found = head
    elif kind in ("speed", "methods", "load"):
        found = _measured(path, kind, rows[1:])
    else:
        raise InvalidRequestError(f"{path} is no result of alpaca, frontier, speed, methods or load")
    kept: dict[str, Any] = getattr(results, kind)
    if label in kept:
        raise InvalidRequestError(f"two results of {kind} are called {label!r}: name them with LABEL=PATH")
    kept[label] = found
    where: dict[str, Any] = ([row["environment"] for row in rows if "environment" in row] or [{}])[-1]
    results.sources.append({"label": label, "file": path.name, "what": kind, **origin(head, where)})


def origin(head: dict[str, Any], where: dict[str, Any]) -> dict[str, str]:
    """Columns of a table: what was measured, when, and on which machine."""
    columns = {"when": "time", "processor": "cpu", "cores": "cores", "load before": "load"}
    environment = {name: str(where.get(key, "-")) for name, key in columns.items()}
    return {"backend": str(head.get("backend", "-")), **environment}


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines() if path.suffix == ".jsonl" else [text]
        rows = [json.loads(line) for line in lines]
    except (OSError, json.JSONDecodeError) as error:
        raise InvalidRequestError(f"{path} cannot be read as JSON: {error}") from error
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise InvalidRequestError(f"{path} holds no results")
    return rows


def _measured(path: Path, kind: str, rows: Sequence[dict[str, Any]]) -> list[Timed] | list[Block]:
    rows = [row for row in rows if "environment" not in row]
    try:
        if kind == "load":
            blocks = [Block(**row) for row in rows]
            names = dict.fromkeys(block.method for block in blocks)
            if len(blocks) != len(names) * len({(block.mode, block.level) for block in blocks}):
                raise ValueError("not every method was measured everywhere")
            return blocks
        timed = [Timed(**row) for row in rows]
        for method in dict.fromkeys(row.method for row in timed):
            compare(timed, method, timed[0].method)
        return timed
    except (TypeError, KeyError, ValueError, IndexError) as error:
        raise InvalidRequestError(
            f"{path} is not whole ({error}): give the command that made it once more, and it goes on"
        ) from error


def spreads(results: Results) -> list[Spread]:
    """What was timed: every model under `speed`, every method under `methods`."""
    found = [_spread(label, compare(rows)) for label, rows in results.speed.items()]
    for label, rows in results.methods.items():
        several = len(results.methods) > 1
        found += [
            _spread(f"{name} ({label})" if several else name, compare(rows, name, "sequential"))
            for name in dict.fromkeys(row.method for row in rows)
            if name != "sequential"
        ]
    return found


def _spread(label: str, pairs: Sequence[Comparison]) -> Spread:
    return Spread(label, tuple(pair.theoretical for pair in pairs), tuple(pair.speedup for pair in pairs))
