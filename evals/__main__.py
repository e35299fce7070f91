"""The benchmarks: `python -m pasta_async.evals` runs those that need no server and no files.

With arguments, one of them: `python -m pasta_async.evals speed --backend http://127.0.0.1:30000`.
"""

from __future__ import annotations

import sys

from pasta_async.evals import chunk_streams, fork_modes, interpreter_cost, serving, speed
from pasta_async.evals.hardware import __main__ as hardware
from pasta_async.evals.load import __main__ as load
from pasta_async.evals.methods import __main__ as methods
from pasta_async.evals.simulator import __main__ as simulator

_ALONE = {"speed": speed.main, "interpreter_cost": interpreter_cost.main}
_BENCHMARKS = {
    **_ALONE,
    "fork_modes": fork_modes.main,
    "chunk_streams": chunk_streams.main,
    "methods": methods.main,
    "load": load.main,
    "serving": serving.main,
    "simulator": simulator.main,
    "hardware": hardware.main,
}


def main() -> None:
    """Run one benchmark, or those that need no server, with their defaults."""
    name, *arguments = sys.argv[1:] or ["all"]
    if name != "all" and name not in _BENCHMARKS:
        sys.exit(f"no benchmark {name!r}: there are {', '.join(_BENCHMARKS)}")
    for benchmark in _ALONE if name == "all" else [name]:
        print(f"## {benchmark}\n", flush=True)
        _BENCHMARKS[benchmark](arguments)
        print()


if __name__ == "__main__":
    main()
