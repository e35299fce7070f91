"""Answers under load, in sequence, in parallel, and as the load lets them be: latency and throughput.

    python -m pasta_async.evals.load --backend local:F --documents documents.jsonl --at-once 1 --at-once 8

Closed loops keep so many answers under way (--at-once), open ones let them arrive at so many a second as a
Poisson process, at the same times for each method (--rates). Answers are forced, as in
pasta_async.evals.methods, and take the documents in turn, from where the round before stopped. The methods
take turns at each load, in an order that goes round with the rounds (--rounds).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import accumulate, cycle, islice, product
from typing import Any, NamedTuple

from numpy import quantile
from pydantic import Field

from pasta_async.cli.command import Command, Count, Positive, command
from pasta_async.evals.answers import Answer, answers_in, cold_client
from pasta_async.evals.forcing import ForcedSettings, texts_of
from pasta_async.evals.methods import (
    METHODS,
    SEQUENTIAL,
    Case,
    ForcedEngine,
    Method,
    MethodName,
    cases_of,
    open_forced_engine,
    time_prepared,
    warm_up,
)
from pasta_async.evals.report import grouped, markdown_table
from pasta_async.evals.speed import grouped_mean
from pasta_async.progress import progress
from pasta_async.training.jobs import Journal, for_each


class Load(NamedTuple):
    """A closed loop of so many answers at once, the next one when one is done; or an open one."""

    at_once: int
    """0 in an open loop."""
    rate: float = 0.0
    """Arrivals a second of an open loop."""

    def __str__(self) -> str:
        """The load as it stands in tables."""
        return f"{self.at_once} at once" if self.at_once else f"{self.rate:g} a second"


async def write_under_load(
    engine: ForcedEngine, method: Method, cases: Sequence[Case], load: Load, number: int = 0
) -> list[Answer]:
    """Write an answer to each case, in order of arrival, under a load.

    Everything is encoded before the first arrival. Arrivals of an open loop are a Poisson process: one round,
    `number`, has the same times for every method. Cancelling it aborts all answers under way.
    """
    work = [method.prepare(engine.forced, case.fresh()) for case in cases]
    draw = random.Random(number)
    clock = engine.clock
    times = [*accumulate(draw.expovariate(load.rate) for _ in cases)] if load.rate else []
    written: dict[int, Answer] = {}
    began = clock.time()

    async def write(index: int) -> None:
        if load.rate:
            await clock.sleep(began + times[index] - clock.time())
        arrived = clock.time() - began
        answer = await time_prepared(engine, method, cases[index], work[index], number)
        written[index] = replace(answer, load=str(load), arrived=arrived)

    await for_each(range(len(cases)), write, load.at_once or len(cases))
    return [written[index] for index in range(len(cases))]


class LoadSettings(ForcedSettings):
    """Settings of a measurement."""

    methods: tuple[MethodName, ...] = Field(
        default=(SEQUENTIAL, "pasta", "auto"), description="what is compared"
    )
    at_once: tuple[Count, ...] = Field(
        default=(), description="closed loops: answers at once; without --rates too, 1, 4, 16 and 64"
    )
    rates: tuple[Positive, ...] = Field(default=(), description="open loops: arrivals a second")
    answers: Count = Field(default=32, description="for each load, method and round, at least")
    rounds: Count = Field(default=3, description="number of times that all of it is done")

    @property
    def loads(self) -> list[Load]:
        """All loads, closed loops first."""
        at_once = self.at_once or (() if self.rates else (1, 4, 16, 64))
        loads = (*(Load(count) for count in at_once), *(Load(0, rate) for rate in self.rates))
        return [*dict.fromkeys(loads)]


async def measure(
    engine: ForcedEngine, cases: Sequence[Case], settings: LoadSettings, journal: Journal | None = None
) -> list[Answer]:
    """Write answers to the cases in turn by each method under each load, in each round.

    A closed loop has at least twice as many answers as are at once. The journal keeps the answers when all
    of a round by a method under a load are there; those that it has already are not written again. Cancelling
    it aborts all answers under way.
    """
    kept = answers_in(journal.rows) if journal else []
    stored = grouped(kept, lambda answer: (answer.number, answer.load, answer.method))
    answers: list[Answer] = []
    methods = [*dict.fromkeys(settings.methods)]
    loads = settings.loads
    with progress(settings.rounds * len(loads) * len(methods), "loads") as advance:
        await warm_up(engine, [METHODS[name] for name in methods])
        for number, (index, load) in product(range(settings.rounds), enumerate(loads)):
            count = max(settings.answers, 2 * load.at_once)
            # A round takes up the cases where the one before stopped.
            due = [*islice(cycle(cases), number * count, (number + 1) * count)]
            first = (number + index) % len(methods)
            for name in (*methods[first:], *methods[:first]):
                # Parts of blocks that were broken off while they were stored stand in front of the whole one.
                block = stored.get((number, str(load), name), [])[-count:]
                if [answer.prompt for answer in block] != [case.index for case in due]:
                    block = await write_under_load(engine, METHODS[name], due, load, number)
                    if journal:
                        for answer in block:
                            journal.append(asdict(answer))
                answers += block
                advance()
    return answers


def summarise(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """A row for each load and method, over all rounds: latencies in seconds, answers a second.

    `times sooner` compares the answers with those in sequence to the same prompts in the same round. Answers
    of a round wait for each other on one engine, so its interval is over rounds.
    """
    rows: list[dict[str, Any]] = []
    names = dict.fromkeys(answer.method for answer in answers)
    # Sorted by round, so that the answers of two methods at a load have the same order, case by case.
    ordered = sorted(answers, key=lambda answer: answer.number)
    for load, at_load in grouped(ordered, lambda answer: answer.load).items():
        methods = grouped(at_load, lambda answer: answer.method)
        for name in [name for name in names if name in methods]:
            mine = methods[name]
            p50, p99 = quantile([answer.seconds for answer in mine], (0.5, 0.99)).tolist()
            row = {"load": load, "method": name, "answers": len(mine), "p50 s": p50, "p99 s": p99}
            row["answers a second"] = len(mine) / _busy_seconds(mine)
            # Without answers in sequence there is nothing to pair, and this is None.
            row["times sooner than in sequence"] = grouped_mean(
                (answer.number, other.seconds / answer.seconds)
                for answer, other in zip(mine, methods.get(SEQUENTIAL, ()), strict=False)
            )
            rows.append(row)
    return rows


def _busy_seconds(answers: Sequence[Answer]) -> float:
    """Seconds from the first arrival until the last answer was complete, over all rounds."""
    rounds = grouped(answers, lambda answer: answer.number).values()
    return sum(
        max(answer.arrived + answer.seconds for answer in of_round)
        - min(answer.arrived for answer in of_round)
        for of_round in rounds
    )


async def _run(settings: LoadSettings) -> str:
    documents = settings.read()
    may_change = ("methods", "at_once", "rates", "rounds")
    async with (
        settings.journal("load", texts_of(documents), without=may_change) as journal,
        cold_client(settings.backend, **settings.backend_options) as client,
        open_forced_engine(client.backend, documents) as engine,
    ):
        answers = await measure(engine, cases_of(documents), settings, journal)
    return markdown_table(summarise(answers))


main: Command = command(LoadSettings, _run, "load", __doc__, resumes=True)

if __name__ == "__main__":
    main()
