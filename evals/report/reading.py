"""Results from files, each told apart by what it says of itself."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from pasta_async.errors import InvalidRequestError
from pasta_async.evals.load import Block
from pasta_async.evals.methods import Played
from pasta_async.evals.speedups import compare
from pasta_async.evals.timing import Run
from pasta_async.lang import parse
from pasta_async.results import Generation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Results", "Source", "read_results"]


@dataclass(frozen=True, slots=True)
class Source:
    """A file that the report was made from."""

    label: str
    name: str
    benchmark: str
    backend: str
    environment: dict[str, Any]
    """Where it was measured; the last place, if it was gone on with."""


@dataclass(slots=True)
class Results:
    """What the files hold, by label."""

    alpaca: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    task: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    speed: dict[str, list[Run]] = field(default_factory=dict[str, list[Run]])
    methods: dict[str, list[Played]] = field(default_factory=dict[str, list[Played]])
    load: dict[str, list[Block]] = field(default_factory=dict[str, list[Block]])
    answers: dict[str, tuple[Generation, Generation | None]] = field(
        default_factory=dict[str, tuple[Generation, Generation | None]]
    )
    sources: list[Source] = field(default_factory=list[Source])


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
    if "answer" in head or "threads" in head:
        kind, found = "answers", _answer(path, head)
    elif (kind := str(head.get("benchmark"))) in ("alpaca", "task"):
        found = head
    elif kind in ("speed", "methods", "load"):
        found = _measured(path, kind, rows[1:])
    else:
        raise InvalidRequestError(
            f"{path} is no result of alpaca, task, speed, methods or load, and no answer"
        )
    kept: dict[str, Any] = getattr(results, kind)
    if label in kept:
        raise InvalidRequestError(f"two results of {kind} are called {label!r}: name them with LABEL=PATH")
    kept[label] = found
    places = [row["environment"] for row in rows if "environment" in row]
    backend = str(head.get("backend", "-"))
    results.sources.append(Source(label, path.name, kind, backend, places[-1] if places else {}))


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidRequestError(f"{path} cannot be read: {error.strerror}") from error
    try:
        rows = (
            [json.loads(line) for line in text.splitlines()]
            if path.suffix == ".jsonl"
            else [json.loads(text)]
        )
    except json.JSONDecodeError as error:
        raise InvalidRequestError(f"{path} is no JSON: {error}") from error
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise InvalidRequestError(f"{path} holds no results")
    return rows


def _measured(
    path: Path, kind: str, rows: Sequence[dict[str, Any]]
) -> list[Run] | list[Played] | list[Block]:
    rows = [row for row in rows if "environment" not in row]
    try:
        if kind == "speed":
            runs = [Run(**row) for row in rows]
            compare(runs)
            return runs
        if kind == "methods":
            played = [Played(**row) for row in rows]
            _complete((one.prompt, one.number, one.method) for one in played)
            return played
        blocks = [Block.of(row) for row in rows]
        _complete((one.mode, one.level, one.method) for one in blocks)
        return blocks
    except (TypeError, KeyError, ValueError) as error:
        raise InvalidRequestError(
            f"{path} is not whole ({error}): give the command that made it once more, and it goes on"
        ) from error


def _complete(measured: Iterable[tuple[Any, Any, str]]) -> None:
    """Raise ValueError if some method is missing somewhere."""
    methods = defaultdict[tuple[Any, Any], set[str]](set)
    for one, other, method in measured:
        methods[one, other].add(method)
    if len({*map(frozenset, methods.values())}) > 1:
        raise ValueError("not every method was measured everywhere")


def _answer(path: Path, found: dict[str, Any]) -> tuple[Generation, Generation | None]:
    try:
        baseline = found.get("baseline")
        return _generation(found.get("answer", found)), _generation(baseline) if baseline else None
    except (ValidationError, KeyError) as error:
        raise InvalidRequestError(
            f"{path} is not what `pasta-async generate --json` prints: {error}"
        ) from error


def _generation(found: dict[str, Any]) -> Generation:
    fields = {name: value for name, value in found.items() if name in Generation.model_fields}
    return Generation.model_validate({**fields, "document": parse(found["document"])})
