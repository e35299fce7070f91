"""The benchmarks: `python -m pasta_async.evals` runs those that need no server and no files.

With arguments, one of them: `python -m pasta_async.evals speed --backend http://127.0.0.1:30000`.
"""

from __future__ import annotations

import runpy
import sys

_COMMANDS = (
    "alpaca card costs documents engine faults frontier hardware ifeval likelihood load methods "
    "random_model report simulator speed"
).split()


def _run(name: str, *arguments: str) -> None:
    if name not in _COMMANDS:
        sys.stderr.write(f"name one of these, and --help for its options: {', '.join(_COMMANDS)}\n")
        sys.exit(0 if name == "--help" else 2)
    sys.argv = [name, *arguments]
    runpy.run_module(f"pasta_async.evals.{name}", run_name="__main__", alter_sys=True)


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
