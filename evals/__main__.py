"""All benchmarks that need nothing but this package: `python -m pasta_async.evals`.

Other arguments than none belong to one of them: `python -m pasta_async.evals speed --backend http://...`.
"""

from __future__ import annotations

import sys

from pasta_async.evals import interpreter_cost, speed

_BENCHMARKS = {"speed": speed.main, "interpreter_cost": interpreter_cost.main}


def main() -> None:
    """Run one benchmark, or all with their defaults."""
    name, *arguments = sys.argv[1:] or ["all"]
    if name != "all" and name not in _BENCHMARKS:
        sys.exit(f"no benchmark {name!r}: there are {', '.join(_BENCHMARKS)}")
    for benchmark in _BENCHMARKS if name == "all" else [name]:
        print(f"## {benchmark}\n", flush=True)
        _BENCHMARKS[benchmark](arguments)
        print()


if __name__ == "__main__":
    main()
