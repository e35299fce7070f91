"""Break it if you can: `python -m tests.torture [PART ...]`, from the repository's root (`make torture`).

Everything that is drawn comes from the seed and the number of the item, which a failure of `faults` names.
So the same command with `--first NUMBER --count 1` tries that one again. Moments in time are those of the
machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from pasta_async.backends.sglang import SGLangBackend
from tests.helpers.real_server import SGLangServer, running_server
from tests.pasta_tiny import PASTA_TINY
from tests.torture.cancellation import LocalEngine, ServerEngine, break_off
from tests.torture.faults import inject
from tests.torture.soak import soak
from tests.torture.trials import Figures, Trials

TorturePart = Callable[[Trials], Awaitable[Figures]]


def on_sglang(part: Callable[[Trials, str], Awaitable[Figures]]) -> TorturePart:
    """A part that needs the URL of a real SGLang server, whose start does not count as time of the part."""

    async def run(trials: Trials) -> Figures:
        with tempfile.TemporaryDirectory() as folder:
            with running_server(PASTA_TINY, Path(folder) / "log") as (url, _):
                return await part(replace(trials, began=time.monotonic()), url)

    return run


PARTS: dict[str, TorturePart] = {
    "cancel-local": lambda trials: break_off(trials, LocalEngine()),
    "cancel-sglang": on_sglang(
        lambda trials, url: break_off(trials, ServerEngine(SGLangServer(url, PASTA_TINY), SGLangBackend(url)))
    ),
    "faults": on_sglang(inject),
    "soak": soak,
}


async def main() -> None:
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
        trials = Trials(options.seed, options.count, options.hours * 3600 / len(names), options.first)
        print(json.dumps({"part": name, "seed": trials.seed} | await PARTS[name](trials)), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
