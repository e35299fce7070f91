"""Results from files, each of which says itself what it is of, or from the folder of a recipe's run."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasta_async.errors import InvalidRequestError
from pasta_async.evals.answers import Answer, compare
from pasta_async.evals.load import Block
from pasta_async.evals.report.plots import Point

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pasta_async.evals.answers import Comparison
    from pasta_async.training.statistics import Estimate

__all__ = ["Model", "Results", "best", "dominated_by", "read_results", "read_run", "timed"]


@dataclass(frozen=True, slots=True)
class Model:
    """A model with its result of `evals.frontier`."""

    label: str
    result: dict[str, Any]
    group: str = ""
    """Models of one group have one colour: `round 2`."""
    candidate: bool = False
    """Whether it may be the best point."""

    @property
    def name(self) -> str:
        """Its group and its label."""
        return f"{self.group}, {self.label}" if self.group else self.label

    @property
    def figures(self) -> dict[str, Any]:
        """Of all prompts together."""
        return self.result["all"]

    @property
    def place(self) -> tuple[float, float]:
        """Theoretical speed-up, and score in percent."""
        return self.figures["theoretical_speedup"]["value"], self.figures["score"]["value"]

    def speedup(self, kind: str, clocks: Mapping[str, Estimate]) -> Estimate | None:
        """One of its speed-ups, if it was measured.

        Args:
            kind: Which one; `wall_clock` is what was timed under its label, or else with its answers.
            clocks: What was timed, by label.
        """
        timed = clocks.get(self.label) or self.result.get("wall_clock", {}).get("speedup")
        return timed if kind == "wall_clock" else self.figures[kind]

    def point(self, kind: str, clocks: Mapping[str, Estimate]) -> Point | None:
        """Its place in a plot; None if this speed-up was not measured."""
        found = self.speedup(kind, clocks)
        return found and Point(self.label, found, self.figures["score"], group=self.group)


def best(found: Sequence[Model]) -> Model | None:
    """The candidate with the highest speed-up among those whose score is not below the baseline's.

    Not below it beyond the 95% interval of the difference; if there is none, the one with the highest score.
    """
    candidates = [model for model in found if model.candidate]
    as_good = [model for model in candidates if model.figures["difference"]["high"] >= 0]
    if as_good:
        return max(as_good, key=lambda model: model.place[0])
    return max(candidates, key=lambda model: model.place[1], default=None)


def dominated_by(model: Model, found: Sequence[Model]) -> list[Model]:
    """Those that are at least as good and as fast as a model, and better in one of both."""
    fast, good = model.place
    return [
        one for one in found if one.place[0] >= fast and one.place[1] >= good and one.place != model.place
    ]


@dataclass(slots=True)
class Results:
    """What is reported on."""

    title: str = "Parallel decoding, measured"
    models: list[Model] = field(default_factory=list[Model])
    """Of `frontier`."""
    of: defaultdict[str, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))
    """By kind and label: results of `alpaca`, runs of `speed`, rows of `methods`, blocks of `load`."""
    sources: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """A row of a table for each file: what was measured where and when (last, if it was gone on with)."""
    steps: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Of a run: a row for each kind of step."""


def read_results(names: Sequence[str]) -> Results:
    """Read files, each named by its path or as ``LABEL=PATH``.

    Raises:
        InvalidRequestError: A file is no result, is broken off, or says the same as another one.
    """
    results, taken = Results(), set[tuple[str, str]]()
    for name in names:
        label, _, given = name.rpartition("=")
        path = Path(given)
        label = label or (path.parent.name if path.stem == "result" else "") or path.stem
        head, *rows = _rows(path)
        kind = str(head.get("benchmark"))
        if (kind, label) in taken:
            raise InvalidRequestError(f"two results of {kind} are called {label!r}: name them by LABEL=PATH")
        taken.add((kind, label))
        if kind == "frontier":
            results.models.append(Model(label, head))
        else:
            results.of[kind][label] = head if kind == "alpaca" else _measured(path, kind, rows)
        environments = [row["environment"] for row in [head, *rows] if "environment" in row]
        results.sources.append(
            {"label": label, "file": path.name, "what": kind, **_origin(head, environments)}
        )
    return results


def _origin(head: dict[str, Any], environments: Sequence[dict[str, Any]]) -> dict[str, str]:
    where = environments[-1] if environments else {}
    columns = {"when": "time", "processor": "cpu", "cores": "cores", "load before": "load"}
    shown = {name: str(where.get(key, "-")) for name, key in columns.items()}
    return {"backend": str(head.get("backend", "-")), **shown}


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
        rows = [json.loads(line) for line in (text.splitlines() if path.suffix == ".jsonl" else [text])]
    except (OSError, json.JSONDecodeError) as error:
        raise InvalidRequestError(f"{path} cannot be read as JSON: {error}") from error
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise InvalidRequestError(f"{path} holds no results")
    return rows


def _measured(path: Path, kind: str, rows: Sequence[dict[str, Any]]) -> list[Any]:
    if kind not in ("speed", "methods", "load"):
        raise InvalidRequestError(f"{path} is no result of alpaca, frontier, speed, methods or load")
    make, unit = (Block, ("mode", "level", "round")) if kind == "load" else (Answer, ("prompt", "number"))
    rows = [row for row in rows if "environment" not in row]
    methods = defaultdict[tuple[Any, ...], set[str]](set)
    try:
        for row in rows:
            methods[tuple(row.get(key, 0) for key in unit)].add(row["method"])
        found: list[Any] = [make(**row) for row in rows]
        if kind == "speed":
            compare(found)
        if len({*map(frozenset, methods.values())}) > 1:
            raise ValueError("not every method was measured everywhere")
    except (TypeError, KeyError, ValueError) as error:
        raise InvalidRequestError(
            f"{path} is not whole ({error}): give the command that made it once more, and it goes on"
        ) from error
    return found


def read_run(run: Path) -> Results:
    """What was measured so far in the folder of a run of `training.run`.

    Raises:
        InvalidRequestError: It is none.
    """
    try:
        plan = json.loads((run / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"{run} is not the folder of a run: {error}") from error
    paths = {name: run / "steps" / f"{name}.json" for name in plan["steps"]}
    states = {name: _rows(path)[0] if path.exists() else {} for name, path in paths.items()}
    results = Results(plan["title"])
    for name in (model["name"] for model in plan["models"]):
        if states[f"evaluation/{name}"].get("finished"):
            (result,) = _rows(run / "evaluation" / name / "result.json")
            model = _model(name, result, plan["start"])
            results.models.append(model)
            results.sources.append({"": model.name, **_origin(result, [result["environment"]])})
    groups = dict.fromkeys(name.partition("/")[0] for name in states)
    for group in (*groups, "all"):
        own = [state for name, state in states.items() if group in (name.partition("/")[0], "all")]
        done = sum(bool(state.get("finished")) for state in own)
        minutes = sum(state.get("seconds", 0.0) for state in own) / 60
        results.steps.append({"": group, "steps": len(own), "done": done, "minutes": minutes})
    return results


def _model(name: str, result: dict[str, Any], start: str) -> Model:
    stage, _, short = name.partition("/")
    if stage == "stage1":
        return Model(f"stage 1: {short}", result, candidate=name == start)
    weight = short.removeprefix("lambda").replace("inf", "\N{INFINITY}")
    label = f"\N{GREEK SMALL LETTER LAMDA} = {weight}"
    return Model(label, result, f"round {stage.removeprefix('round')}", candidate=True)


def timed(results: Results) -> dict[str, list[Comparison]]:
    """What was timed, by label: every model under `speed`, every method under `methods`."""
    found = {label: compare(rows) for label, rows in results.of["speed"].items()}
    for label, rows in results.of["methods"].items():
        where = f" ({label})" if len(results.of["methods"]) > 1 else ""
        for name in dict.fromkeys(row.method for row in rows if row.method != "sequential"):
            found[f"{name}{where}"] = compare(rows, name, "sequential")
    return found
