"""Run a plan of `recipe_step`s: `recipe_runner.py OUT JOBS NAME:FLAG=VALUE,...[:NEED...] ...`."""

from __future__ import annotations

import sys
from pathlib import Path

from pasta_async.training.recipe.execution import execute
from pasta_async.training.recipe.ledger import Ledger
from pasta_async.training.recipe.step import Step


def steps(out: Path, *told: str) -> list[Step]:
    """Steps by their descriptions; one whose name begins with `time` runs alone."""
    made: dict[str, Step] = {}
    for one in told:
        name, given, *needs = one.split(":")
        flags = dict(pair.split("=") for pair in given.split(",") if pair)
        own = {"out": out / name, **flags}
        if needs:
            own["input"] = made[needs[0]].result
        made[name] = Step(
            name,
            "recipe_step",
            own,
            out / name,
            out / name / "result",
            tuple(made[need] for need in needs),
            (Path(flags["hold"]),) if name.startswith("reads") else (),
            alone=name.startswith("time"),
        )
    return list(made.values())


if __name__ == "__main__":
    folder, jobs, *plan = sys.argv[1:]
    planned = steps(Path(folder), *plan)
    try:
        execute(planned, Ledger(Path(folder), planned), Path(folder), int(jobs))
    except KeyboardInterrupt:
        sys.exit(130)
