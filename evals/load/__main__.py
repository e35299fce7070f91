"""Answers under load, forked and in sequence: latency, throughput, and goodput under a latency target.

    python -m pasta_async.evals.load --backend local:FOLDER --documents documents.jsonl --at-once 1 4 16
    python -m pasta_async.evals.load --backend http://127.0.0.1:30000 --documents documents.jsonl --rates 1 2

Closed loops keep so many answers under way (--at-once), open ones let them arrive at so many a second as a
Poisson process, at the same times for each method (--rates). Answers are written under force, as in
pasta_async.evals.methods, and take the documents in turn. A batch of one leaves an engine's memory bandwidth
idle, which is what parallel decoding uses; a full batch leaves nothing, and tags and prefills cost. Where the
one goes over into the other is what this shows.
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import asdict
from itertools import cycle, islice
from typing import TYPE_CHECKING

from pasta_async.cli.command import ending
from pasta_async.evals.command import count, positive
from pasta_async.evals.documents import documents_digest, read_documents
from pasta_async.evals.engines import clock_of, cold_backend
from pasta_async.evals.load import Block, drive, figures, pays_up_to, summarise
from pasta_async.evals.load.summary import default_target
from pasta_async.evals.methods import METHODS, Case, open_engine, play
from pasta_async.evals.records import markdown_table, opened_journal
from pasta_async.jobs import progress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pasta_async.evals.load.driving import Mode
    from pasta_async.evals.load.summary import Figures
    from pasta_async.evals.methods import Engine, Method
    from pasta_async.jobs import Journal
    from pasta_async.lang import Document

__all__ = ["main", "measure"]


async def measure(
    engine: Engine,
    cases: Sequence[Case],
    methods: Sequence[Method],
    loads: Sequence[tuple[Mode, float]],
    *,
    answers: int,
    seed: int = 0,
    journal: Journal | None = None,
) -> list[Block]:
    """Write so many answers by each method under each load.

    Args:
        engine: What writes.
        cases: Taken in turn.
        methods: What is compared.
        loads: Mode and level; see `pasta_async.evals.load.drive`.
        answers: For each load and method; at least twice as many as are at once.
        seed: Of the arrivals.
        journal: Keeps every block as it comes; those that it has already are not taken again.

    Cancelling it aborts all answers under way.
    """
    blocks = [Block.of(row) for row in journal.rows if "environment" not in row] if journal else []
    known = {(block.mode, block.level, block.method) for block in blocks}
    with progress(len(loads) * len(methods), "loads") as done:
        for method in methods:
            await play(engine, method, cases[0])
        for mode, level in loads:
            count = max(answers, 2 * int(level)) if mode == "closed" else answers
            for method in methods:
                if (mode, level, method.name) not in known:
                    asked = [*islice(cycle(cases), count)]
                    blocks.append(await drive(engine, method, asked, mode=mode, level=level, seed=seed))
                    if journal:
                        journal.append(asdict(blocks[-1]))
                done()
    return blocks


@ending()
def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table, keep the raw figures."""
    options = _options(arguments)
    documents = read_documents(options.documents, options.first)
    measured = {
        "benchmark": "load",
        "backend": options.backend,
        "documents": documents_digest(documents),
        "answers": options.answers,
        "seed": options.seed,
    }
    with ending(resumes=bool(options.out)), opened_journal(options.out, measured) as journal:
        blocks = asyncio.run(_run(options, documents, journal))
    target = options.target or default_target(blocks)
    found = figures(blocks, target)
    print(f"latency target {target:.3g} s\n\n{markdown_table(summarise(found))}\n")
    print("\n".join(_told(found, name) for name in options.methods if name != "sequential"))


async def _run(
    options: argparse.Namespace, documents: Mapping[str, Document], journal: Journal | None
) -> list[Block]:
    cases = [Case(index, prompt, document) for index, (prompt, document) in enumerate(documents.items())]
    at_once: list[int] = options.at_once
    rates: list[float] = options.rates
    loads: list[tuple[Mode, float]] = [
        *(("closed", count) for count in at_once),
        *(("open", r) for r in rates),
    ]
    methods = [METHODS[name] for name in options.methods]
    async with (
        cold_backend(options.backend) as backend,
        open_engine(backend, documents, url=options.backend, clock=clock_of(backend)) as engine,
    ):
        return await measure(
            engine, cases, methods, loads, answers=options.answers, seed=options.seed, journal=journal
        )


_MODES: tuple[tuple[Mode, str], ...] = (("closed", "at once"), ("open", "a second"))


def _told(found: Sequence[Figures], method: str) -> str:
    """Up to which load a method's answers come sooner than in sequence, and by how much there and beyond."""
    words = list[str]()
    for mode, unit in _MODES:
        speedups = {
            one.level: one.speedup or 0.0 for one in found if (one.method, one.mode) == (method, mode)
        }
        end = pays_up_to(found, method, mode)
        beyond = [level for level in speedups if end is None or level > end][:1]
        words += [f"{speedups[end]:.2f} times as soon as in sequence with {end:g} {unit}"] if end else []
        words += [f"{speedups[level]:.2f} times with {level:g} {unit}: it no longer pays" for level in beyond]
    return f"{method}: {', '.join(words)}"


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="load", description=__doc__, formatter_class=form)
    parser.add_argument("--backend", required=True, help="local:FOLDER, or the URL of an SGLang server")
    parser.add_argument("--documents", required=True, help="records with prompts and written answers")
    parser.add_argument("--first", type=count, help="take so many of them only")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["sequential", "pasta"])
    parser.add_argument("--at-once", type=count, nargs="*", default=[1, 4, 16, 64], help="closed loops")
    parser.add_argument("--rates", type=positive, nargs="*", default=[], help="open loops: arrivals a second")
    parser.add_argument("--answers", type=count, default=32, help="for each load and method, at least")
    parser.add_argument("--target", type=positive, help="seconds; default: twice the unloaded median")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="file for the raw figures; one that was broken off is gone on with")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
