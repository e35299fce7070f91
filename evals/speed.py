"""How much sooner an answer comes: baseline / parallel wall clock, beside the theoretical speed-up.

    python -m pasta_async.evals.speed --backend local: --n 20
    python -m pasta_async.evals.speed --backend http://127.0.0.1:30000 --n 5 --families describe totals
    python -m pasta_async.evals.speed --backend local:FOLDER --documents documents.jsonl --out speed.jsonl

One model answers every prompt in both forms: in parallel, and as the baseline, without tags. The order goes
A B B A over the prompts (or groups of them, with --together), the other way round in the next pass. Each pass
begins with a cold prefix cache and a few answers that do not count, so no answer finds its own text there.

With --documents the engine is made to write given answers (pasta_async.evals.forcing): real lengths and real
structure with any weights. With --out every run is kept as it comes, and the same command goes on where it
was broken off, from a cold cache again.
"""

from __future__ import annotations

import argparse
import asyncio
from functools import partial
from typing import TYPE_CHECKING

from pasta_async.cli.command import ending
from pasta_async.clock import REAL_CLOCK
from pasta_async.evals.command import count
from pasta_async.evals.documents import read_documents
from pasta_async.evals.engines import cold_client
from pasta_async.evals.forcing import FORCED_SAMPLING
from pasta_async.evals.prompts import Prompt, digest, held_out, read_prompts
from pasta_async.evals.records import markdown_table, opened_journal
from pasta_async.evals.speedups import summarise
from pasta_async.evals.timing import SAMPLING, Run, time_answers, warm_up
from pasta_async.jobs import progress
from pasta_async.training.synthetic import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from pasta_async import Client, Sampling
    from pasta_async.clock import Clock
    from pasta_async.jobs import Journal
    from pasta_async.lang import Document

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
    sampling: Sampling = SAMPLING,
    journal: Journal | None = None,
    clock: Clock = REAL_CLOCK,
) -> list[Run]:
    """Time every prompt in both forms, `passes` times.

    Args:
        opened: Gives a client whose prefix cache is cold; called for each pass.
        prompts: What is asked.
        warm: Prompts that are answered first, and not counted.
        passes: How often all of it is done.
        together: Prompts that are answered at the same time.
        sampling: How tokens are chosen.
        journal: Keeps every run as it comes; those that it has already are not taken again.
        clock: Measures.

    Cancelling it cancels the answers under way and closes the client.
    """
    runs = list[Run]()
    with progress(2 * passes * len(prompts), "answers") as done:
        for number in range(passes):
            async with opened() as client:
                await warm_up(client, warm, sampling)
                runs += await time_answers(
                    client,
                    prompts,
                    clock=clock,
                    number=number,
                    together=together,
                    sampling=sampling,
                    journal=journal,
                    done=done,
                )
    return runs


@ending()
def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table, keep the raw figures."""
    options = _options(arguments)
    documents = read_documents(options.documents, options.first) if options.documents else None
    prompts, warm = _prompts(options, documents)
    measured = {
        "benchmark": "speed",
        "backend": options.backend,
        "forced": documents is not None,
        "prompts": digest(prompt.text for prompt in prompts),
        "passes": options.passes,
        "together": options.together,
    }
    with ending(resumes=bool(options.out)), opened_journal(options.out, measured) as journal:
        runs = asyncio.run(
            measure(
                partial(cold_client, options.backend, documents),
                prompts,
                warm=warm,
                passes=options.passes,
                together=options.together,
                sampling=FORCED_SAMPLING if documents else SAMPLING,
                journal=journal,
            )
        )
    print(markdown_table(summarise(runs)))


def _prompts(
    options: argparse.Namespace, documents: Mapping[str, Document] | None
) -> tuple[list[Prompt], list[Prompt]]:
    """What is measured, and what warms up."""
    if documents:
        prompts = [Prompt(text, "parallel" if d.promises else "sequential") for text, d in documents.items()]
        return prompts, prompts[:1]
    if options.prompts:
        prompts = read_prompts(options.prompts)[: options.first]
    else:
        prompts = held_out(options.families, options.n)
    return prompts, held_out(options.families, 1, first_seed=_WARM_UP_SEED)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="speed", description=__doc__, formatter_class=form)
    parser.add_argument("--backend", default="local:", help="as for pasta_async.generate")
    parser.add_argument("--n", type=count, default=20, help="held-out prompts of each family")
    parser.add_argument("--families", nargs="*", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument(
        "--prompts", help="instead of these: a file with a prompt in each line, or .jsonl with `instruction`"
    )
    parser.add_argument(
        "--documents", help="forced decoding: records with prompts and the answers that are to be written"
    )
    parser.add_argument("--first", type=count, help="take so many of a file's prompts only")
    parser.add_argument("--passes", type=count, default=2)
    parser.add_argument("--together", type=count, default=1, help="prompts that are answered at a time")
    parser.add_argument(
        "--out", help="file for the raw figures, as JSON lines; one that was broken off is gone on with"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
