"""Answers under load, in sequence, in parallel, and as the load lets them be: latency and throughput.

    python -m pasta_async.evals.load --backend local:F --documents documents.jsonl --at-once 1 --at-once 8

So many answers are kept under way (--at-once): the next one begins when one is done. Answers are forced, as
in pasta_async.evals.methods, and take the documents in turn, from where the round before stopped. The methods
take turns at each load, in an order that goes round with the rounds (--rounds). A batch of one leaves an
engine's memory bandwidth idle, which is what parallel decoding uses; a full batch leaves nothing, and tags
and prefills cost. This shows where the one turns into the other, and what `parallel="auto"` makes of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import cycle, islice, product
from typing import Any

from numpy import quantile
from pydantic import Field
from pydantic.dataclasses import dataclass

from pasta_async.cli.command import Command, Count, command
from pasta_async.errors import InvalidRequestError
from pasta_async.evals.answers import Answer, cold_client
from pasta_async.evals.forcing import ForcedSettings, read_documents
from pasta_async.evals.methods import (
    METHODS,
    SEQUENTIAL,
    Case,
    Engine,
    Method,
    cases_of,
    open_engine,
    time_work,
    warm_up,
)
from pasta_async.evals.report import grouped, markdown_table, measurements, opened_journal
from pasta_async.evals.speed import mean_by_prompt
from pasta_async.jobs import Journal, for_each, progress


@dataclass(frozen=True)
class Block:
    """Answers by one method at one load in one round: a line of the results, as JSON."""

    at_once: int
    method: str
    seconds: float
    """From the first request until the last answer was complete."""
    answers: tuple[Answer, ...]
    """In the order of their requests."""
    round: int = 0


async def drive(
    engine: Engine, method: Method, cases: Sequence[Case], at_once: int, number: int = 0
) -> Block:
    """Write an answer to each case in order, `at_once` at the same time, in a round.

    Everything is encoded before the first request. Cancelling it aborts all answers under way.
    """
    work = [method.prepare(engine.forced, case.fresh()) for case in cases]
    written: dict[int, Answer] = {}
    began = engine.clock.time()

    async def write(index: int) -> None:
        written[index] = await time_work(engine, method, cases[index], work[index], number)

    await for_each(range(len(cases)), write, at_once)
    seconds = engine.clock.time() - began
    return Block(at_once, method.name, seconds, tuple(written[index] for index in range(len(cases))), number)


class LoadSettings(ForcedSettings):
    """Settings of a measurement."""

    methods: tuple[str, ...] = Field(default=(SEQUENTIAL, "pasta", "auto"), description="what is compared")
    at_once: tuple[Count, ...] = Field(default=(1, 4, 16, 64), description="answers at the same time")
    answers: Count = Field(default=32, description="for each load, method and round, at least")
    rounds: Count = Field(default=3, description="number of times that all of it is done")


async def measure(
    engine: Engine, cases: Sequence[Case], settings: LoadSettings, journal: Journal | None = None
) -> list[Block]:
    """Write answers to the cases in turn by each method under each load, in each round.

    There are at least twice as many answers as are at once. The journal keeps every block as it
    comes; those that it has already are not taken again. Cancelling it aborts all answers under way.
    """
    blocks = [Block(**row) for row in measurements(journal)]
    known = {(block.round, block.at_once, block.method) for block in blocks}
    methods, loads, rounds = settings.methods, settings.at_once, settings.rounds
    with progress(rounds * len(loads) * len(methods), "loads") as advance:
        await warm_up(engine, [METHODS[name] for name in methods])
        for number, (index, at_once) in product(range(rounds), enumerate(loads)):
            count = max(settings.answers, 2 * at_once)
            asked = [*islice(cycle(cases), number * count, (number + 1) * count)]
            first = (number + index) % len(methods)
            for name in (*methods[first:], *methods[:first]):
                if (number, at_once, name) not in known:
                    block = await drive(engine, METHODS[name], asked, at_once, number)
                    blocks.append(block)
                    if journal:
                        journal.append(asdict(block))
                advance()
    return blocks


def summarise(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    """A row for each load and method, over all rounds: latencies in seconds, answers a second.

    `times sooner` compares the answers with those in sequence to the same prompts in the same round.
    """
    rows: list[dict[str, Any]] = []
    ordered = sorted(blocks, key=lambda block: (block.at_once, block.round))
    for at_once, at_load in grouped(ordered, lambda block: block.at_once).items():
        methods = grouped(at_load, lambda block: block.method)
        for name in dict.fromkeys(block.method for block in blocks):
            answers = [answer for block in methods[name] for answer in block.answers]
            base = [answer for block in methods.get(SEQUENTIAL, ()) for answer in block.answers]
            p50, p99 = quantile([answer.seconds for answer in answers], (0.5, 0.99)).tolist()
            row = {"at once": at_once, "method": name, "answers": len(answers), "p50 s": p50, "p99 s": p99}
            row["answers a second"] = len(answers) / sum(block.seconds for block in methods[name])
            row["times sooner than in sequence"] = mean_by_prompt(
                (mine.prompt, other.seconds / mine.seconds)
                for mine, other in zip(answers, base, strict=False)
            )
            rows.append(row)
    return rows


async def _run(settings: LoadSettings) -> str:
    documents = read_documents(settings.documents, settings.sample)
    if unknown := {*settings.methods} - METHODS.keys():
        raise InvalidRequestError(f"there is no method {min(unknown)!r}; methods are {', '.join(METHODS)}")
    measured = {**(await settings.measured("load", documents)), "answers": settings.answers}
    with opened_journal(settings.out, measured) as journal:
        async with cold_client(settings.backend) as client, open_engine(client.backend, documents) as engine:
            blocks = await measure(engine, cases_of(documents), settings, journal)
    return markdown_table(summarise(blocks))


main: Command = command(LoadSettings, _run, "load", __doc__, resumes=True)

if __name__ == "__main__":
    main()
