"""The load of an engine, and for how many threads it has room. No asyncio, no I/O.

A decode step reads the weights, which takes the same time for any number of requests, and computes a token
for each request, which takes longer the more there are. An answer in parallel needs fewer steps, but its tags
and joins add tokens. While few requests run, the time goes into the number of steps. On a full engine the
added tokens make every request wait longer, and fewer steps save nothing.

The rule: decode in parallel while the time per step that the threads add is small beside the time to read the
weights. The engine measures both. The batch size at which a step takes twice the time of an empty one
(`EngineLoad.step_doubles_at`) is where they are equal, and `room` is a multiple of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import inf

_THREADS_PER_DOUBLING = 1.25
"""Threads up to which parallel decoding pays, for each request that it takes to double a step's time.

Counted on annotated reference answers of AlpacaEval, an answer saves 160 steps and adds 63 tokens. With n
answers at once parallel decoding pays while 160 steps cost more than these 63 n tokens do: up to n = 2.5 for
each request that doubles a step's time. An answer has two threads on average, so that is 5 threads. A quarter
is used, for two reasons. The prefill of forks and joins makes everybody wait, too. And a small batch is
computed while the weights are read: steps take longer only from some size on, which the line through their
times puts too high (docs/results.md has measurements).
"""

LIGHT_THREADS = 16
"""Threads for which an engine has room that answers nothing else: those of one wide answer
(`Limits.max_threads`).

It is all the room there is while an engine has not measured its steps, or cannot be asked.
"""

_FULL_CACHE = 0.9
"""Share of the KV cache in use from which on further threads would evict what others need."""

_ENOUGH_STEPS = 64
"""Smallest number of steps from which the time of a step is estimated."""

_ENOUGH_SPREAD = 0.25
"""Smallest variance of their batch sizes: with equal batch sizes a line through the steps has no slope."""

_MEMORY = 8192
"""Number of steps above which the sums so far are halved, so that older steps count less."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The load of an engine, by its own report."""

    capacity: int
    """Largest number of requests that it decodes at once."""
    running: int = 0
    """Requests that it decodes or prefills."""
    queued: int = 0
    """Requests that wait in the engine."""
    kv_use: float = 0.0
    """Share of its KV cache that requests hold; KV that only the prefix cache keeps does not count."""
    step_doubles_at: float = 0.0
    """Requests that make a decode step take twice as long as reading the weights alone (`StepTimes`), over
    all copies of the model. 0: not measured."""


def room(load: EngineLoad, answers: int) -> float:
    """Threads, over so many answers in all, up to which parallel decoding pays on an engine."""
    if load.kv_use >= _FULL_CACHE:
        return 0.0
    threads = _THREADS_PER_DOUBLING * load.step_doubles_at
    if answers <= 1 or not load.step_doubles_at:
        threads = max(LIGHT_THREADS, threads)
    return min(threads, load.capacity)


class StepTimes:
    """The time of an engine's decode steps by their batch size, as sums over the latest thousands of steps.

    Steps that also prefilled are to be left out. The sums are those of SGLang's `decode_moments`.
    """

    def __init__(self) -> None:
        self._sums = [0.0] * 5
        self._counters: dict[Hashable, Sequence[float]] = {}  # at the last reading, by their source

    def growth(self, counters: Sequence[float], source: Hashable = None) -> Sequence[float]:
        """The growth of an engine's counters since their last reading; all of them after its restart."""
        before = self._counters.get(source, [0.0] * len(counters))
        self._counters[source] = counters
        growth = [new - old for new, old in zip(counters, before, strict=True)]
        return counters if min(growth) < 0 else growth

    def add(self, steps: float, requests: float, seconds: float, squares: float, products: float) -> None:
        """Count further steps.

        Args:
            steps: The number of steps.
            requests: The sum of their batch sizes.
            seconds: The sum of their times.
            squares: The sum of their batch sizes squared.
            products: The sum of batch size x time.
        """
        further = (steps, requests, seconds, squares, products)
        weight = 0.5 if self._sums[0] > _MEMORY else 1.0
        self._sums = [weight * total + new for total, new in zip(self._sums, further, strict=True)]

    @property
    def doubles_at(self) -> float:
        """`EngineLoad.step_doubles_at` of one copy of the model; 0 while too little was measured.

        A straight line through the steps, by least squares: time = fixed + per request x batch size.
        """
        if self._sums[0] < _ENOUGH_STEPS:
            return 0.0
        # Means over the steps.
        requests, seconds, squares, products = (total / self._sums[0] for total in self._sums[1:])
        variance = squares - requests**2
        if variance < _ENOUGH_SPREAD:
            return 0.0
        per_request = (products - requests * seconds) / variance
        fixed = seconds - per_request * requests
        return max(1.0, fixed / per_request) if per_request > 0 else inf
