"""Ask for many answers at a rate or at a concurrency, and time each of them."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

from pasta_async.evals.methods.track import Track
from pasta_async.jobs import for_each

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pasta_async.evals.methods import Case, Engine, Method

    Work = Callable[[Track], Awaitable[int]]

__all__ = ["Answered", "Block", "Mode", "drive"]

Mode = Literal["open", "closed"]
"""Arrivals at a rate, whatever is still under way; or so many at once, the next one when one is done."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer under load. Times are in seconds."""

    prompt: int
    """Its case's place in the list."""
    arrived: float
    """When it was asked for, since the block began."""
    seconds: float
    """From then until it was complete."""
    first_token: float
    """From then until its first token."""
    tokens: int
    """Decoded, tags and outlines counted."""


@dataclass(frozen=True, slots=True)
class Block:
    """Answers by one method at one load: a line of the results, as JSON."""

    mode: Mode
    level: float
    """Arrivals a second (`open`), or answers at once (`closed`)."""
    method: str
    seconds: float
    """From the first arrival until the last answer was complete."""
    answers: tuple[Answered, ...]

    @classmethod
    def of(cls, row: dict[str, Any]) -> Block:
        """A block from its JSON object."""
        answers = tuple(Answered(**answer) for answer in row["answers"])
        return cls(row["mode"], row["level"], row["method"], row["seconds"], answers)


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
    began, clock = engine.clock.time(), engine.clock
    answers = list[Answered]()

    async def one(number: int) -> None:
        track = Track(engine)
        await work[number](track)
        seconds = clock.time() - track.began
        first = seconds if track.first_token is None else track.first_token
        answers.append(Answered(cases[number].index, track.began - began, seconds, first, track.tokens))

    if mode == "open":
        await _arrive(one, _arrivals(len(cases), level, seed), engine)
    else:
        await for_each(range(len(cases)), one, int(level))
    ended = max(answer.arrived + answer.seconds for answer in answers)
    first = min(answer.arrived for answer in answers)
    return Block(mode, level, method.name, ended - first, tuple(sorted(answers, key=_arrival)))


def _arrivals(count: int, rate: float, seed: int) -> list[float]:
    """Seconds at which so many answers arrive."""
    draw = random.Random(seed)
    return [*accumulate(draw.expovariate(rate) for _ in range(count))]


async def _arrive(one: Callable[[int], Awaitable[None]], times: Sequence[float], engine: Engine) -> None:
    """Start each at its time."""
    began = engine.clock.time()

    async def at(number: int, seconds: float) -> None:
        await engine.clock.sleep(began + seconds - engine.clock.time())
        await one(number)

    async with asyncio.TaskGroup() as tasks:
        for number, seconds in enumerate(times):
            tasks.create_task(at(number, seconds))


def _arrival(answer: Answered) -> float:
    return answer.arrived
