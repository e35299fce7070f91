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
from pasta_async.training.statistics import estimate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.training.statistics import Estimate

__all__ = ["Model", "Results", "best", "read_results", "read_run"]

_INSTRUMENTS = ("faults", "likelihood", "ifeval", "judge")
_UNITS = {"speed": ("prompt", "number"), "load": ("mode", "level", "round")}
"""What every method has to be measured at."""


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


def best(found: Sequence[Model], margin: float) -> Model | None:
    """The candidate with the highest theoretical speed-up among those that are not worse than the baseline.

    That is: with 95% confidence, one-sided, its score is less than `margin` points below the baseline's. None
    if there is none.
    """
    bounds = [(model, model.figures["difference"]["bound"]) for model in found if model.candidate]
    as_good = [model for model, bound in bounds if bound is not None and bound >= -margin]
    return max(as_good, key=lambda one: one.figures["theoretical_speedup"]["value"], default=None)


@dataclass(slots=True)
class Results:
    """What is reported on."""

    title: str = "Parallel decoding, measured"
    models: list[Model] = field(default_factory=list[Model])
    """Of `frontier`."""
    clocks: dict[str, Estimate] = field(default_factory=dict[str, "Estimate"])
    """The speed-up by wall clock, by label: of `speed`."""
    alpaca: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Results of `alpaca`, by label."""
    instruments: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Results of the other instruments, by label and kind."""
    loads: dict[str, list[Block]] = field(default_factory=dict[str, list[Block]])
    """Blocks of `load`, by label."""
    sources: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """A row of a table for each file: what was measured where and when (last, if it was gone on with)."""
    steps: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Of a run: a row for each kind of step."""

    def clock(self, model: Model) -> Estimate | None:
        """A model's speed-up by wall clock: of what was timed under its label, or else with its answers."""
        return self.clocks.get(model.label) or model.result.get("wall_clock", {}).get("speedup")

    def add(self, label: str, path: Path, head: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
        """Add what a file holds.

        Raises:
            InvalidRequestError: It is no result that is reported on, or is broken off.
        """
        kind = str(head.get("benchmark"))
        if kind == "frontier":
            self.models.append(Model(label, head))
        elif kind == "alpaca":
            self.alpaca[label] = head
        elif kind in _INSTRUMENTS:
            self.instruments[f"{label}, {kind}"] = head
        elif kind not in _UNITS:
            raise InvalidRequestError(f"{path} is no result that is reported on: its benchmark is {kind!r}")
        else:
            self._add_rows(label, path, kind, [row for row in rows if "environment" not in row])
        environments = [row["environment"] for row in (head, *rows) if "environment" in row]
        self.sources.append({"label": label, "file": path.name, "what": kind, **_origin(head, environments)})

    def _add_rows(self, label: str, path: Path, kind: str, rows: Sequence[dict[str, Any]]) -> None:
        methods = defaultdict[tuple[Any, ...], set[str]](set)
        try:
            for row in rows:
                methods[tuple(row.get(key, 0) for key in _UNITS[kind])].add(row["method"])
            if len({*map(frozenset, methods.values())}) > 1:
                raise ValueError("not every method was measured everywhere")
            if kind == "load":
                self.loads[label] = [Block(**row) for row in rows]
            elif pairs := compare([Answer(**row) for row in rows]):
                self.clocks[label] = estimate([one.speedup for one in pairs])
        except (TypeError, KeyError, ValueError) as error:
            raise InvalidRequestError(
                f"{path} is not whole ({error}): give the command that made it once more, and it goes on"
            ) from error


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
        if (known := (str(head.get("benchmark")), label)) in taken:
            raise InvalidRequestError(
                f"two results of {known[0]} are called {label!r}: name them by LABEL=PATH"
            )
        taken.add(known)
        results.add(label, path, head, rows)
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
