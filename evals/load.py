"""Answers under load, in sequence, in parallel, and as the load lets them be: latency and throughput.

    python -m pasta_async.evals.load --backend local:F --documents documents.jsonl --at-once 1 --at-once 8
    python -m pasta_async.evals.load --backend http://127.0.0.1:30000 --documents documents.jsonl --rates 2

Closed loops keep so many answers under way (--at-once), open ones let them arrive at so many a second as a
Poisson process, at the same times for each method (--rates). Answers are forced, as in
pasta_async.evals.methods, and take the documents in turn, from where the round before stopped. The methods
take turns at each load, in an order that goes round with the rounds (--rounds). A batch of one leaves an
engine's memory bandwidth idle, which is what parallel decoding uses; a full batch leaves nothing, and tags
and prefills cost. This shows where the one turns into the other, and what `parallel="auto"` makes of that.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict
from itertools import accumulate, cycle, islice, product
from typing import Any, Literal

from numpy import quantile
from pydantic import Field
from pydantic.dataclasses import dataclass

from pasta_async.cli.command import Command, Count, Positive, command
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

Mode = Literal["open", "closed"]
"""Arrivals at a rate, or a fixed number of answers at once, the next one when one is done."""

UNITS: dict[Mode, str] = {"closed": "at once", "open": "a second"}


@dataclass(frozen=True)
class Block:
    """Answers by one method at one load in one round: a line of the results, as JSON."""

    mode: Mode
    level: float
    """Arrivals a second (`open`), or answers at once (`closed`)."""
    method: str
    seconds: float
    """Time from the first arrival until the last answer was complete."""
    arrived: tuple[float, ...]
    """Seconds from the block's beginning until each answer was asked for."""
    answers: tuple[Answer, ...]
    """The answers, in the order of arrival."""
    round: int = 0

    @property
    def load(self) -> str:
        """Mode and level as they stand in tables."""
        return f"{self.level:g} {UNITS[self.mode]}"


async def drive(
    engine: Engine, method: Method, cases: Sequence[Case], *, mode: Mode, level: float, number: int = 0
) -> Block:
    """Write an answer to each case, in order of arrival, under a load.

    Everything is encoded before the first arrival. Arrivals of an open loop are a Poisson process: one round,
    `number`, has the same times for every method. Cancelling it aborts all answers under way.
    """
    work = [method.prepare(engine.forced, case.fresh()) for case in cases]
    draw = random.Random(number)
    clock = engine.clock
    times = [*accumulate(draw.expovariate(level) for _ in cases)]
    written: dict[int, tuple[float, Answer]] = {}
    began = clock.time()

    async def write(index: int) -> None:
        if mode == "open":
            await clock.sleep(began + times[index] - clock.time())
        arrived = clock.time() - began
        answer = await time_work(engine, method, cases[index], work[index], number)
        written[index] = (arrived, answer)

    await for_each(range(len(cases)), write, int(level) if mode == "closed" else len(cases))
    arrived, answers = zip(*(written[index] for index in range(len(cases))), strict=True)
    ends = [start + answer.seconds for start, answer in written.values()]
    return Block(mode, level, method.name, max(ends) - min(arrived), arrived, answers, number)


class LoadSettings(ForcedSettings):
    """Settings of a measurement."""

    methods: tuple[str, ...] = Field(default=(SEQUENTIAL, "pasta", "auto"), description="what is compared")
    at_once: tuple[Count, ...] = Field(
        default=(), description="closed loops: answers at once; without --rates too, 1, 4, 16 and 64"
    )
    rates: tuple[Positive, ...] = Field(default=(), description="open loops: arrivals a second")
    answers: Count = Field(default=32, description="for each load, method and round, at least")
    rounds: Count = Field(default=3, description="number of times that all of it is done")

    @property
    def loads(self) -> list[tuple[Mode, float]]:
        """Mode and level of each load."""
        at_once = self.at_once or (() if self.rates else (1, 4, 16, 64))
        return [*(("closed", count) for count in at_once), *(("open", rate) for rate in self.rates)]


async def measure(
    engine: Engine, cases: Sequence[Case], settings: LoadSettings, journal: Journal | None = None
) -> list[Block]:
    """Write answers to the cases in turn by each method under each load, in each round.

    A closed loop has at least twice as many answers as are at once. The journal keeps every block as it
    comes; those that it has already are not taken again. Cancelling it aborts all answers under way.
    """
    blocks = [Block(**row) for row in measurements(journal)]
    done = {(block.round, block.mode, block.level, block.method) for block in blocks}
    methods = settings.methods
    loads = settings.loads
    with progress(settings.rounds * len(loads) * len(methods), "loads") as advance:
        await warm_up(engine, [METHODS[name] for name in methods])
        for number, (index, (mode, level)) in product(range(settings.rounds), enumerate(loads)):
            count = max(settings.answers, 2 * int(level)) if mode == "closed" else settings.answers
            # A round takes up the cases where the one before stopped.
            due = [*islice(cycle(cases), number * count, (number + 1) * count)]
            first = (number + index) % len(methods)
            for name in (*methods[first:], *methods[:first]):
                if (number, mode, level, name) not in done:
                    block = await drive(engine, METHODS[name], due, mode=mode, level=level, number=number)
                    blocks.append(block)
                    if journal:
                        journal.append(asdict(block))
                advance()
    return blocks


def summarise(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    """A row for each load and method, over all rounds: latencies in seconds, answers a second.

    `times sooner` compares the answers with those in sequence to the same prompts in the same round.
    """
    # Sorted by round, so that the answers of two methods at a load have the same order, case by case.
    rows: list[dict[str, Any]] = []
    ordered = sorted(blocks, key=lambda block: (block.mode, block.level, block.round))
    for load, at_load in grouped(ordered, lambda block: block.load).items():
        methods = grouped(at_load, lambda block: block.method)
        for name in dict.fromkeys(block.method for block in blocks):
            answers = [answer for block in methods[name] for answer in block.answers]
            base = [answer for block in methods.get(SEQUENTIAL, ()) for answer in block.answers]
            p50, p99 = quantile([answer.seconds for answer in answers], (0.5, 0.99)).tolist()
            row = {"load": load, "method": name, "answers": len(answers), "p50 s": p50, "p99 s": p99}
            row["answers a second"] = len(answers) / sum(block.seconds for block in methods[name])
            # Without answers in sequence there is nothing to pair, and this is None.
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
