"""Answers under load, in sequence, in parallel, and as the load lets them be: latency, throughput, goodput.

    python -m pasta_async.evals.load --backend local:F --documents documents.jsonl --at-once 1 --at-once 8
    python -m pasta_async.evals.load --backend http://127.0.0.1:30000 --documents documents.jsonl --rates 2

Closed loops keep so many answers under way (--at-once), open ones let them arrive at so many a second as a
Poisson process, at the same times for each method (--rates). Answers are forced, as in
pasta_async.evals.methods, and take the documents in turn, from where the round before stopped. The methods
take turns at each load, in an order that goes round with the rounds (--rounds). "sequential + auto" has them
answer in turn; its figures are those of the plain answers, beside the same ones among their like. A batch of
one leaves an engine's memory bandwidth idle, which is what parallel decoding uses; a full batch leaves
nothing, and tags and prefills cost. This shows where the one turns into the other, and what `parallel="auto"`
makes of that.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict
from itertools import accumulate, cycle, islice, product
from statistics import geometric_mean, median
from typing import Any, Literal

from numpy import quantile
from pydantic import Field
from pydantic.dataclasses import dataclass

from pasta_async.cli.command import Command, Count, Positive, command
from pasta_async.errors import InvalidRequestError
from pasta_async.evals.answers import Answer, by_prompt
from pasta_async.evals.documents import ForcedSettings, read_documents
from pasta_async.evals.engines import cold_backend
from pasta_async.evals.methods.strategies import METHODS
from pasta_async.evals.methods.track import Case, Engine, Method, cases_of, open_engine, time_work, warm_up
from pasta_async.evals.records import grouped, markdown_table, measurements, opened_journal
from pasta_async.jobs import Journal, for_each, progress
from pasta_async.training.statistics import estimate, format_estimate

Mode = Literal["open", "closed"]
"""Arrivals at a rate, whatever is still under way; or so many at once, the next one when one is done."""

BASE = "sequential"
MIXED = " + "
UNITS: dict[Mode, str] = {"closed": "at once", "open": "a second"}


@dataclass(frozen=True)
class Block:
    """Answers by one method at one load in one round: a line of the results, as JSON."""

    mode: Mode
    level: float
    """Arrivals a second (`open`), or answers at once (`closed`)."""
    method: str
    """Or two of them with a plus between, which answered in turn."""
    seconds: float
    """From the first arrival until the last answer was complete."""
    arrived: tuple[float, ...]
    """Seconds from its beginning until each answer was asked for."""
    answers: tuple[Answer, ...]
    """In the same order."""
    round: int = 0

    @property
    def load(self) -> str:
        """As it stands in tables."""
        return f"{self.level:g} {UNITS[self.mode]}"

    def part(self, method: str) -> tuple[Answer, ...]:
        """The answers that figures under a method's name are about: beside another method, the plain ones.

        Of a block in sequence those that came at the same places.
        """
        names = method.split(MIXED)
        return self.answers[names.index(BASE) :: len(names)] if len(names) > 1 else self.answers


async def drive(
    engine: Engine,
    methods: Sequence[Method],
    cases: Sequence[Case],
    *,
    mode: Mode,
    level: float,
    number: int = 0,
) -> Block:
    """Write an answer to each case, in order of arrival, each by the next of the methods, under a load.

    Everything is encoded before the first arrival. Arrivals of an open loop are a Poisson process: the same
    round, `number`, gives the same times, for every method. Cancelling it aborts all answers under way.
    """
    turns = [*islice(cycle(methods), len(cases))]
    work = [await how.prepare(engine, case.fresh()) for how, case in zip(turns, cases, strict=True)]
    draw, clock = random.Random(number), engine.clock
    times = [*accumulate(draw.expovariate(level) for _ in cases)]
    answers = dict[int, tuple[float, Answer]]()
    began = clock.time()

    async def one(place: int) -> None:
        if mode == "open":
            await clock.sleep(began + times[place] - clock.time())
        arrived = clock.time() - began
        answers[place] = arrived, await time_work(engine, turns[place], cases[place], work[place], number)

    await for_each(range(len(cases)), one, int(level) if mode == "closed" else len(cases))
    arrived, timed = zip(*(answers[place] for place in range(len(cases))), strict=True)
    seconds = max(at + answer.seconds for at, answer in answers.values()) - min(arrived)
    return Block(mode, level, MIXED.join(how.name for how in methods), seconds, arrived, timed, number)


class LoadSettings(ForcedSettings):
    """Which loads, by which methods."""

    methods: tuple[str, ...] = Field(
        default=(BASE, "pasta", "auto"), description="what is compared; two with a plus between share a load"
    )
    at_once: tuple[Count, ...] = Field(
        default=(), description="closed loops: answers at once; without --rates too, 1, 4, 16 and 64"
    )
    rates: tuple[Positive, ...] = Field(default=(), description="open loops: arrivals a second")
    answers: Count = Field(default=32, description="for each load, method and round, at least")
    rounds: Count = Field(default=10, description="how often all of it is done, the methods in turns")
    target: float | None = Field(
        default=None, gt=0, description="in seconds; default: twice the unloaded median"
    )

    @property
    def loads(self) -> list[tuple[Mode, float]]:
        """Mode and level of each load."""
        at_once = self.at_once or (() if self.rates else (1, 4, 16, 64))
        return [*(("closed", count) for count in at_once), *(("open", rate) for rate in self.rates)]


async def measure(
    engine: Engine, cases: Sequence[Case], settings: LoadSettings, journal: Journal | None = None
) -> list[Block]:
    """Write answers to the cases in turn by each method under each load, in each round.

    The methods take turns, in an order that goes round. A closed loop has at least twice as many answers as
    are at once. The journal keeps every block as it comes; those that it has already are not taken again.
    Cancelling it aborts all answers under way.
    """
    blocks = [Block(**row) for row in measurements(journal)]
    known = {(block.round, block.mode, block.level, block.method) for block in blocks}
    methods, loads, rounds = settings.methods, settings.loads, settings.rounds
    with progress(rounds * len(loads) * len(methods), "loads") as done:
        names = dict.fromkeys(part for method in methods for part in method.split(MIXED))
        await warm_up(engine, [METHODS[name] for name in names])
        for number, (place, (mode, level)) in product(range(rounds), enumerate(loads)):
            count = max(settings.answers, 2 * int(level)) if mode == "closed" else settings.answers
            asked = [*islice(cycle(cases), number * count, (number + 1) * count)]
            first = (number + place) % len(methods)
            for method in (*methods[first:], *methods[:first]):
                if (number, mode, level, method) not in known:
                    how = [METHODS[name] for name in method.split(MIXED)]
                    blocks.append(await drive(engine, how, asked, mode=mode, level=level, number=number))
                    if journal:
                        journal.append(asdict(blocks[-1]))
                done()
    return blocks


def _speedups(answers: Sequence[Answer], base: Sequence[Answer]) -> list[float]:
    """Of each prompt that both have: how much sooner its answer came, over all rounds."""
    ours, theirs = (by_prompt(one, lambda answer: answer.seconds) for one in (answers, base))
    return [theirs[prompt] / ours[prompt] for prompt in ours if prompt in theirs]


def _grouped(blocks: Sequence[Block]) -> dict[str, dict[str, list[Block]]]:
    """Blocks by load and method, loads in order, methods as they came first, rounds in order."""
    names = [*dict.fromkeys(block.method for block in blocks)]
    ordered = sorted(blocks, key=lambda one: (one.mode, one.level, names.index(one.method), one.round))
    loads = grouped(ordered, lambda block: block.load)
    return {load: grouped(own, lambda block: block.method) for load, own in loads.items()}


def summarise(blocks: Sequence[Block], target: float) -> list[dict[str, Any]]:
    """A row for each load and method, over all rounds: times in seconds, rates a second.

    `goodput` is of answers whose latency met the target, `tokens` are decoded ones, what a method needs
    besides the text counted; `speedup` is latency of the same answers in sequence / latency (geometric mean).
    """
    rows = list[dict[str, Any]]()
    for load, methods in _grouped(blocks).items():
        for name, own in methods.items():
            answers, base = _answers(own, name), _answers(methods.get(BASE, ()), name)
            speedup = geometric_mean(_speedups(answers, base)) if base else None
            counted = {"load": load, "method": name, "answers": len(answers)}
            rows.append({**counted, **_figures(own, name, target), "speedup": speedup})
    return rows


def _answers(blocks: Sequence[Block], method: str) -> list[Answer]:
    return [answer for block in blocks for answer in block.part(method)]


def _figures(blocks: Sequence[Block], method: str, target: float) -> dict[str, float]:
    answers, seconds = _answers(blocks, method), sum(block.seconds for block in blocks)
    latencies = [answer.seconds for answer in answers]
    p50, p90, p99 = quantile(latencies, (0.5, 0.9, 0.99)).tolist()
    return {
        "p50": p50,
        "p90": p90,
        "p99": p99,
        "first token": median(answer.first_token for answer in answers),
        "throughput": len(answers) / seconds,
        "goodput": sum(latency <= target for latency in latencies) / seconds,
        "tokens": sum(answer.tokens for answer in answers) / seconds,
    }


def compare_methods(blocks: Sequence[Block], target: float) -> list[dict[str, Any]]:
    """A row for each load and two methods: how much better the first is, with 95% intervals.

    `sooner` compares the same answers over all rounds, its interval is over their prompts; the intervals of
    the others are over the rounds. A round by which nothing can be told (a goodput of nothing) is left out.
    """
    rows = list[dict[str, Any]]()
    for load, methods in _grouped(blocks).items():
        pairs = [(name, BASE) for name in methods if name != BASE]
        pairs += [("auto", "pasta")] if "auto" in methods else []
        for name, base in pairs:
            if rounds := [*zip(methods[name], methods.get(base, ()), strict=False)]:
                row = {"load": load, "method": f"{name} / {base}"}
                rows.append({**row, **_ratios(rounds, name, target)})
    return rows


def _ratios(rounds: Sequence[tuple[Block, Block]], method: str, target: float) -> dict[str, Any]:
    """By how much the first of two blocks is better than the second."""
    ours, theirs = zip(*rounds, strict=True)
    sooner = _speedups(_answers(ours, method), _answers(theirs, method))
    figures = [[_figures([block], method, target) for block in both] for both in rounds]
    goodputs = [(one["goodput"], other["goodput"]) for one, other in figures]
    found = {
        "sooner": sooner,
        "median latency": [other["p50"] / one["p50"] for one, other in figures],
        "p99": [other["p99"] / one["p99"] for one, other in figures],
        "throughput": [one["throughput"] / other["throughput"] for one, other in figures],
        "goodput": [one / other for one, other in goodputs if one and other],
    }
    shown = {name: format_estimate(estimate(own) if own else None, ".2f") for name, own in found.items()}
    return {"prompts": len(sooner), **shown}


def default_target(blocks: Sequence[Block]) -> float:
    """Twice the median latency in sequence at the lowest load; of any method if that is missing."""
    base = [block for block in blocks if block.method == BASE] or blocks
    lowest = min(base, key=lambda block: (block.mode, block.level))
    return 2 * median(answer.seconds for answer in lowest.answers)


async def _run(settings: LoadSettings) -> str:
    documents = read_documents(settings.documents, settings.sample)
    known = [name in METHODS for method in settings.methods for name in method.split(MIXED)]
    if not all(known) or any(MIXED in name and BASE not in name.split(MIXED) for name in settings.methods):
        raise InvalidRequestError(
            f"methods are {', '.join(METHODS)}, or {BASE} and another with a plus between; "
            f"got {', '.join(settings.methods)}"
        )
    measured = {**(await settings.measured("load", documents)), "answers": settings.answers}
    with opened_journal(settings.out, measured) as journal:
        async with cold_backend(settings.backend) as backend, open_engine(backend, documents) as engine:
            blocks = await measure(engine, cases_of(documents), settings, journal)
    target = settings.target or default_target(blocks)
    parts = [
        f"seconds, rates a second; latency target {target:.3g} s",
        markdown_table(summarise(blocks, target)),
        "above 1: the first is better (geometric means, 95%: `sooner` over prompts, the rest over rounds)",
        markdown_table(compare_methods(blocks, target)),
    ]
    return "\n\n".join(parts)


main: Command = command(LoadSettings, _run, "load", __doc__, resumes=True)

if __name__ == "__main__":
    main()
