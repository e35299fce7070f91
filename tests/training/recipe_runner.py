"""Run steps of `recipe_step`: `recipe_runner.py OUT NAME:OPTION=VALUE,...[:NEED...] ...`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from pasta_async.training.run import Step, run_steps


def steps(out: Path, *described: str) -> list[Step]:
    """Steps by their descriptions; `hold` is a file that it reads."""
    made: dict[str, Step] = {}
    for one in described:
        name, given, *needs = re.split(":(?!/)", one)  # not that of `local:/path`
        flags = dict(pair.split("=") for pair in given.split(",") if pair)
        own = {"out": out / name, **flags}
        if needs:
            own["input"] = made[needs[0]].result
        needed = tuple(made[need] for need in needs)
        made[name] = Step(name, "recipe_step", own, out / name / "result", needed)
    return list(made.values())


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    try:
        run_steps(steps(folder, *sys.argv[2:]), folder)
    except KeyboardInterrupt:
        sys.exit(130)
