"""How much sooner an answer comes: baseline / parallel wall clock, beside the theoretical speed-up.

    python -m pasta_async.evals.speed --backend local: --n 20
    python -m pasta_async.evals.speed --backend http://127.0.0.1:30000 --n 5 --families describe totals

One model answers every prompt in both forms: in parallel, and as the baseline, without tags. The order goes
A B B A over the prompts (or groups of them, with --together), the other way round in the next pass. Each pass
begins with a cold prefix cache and a few answers that do not count, so no answer finds its own text there.
"""

from __future__ import annotations

import argparse
import asyncio
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from pasta_async import Client
from pasta_async.clock import REAL_CLOCK
from pasta_async.evals.prefix_cache import empty_prefix_cache
from pasta_async.evals.progress import progress
from pasta_async.evals.prompts import held_out, read_prompts
from pasta_async.evals.records import environment, markdown_table, write_rows
from pasta_async.evals.speedups import summarise
from pasta_async.evals.timing import Run, time_answers, warm_up
from pasta_async.training.synthetic import FAMILIES

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from pasta_async.clock import Clock
    from pasta_async.evals.prompts import Prompt

    Opened = Callable[[], AbstractAsyncContextManager[Client]]

__all__ = ["main", "measure"]

_WARM_UP_SEED = 1_000_000
"""Where the prompts come from that do not count: far from those that do."""


async def measure(
    opened: Opened,
    prompts: Sequence[Prompt],
    *,
    warm: Sequence[Prompt] = (),
    passes: int = 2,
    together: int = 1,
    clock: Clock = REAL_CLOCK,
) -> list[Run]:
    """Time every prompt in both forms, `passes` times.

    Args:
        opened: Gives a client whose prefix cache is cold; called for each pass.
        prompts: What is asked.
        warm: Prompts that are answered first, and not counted.
        passes: How often all of it is done.
        together: Prompts that are answered at the same time.
        clock: Measures.

    Cancelling it cancels the answers under way and closes the client.
    """
    runs = list[Run]()
    with progress(2 * passes * len(prompts), "answers") as done:
        for number in range(passes):
            async with opened() as client:
                await warm_up(client, warm)
                runs += await time_answers(
                    client, prompts, clock=clock, number=number, together=together, done=done
                )
    return runs


@asynccontextmanager
async def _cold_client(backend: str) -> AsyncGenerator[Client]:
    """A client of a backend whose prefix cache is empty: loaded anew, or flushed."""
    if backend.startswith("http"):
        await empty_prefix_cache(backend)
    async with Client(backend) as client:
        await client.connect()
        yield client


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table, write the raw figures."""
    options = _options(arguments)
    where = environment()
    families, count = options.families, options.n
    prompts = read_prompts(options.prompts) if options.prompts else held_out(families, count)
    warm = held_out(families, 1, first_seed=_WARM_UP_SEED)
    opened = partial(_cold_client, options.backend)
    runs = asyncio.run(measure(opened, prompts, warm=warm, passes=options.passes, together=options.together))
    print(markdown_table(summarise(runs)))
    if options.out:
        write_rows(options.out, [{"backend": options.backend, **where}, *map(asdict, runs)])


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="speed", description=__doc__, formatter_class=form)
    parser.add_argument("--backend", default="local:", help="as for pasta_async.generate")
    parser.add_argument("--n", type=int, default=20, help="prompts of each family")
    parser.add_argument("--families", nargs="*", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--prompts", help="a file with a prompt in each line, instead of held-out ones")
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--together", type=int, default=1, help="prompts that are answered at the same time")
    parser.add_argument("--out", help="file for the raw figures, as JSON lines")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
