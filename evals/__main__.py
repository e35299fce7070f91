"""The benchmarks: `python -m pasta_async.evals` runs those that need no server and no files.

With arguments, one of them: `python -m pasta_async.evals speed --backend http://127.0.0.1:30000`.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from pasta_async.evals.commands import run_sub_command

if TYPE_CHECKING:
    from collections.abc import Sequence

_BENCHMARKS = (
    "alpaca",
    "costs",
    "documents",
    "frontier",
    "hardware",
    "load",
    "methods",
    "random_model",
    "report",
    "simulator",
    "speed",
)


def _benchmark(name: str) -> Any:
    module = (
        f"pasta_async.evals.{name}.__main__"
        if name in ("alpaca", "methods", "report")
        else f"pasta_async.evals.{name}"
    )

    def run(arguments: Sequence[str] | None) -> None:
        importlib.import_module(module).main(arguments)

    return run


def main() -> None:
    """Run one benchmark, or those that need no server, with their defaults."""
    if sys.argv[1:]:
        run_sub_command({name: _benchmark(name) for name in _BENCHMARKS})
    for name, *arguments in (["speed"], ["costs", "interpreter"]):
        print(f"## {name}\n", flush=True)
        try:
            _benchmark(name)(arguments)
        except SystemExit as ended:
            if ended.code:
                raise
        print()


if __name__ == "__main__":
    main()
