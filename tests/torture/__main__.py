"""Break it if you can: `python -m tests.torture [PART ...]`, from the repository's root (`make torture`).

Everything that is drawn comes from the seed and the number of the item, which a failure names, so the same
command with `--first NUMBER --count 1` tries that one again. Moments in time are those of the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import tempfile
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.pasta_tiny import PASTA_TINY
from tests.torture.plan import Figures, Plan


def cancel_local(plan: Plan) -> Figures:
    """Answers of the embedded engine, broken off at random moments."""
    from tests.torture.cancellation import LocalEngine, break_off

    return asyncio.run(break_off(plan, LocalEngine()))


def cancel_sglang(plan: Plan) -> Figures:
    """Answers of a real SGLang server, broken off at random moments."""
    from tests.torture.cancellation import ServerEngine, break_off

    return _on_sglang(plan, lambda plan, url: break_off(plan, ServerEngine(url)))


def faults(plan: Plan) -> Figures:
    """Faults of the connection between the library and a real SGLang server."""
    from tests.torture.faults import inject

    return _on_sglang(plan, inject)


def inputs(plan: Plan) -> Figures:
    """Generated inputs for the parser, the tokenizer and the API."""
    from tests.torture.inputs import generate

    return asyncio.run(generate(plan))


def soak(plan: Plan) -> Figures:
    """`pasta-async serve` with clients that come, go, stall and misbehave."""
    from tests.torture.soak import soak

    return asyncio.run(soak(plan))


def _on_sglang(plan: Plan, part: Callable[[Plan, str], Coroutine[Any, Any, Figures]]) -> Figures:
    from tests.sglang.real_server import running_server

    with tempfile.TemporaryDirectory() as folder:
        with running_server(PASTA_TINY, Path(folder) / "log") as (url, _):
            return asyncio.run(part(replace(plan, began=time.monotonic()), url))


PARTS: dict[str, Callable[[Plan], Figures]] = {
    "cancel-local": cancel_local,
    "cancel-sglang": cancel_sglang,
    "inputs": inputs,
    "faults": faults,
    "soak": soak,
}


def main() -> None:
    """Run the parts that are named, or all, one after another; the figures of each are printed as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("part", nargs="*", choices=[*PARTS, []], metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first item of each part")
    parser.add_argument("--count", type=int, help="items of each part; default: as many as there is time for")
    parser.add_argument("--hours", type=float, default=0.1, help="for all parts together (%(default)s)")
    options = parser.parse_args()
    logging.getLogger("pasta_async").setLevel(logging.CRITICAL)
    names = options.part or [*PARTS]
    for name in names:
        plan = Plan(options.seed, options.count, options.hours * 3600 / len(names), options.first)
        print(json.dumps({"part": name, "seed": plan.seed} | PARTS[name](plan)), flush=True)


if __name__ == "__main__":
    main()
