"""Break it if you can: `python -m tests.torture [PART ...]`, from the repository's root (`make torture`).

Everything that is drawn comes from the seed and the number of the item, which a failure names, so the same
command with `--first NUMBER --count 1` tries that one again. Moments in time are those of the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.torture.measured import Plan

Figures = dict[str, Any]


def cancel_local(plan: Plan) -> Figures:
    """Answers of the embedded engine, broken off at random moments."""
    from tests.torture.cancellation import break_off
    from tests.torture.engines import LocalEngine

    return asyncio.run(break_off(plan, LocalEngine()))


def cancel_sglang(plan: Plan) -> Figures:
    """Answers of a real SGLang server, broken off at random moments."""
    from tests.torture.cancellation import break_off

    return _on_sglang(plan, break_off)


def faults(plan: Plan) -> Figures:
    """Faults of a connection, between the library and a real SGLang server."""
    from tests.torture.faults import inject

    return _on_sglang(plan, inject)


def _on_sglang(plan: Plan, part: Callable[[Plan, Any], Coroutine[Any, Any, Figures]]) -> Figures:
    from tests.sglang.real_server import running_server
    from tests.torture.engines import SHIPPED, ServerEngine

    with tempfile.TemporaryDirectory() as folder, running_server(SHIPPED, Path(folder) / "log") as place:
        plan = replace(plan, began=time.monotonic())  # the start of the server does not count
        return asyncio.run(part(plan, ServerEngine(*place)))


def kill_server(plan: Plan) -> Figures:
    """A real SGLang server that is killed and started again."""
    from tests.torture.faults import kill_server

    return kill_server(plan)


def inputs(plan: Plan) -> Figures:
    """Generated inputs for the parser, `check`, the guard of typed text and the API's schema."""
    from tests.torture.inputs import generate
    from tests.torture.lengths import scaling

    return scaling() | generate(plan)


def soak(plan: Plan) -> Figures:
    """`pasta-async serve` with clients that come, go, stall and misbehave."""
    from tests.torture.soak import soak

    return asyncio.run(soak(plan))


PARTS: dict[str, Callable[[Plan], Figures]] = {
    "cancel-local": cancel_local,
    "cancel-sglang": cancel_sglang,
    "inputs": inputs,
    "faults": faults,
    "kill-server": kill_server,
    "soak": soak,
}


def main() -> None:
    """Run the parts that are named, or all, one after another; the figures of each are printed as JSON."""
    parts = "\n".join(f"  {name:14} {part.__doc__}" for name, part in PARTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.torture",
        description=__doc__,
        epilog=f"parts:\n{parts}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("part", nargs="*", choices=[*PARTS, []], metavar="PART")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first item of each part")
    parser.add_argument("--count", type=int, help="items of each part; default: as many as there is time for")
    parser.add_argument(
        "--hours", type=float, default=0.1, help="for all parts together (default: %(default)s)"
    )
    options = parser.parse_args()
    logging.getLogger("pasta_async").setLevel(logging.CRITICAL)
    parts = options.part or [*PARTS]
    for name in parts:
        plan = Plan(options.seed, options.count, options.hours * 3600 / len(parts), options.first)
        print(
            json.dumps({"part": name, "seed": plan.seed, "first": plan.first} | PARTS[name](plan)), flush=True
        )


if __name__ == "__main__":
    sys.exit(main())
