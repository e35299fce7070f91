"""Time the steps of a real engine, to fit an `EngineModel` and to check it."""

from __future__ import annotations

import asyncio
import itertools
import random
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from pasta_async import Sampling
from pasta_async.clock import REAL_CLOCK
from pasta_async.evals.forcing import force
from pasta_async.evals.simulator.model import Sample
from pasta_async.protocol import DecodeRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async import Backend
    from pasta_async.clock import Clock

__all__ = ["take_samples"]

_TOKENS = 24
_NAMES = itertools.count(random.randrange(10**9) * 10**6)


async def take_samples(
    backend: Backend,
    settings: Sequence[tuple[int, int]],
    *,
    rounds: int = 3,
    shared: bool = False,
    clock: Clock = REAL_CLOCK,
) -> list[Sample]:
    """Decode so many requests at once on contexts of so many tokens, which no cache knows; medians of rounds.

    Args:
        backend: What is timed; it has to take forced requests.
        settings: Requests at once and tokens of context.
        rounds: How often each setting is timed, behind one that warms up; all settings take turns.
        shared: Whether the requests of a round have one context, which the cache knows by then: threads of
            an answer.
        clock: Measures.

    Cancelling it aborts the requests under way.
    """
    words = await backend.encode(" ".join(f"{number} apples and" for number in range(2000)))
    found: dict[tuple[int, int], list[tuple[float, float]]] = {setting: [] for setting in settings}
    for turn in range(rounds + 1):
        for setting in settings:
            timed = await _round(backend, words, *setting, shared, clock)
            found[setting] += [timed] if turn else []
    return [
        Sample(*setting, median(step for step, _ in timed), median(first for _, first in timed), _TOKENS)
        for setting, timed in found.items()
    ]


async def _round(
    backend: Backend, words: Sequence[int], at_once: int, context: int, shared: bool, clock: Clock
) -> tuple[float, float]:
    """Median seconds between tokens while all decode, and until the first token."""
    requests = [_request(backend, words, context) for _ in range(at_once)]
    if shared:
        requests = [replace(request, ids=requests[0].ids) for request in requests]
        await _times(backend, replace(requests[0], max_tokens=1), clock)
    began = clock.time()
    times = await asyncio.gather(*(_times(backend, request, clock) for request in requests))
    start, end = max(one[0] for one in times), min(one[-1] for one in times)
    gaps = [b - a for one in times for a, b in pairwise(one) if start <= a and b <= end]
    whole = [(one[-1] - one[0]) / (len(one) - 1) for one in times]  # where they never all decode together
    return median(gaps or whole), median(one[0] for one in times) - began


def _request(backend: Backend, words: Sequence[int], context: int) -> DecodeRequest:
    """A request on a context that begins unlike any other."""
    draw = random.Random(next(_NAMES))
    ids = tuple(draw.choices(words, k=context))
    forced = tuple(draw.choices(words, k=_TOKENS + 1))
    return force(backend, DecodeRequest(f"sample {draw.random()}", 0, ids, _TOKENS, Sampling()), forced)


async def _times(backend: Backend, request: DecodeRequest, clock: Clock) -> list[float]:
    """When each token came."""
    times = list[float]()
    async with aclosing(backend.decode(request)) as pieces:
        async for piece in pieces:
            times += [clock.time()] * len(piece.ids)
    return times
