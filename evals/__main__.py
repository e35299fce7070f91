"""The benchmarks: `python -m pasta_async.evals` runs those that need no server and no files.

With arguments, one of them: `python -m pasta_async.evals speed --backend http://127.0.0.1:30000`.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

_MODULES = ["costs", "documents", "frontier", "hardware", "load", "random_model", "simulator", "speed"]


def _run(name: str, *arguments: str) -> None:
    commands = [*_MODULES, *(path.parent.name for path in Path(__file__).parent.glob("*/__main__.py"))]
    if name not in commands:
        sys.stderr.write(f"name one of these, and --help for its options: {', '.join(sorted(commands))}\n")
        sys.exit(0 if name == "--help" else 2)
    sys.argv = [name, *arguments]
    runpy.run_module(f"pasta_async.evals.{name}", run_name="__main__")


def main() -> None:
    """Run one benchmark, or those that need no server, with their defaults."""
    if sys.argv[1:]:
        _run(*sys.argv[1:])
    for name, *arguments in (["speed"], ["costs", "interpreter"]):
        print(f"## {name}\n", flush=True)
        try:
            _run(name, *arguments)
        except SystemExit as ended:
            if ended.code:
                raise
        print()


if __name__ == "__main__":
    main()
