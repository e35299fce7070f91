"""Answers under load, forked and in sequence: latency, throughput, and goodput under a latency target.

    python -m pasta_async.evals.load --backend local:F --documents documents.jsonl --at-once 1 --at-once 8
    python -m pasta_async.evals.load --backend http://127.0.0.1:30000 --documents documents.jsonl --rates 2

Closed loops keep so many answers under way (--at-once), open ones let them arrive at so many a second as a
Poisson process, at the same times for each method (--rates). Answers are forced, as in
pasta_async.evals.methods, and take the documents in turn. A batch of one leaves an engine's memory bandwidth
idle, which is what parallel decoding uses; a full batch leaves nothing, and tags and prefills cost. This
shows where the one turns into the other.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from dataclasses import asdict
from itertools import accumulate, cycle, islice, takewhile
from operator import itemgetter
from statistics import geometric_mean, median
from typing import TYPE_CHECKING, Any, Literal

from numpy import quantile
from pydantic import Field
from pydantic.dataclasses import dataclass

from pasta_async.cli.command import Command, Count, Positive, command
from pasta_async.evals.answers import Answer
from pasta_async.evals.documents import ForcedSettings, documents_digest, read_documents
from pasta_async.evals.engines import cold_backend
from pasta_async.evals.methods import METHODS, cases_of, open_engine, play, time_work
from pasta_async.evals.records import markdown_table, measurements, opened_journal
from pasta_async.jobs import for_each, progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.evals.methods import Case, Engine, Method
    from pasta_async.jobs import Journal

__all__ = [
    "Block",
    "Figures",
    "LoadSettings",
    "Mode",
    "default_target",
    "describe_break_even",
    "drive",
    "figures",
    "main",
    "measure",
    "run",
    "summarise",
]

Mode = Literal["open", "closed"]
"""Arrivals at a rate, whatever is still under way; or so many at once, the next one when one is done."""

BASE = "sequential"
UNITS: dict[Mode, str] = {"closed": "at once", "open": "a second"}


@dataclass(frozen=True)
class Block:
    """Answers by one method at one load: a line of the results, as JSON."""

    mode: Mode
    level: float
    """Arrivals a second (`open`), or answers at once (`closed`)."""
    method: str
    seconds: float
    """From the first arrival until the last answer was complete."""
    arrived: tuple[float, ...]
    """Seconds from its beginning until each answer was asked for."""
    answers: tuple[Answer, ...]
    """In the same order."""


async def drive(
    engine: Engine, method: Method, cases: Sequence[Case], *, mode: Mode, level: float, seed: int = 0
) -> Block:
    """Write these cases' answers by a method under a load.

    Everything is encoded before the first arrival. Arrivals of an open loop are a Poisson process: the same
    seed gives the same times, for every method.

    Args:
        engine: What writes.
        method: How.
        cases: One for each answer, in order of arrival.
        mode: How answers arrive.
        level: Arrivals a second, or answers at once.
        seed: Of the arrivals.

    Cancelling it aborts all answers under way.
    """
    work = [await method.prepare(engine, case.fresh()) for case in cases]
    draw, clock = random.Random(seed), engine.clock
    times = [*accumulate(draw.expovariate(level) for _ in cases)]
    answers = list[tuple[float, Answer]]()
    began = clock.time()

    async def one(number: int) -> None:
        if mode == "open":
            await clock.sleep(began + times[number] - clock.time())
        arrived = clock.time() - began
        answers.append((arrived, await time_work(engine, method, cases[number], work[number])))

    await for_each(range(len(cases)), one, int(level) if mode == "closed" else len(cases))
    answers.sort(key=itemgetter(0))
    seconds = max(arrived + answer.seconds for arrived, answer in answers) - answers[0][0]
    arrived, timed = zip(*answers, strict=True)
    return Block(mode, level, method.name, seconds, arrived, timed)


async def measure(
    engine: Engine,
    cases: Sequence[Case],
    methods: Sequence[Method],
    loads: Sequence[tuple[Mode, float]],
    *,
    answers: int,
    journal: Journal | None = None,
) -> list[Block]:
    """Write so many answers by each method under each load.

    Args:
        engine: What writes.
        cases: Taken in turn.
        methods: What is compared.
        loads: Mode and level; see `drive`.
        answers: For each load and method; at least twice as many as are at once.
        journal: Keeps every block as it comes; those that it has already are not taken again.

    Cancelling it aborts all answers under way.
    """
    blocks = [Block(**row) for row in measurements(journal)]
    known = {(block.mode, block.level, block.method) for block in blocks}
    with progress(len(loads) * len(methods), "loads") as done:
        for method in methods:
            await play(engine, method, cases[0])
        for mode, level in loads:
            count = max(answers, 2 * int(level)) if mode == "closed" else answers
            for method in methods:
                if (mode, level, method.name) not in known:
                    asked = [*islice(cycle(cases), count)]
                    blocks.append(await drive(engine, method, asked, mode=mode, level=level))
                    if journal:
                        journal.append(asdict(blocks[-1]))
                done()
    return blocks


@dataclass(frozen=True)
class Figures:
    """What one block comes to: the points of the load curves. Times are in seconds, rates by the second."""

    mode: Mode
    level: float
    method: str
    answers: int
    p50: float
    """Latency: half of the answers were sooner."""
    p90: float
    p99: float
    first_token: float
    """Median."""
    throughput: float
    """Answers."""
    goodput: float
    """Answers whose latency met the target."""
    tokens: float
    """Decoded tokens, what a method needs besides the text counted."""
    speedup: float | None
    """Latency of the same answers in sequence / latency (geometric mean); None if they were not measured."""

    @classmethod
    def of(cls, block: Block, base: Block | None, target: float) -> Figures:
        """Those of a block beside the block in sequence, under a latency target in seconds."""
        latencies = [answer.seconds for answer in block.answers]
        p50, p90, p99 = quantile(latencies, (0.5, 0.9, 0.99)).tolist()
        return cls(
            mode=block.mode,
            level=block.level,
            method=block.method,
            answers=len(latencies),
            p50=p50,
            p90=p90,
            p99=p99,
            first_token=median(answer.first_token for answer in block.answers),
            throughput=len(latencies) / block.seconds,
            goodput=sum(latency <= target for latency in latencies) / block.seconds,
            tokens=sum(answer.tokens for answer in block.answers) / block.seconds,
            speedup=_speedup(block, base) if base else None,
        )


def _speedup(block: Block, base: Block) -> float:
    ours, theirs = _by_prompt(block), _by_prompt(base)
    return geometric_mean([theirs[prompt] / ours[prompt] for prompt in ours if prompt in theirs])


def _by_prompt(block: Block) -> dict[int, float]:
    latencies = defaultdict[int, list[float]](list)
    for answer in block.answers:
        latencies[answer.prompt].append(answer.seconds)
    return {prompt: geometric_mean(values) for prompt, values in latencies.items()}


def figures(blocks: Sequence[Block], target: float) -> list[Figures]:
    """Figures of every block, by mode, level and method, under a latency target in seconds."""
    bases = {(block.mode, block.level): block for block in blocks if block.method == BASE}
    order = sorted(blocks, key=lambda block: (block.mode, block.level))
    return [Figures.of(block, bases.get((block.mode, block.level)), target) for block in order]


def default_target(blocks: Sequence[Block]) -> float:
    """Twice the median latency in sequence at the lowest load; of any method if that is missing."""
    base = [block for block in blocks if block.method == BASE] or blocks
    lowest = min(base, key=lambda block: (block.mode, block.level))
    return 2 * median(answer.seconds for answer in lowest.answers)


def summarise(found: Sequence[Figures]) -> list[dict[str, Any]]:
    """The figures as rows of a table."""
    rows = [{"load": f"{one.level:g} {UNITS[one.mode]}", **asdict(one)} for one in found]
    names = [name for name in rows[0] if name not in ("mode", "level")]
    return [{name.replace("_", " "): row[name] for name in names} for row in rows]


def describe_break_even(found: Sequence[Figures], method: str) -> str:
    """Up to which load a method's answers come sooner than in sequence, and by how much there and beyond."""
    parts = list[str]()
    for mode, unit in UNITS.items():
        own = [one for one in found if (one.method, one.mode) == (method, mode)]
        paying = [*takewhile(lambda one: (one.speedup or 0) > 1, own)]
        for one in (*paying[-1:], *own[len(paying) : len(paying) + 1]):
            where = f"{one.speedup or 0:.2f} times as soon as in sequence with {one.level:g} {unit}"
            end = f" ({one.answers} answers)" if one in paying else ", where it no longer pays"
            parts.append(where + end)
    return f"{method}: {', '.join(parts)}"


class LoadSettings(ForcedSettings):
    """Which loads, by which methods."""

    methods: tuple[str, ...] = Field(default=(BASE, "pasta"), description="what is compared")
    at_once: tuple[Count, ...] = Field(
        default=(), description="closed loops: answers at once; without --rates too, 1, 4, 16 and 64"
    )
    rates: tuple[Positive, ...] = Field(default=(), description="open loops: arrivals a second")
    answers: int = Field(default=32, ge=1, description="for each load and method, at least")
    target: float | None = Field(
        default=None, gt=0, description="in seconds; default: twice the unloaded median"
    )

    @property
    def loads(self) -> list[tuple[Mode, float]]:
        """Mode and level of each load."""
        at_once = self.at_once or (() if self.rates else (1, 4, 16, 64))
        return [*(("closed", count) for count in at_once), *(("open", rate) for rate in self.rates)]


async def _measure(settings: LoadSettings) -> list[Block]:
    documents = read_documents(settings.documents, settings.first)
    methods = [METHODS[name] for name in settings.methods]
    measured = {
        "benchmark": "load",
        "backend": settings.backend,
        "documents": documents_digest(documents),
        "answers": settings.answers,
    }
    with opened_journal(settings.out, measured) as journal:
        async with (
            cold_backend(settings.backend) as backend,
            open_engine(backend, documents, url=settings.backend) as engine,
        ):
            cases, answers = cases_of(documents), settings.answers
            return await measure(engine, cases, methods, settings.loads, answers=answers, journal=journal)


def run(settings: LoadSettings) -> str:
    """Measure, and keep the raw figures; the table. It runs an event loop of its own."""
    blocks = asyncio.run(_measure(settings))
    target = settings.target or default_target(blocks)
    found = figures(blocks, target)
    ends = "\n".join(describe_break_even(found, name) for name in settings.methods if name != BASE)
    head = f"seconds, rates a second; latency target {target:.3g} s"
    return "\n\n".join([head, markdown_table(summarise(found)), ends])


main: Command = command(LoadSettings, run, "load", __doc__, resumes=True)

if __name__ == "__main__":
    main()
