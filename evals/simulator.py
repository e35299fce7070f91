"""What parallel decoding would gain on other hardware: an engine to simulate, fitted on a real one.

    python -m pasta_async.evals.simulator --backend http://127.0.0.1:30000 --out engine.json
    python -m pasta_async.evals.load --backend "simulated:engine.json?gpus=8" --documents D.jsonl --rates 50

The first command times decode steps at some concurrencies and context lengths, fits the constants, and checks
them at others that it did not fit. The second plays a Poisson process of answers on so many engines, the
interpreter and the methods unchanged, and says which constants were not measured (`?step=0.01` sets one).
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import random
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field

from pasta_async import Sampling
from pasta_async.cli.command import Command, command
from pasta_async.clock import REAL_CLOCK
from pasta_async.errors import InvalidRequestError
from pasta_async.evals.commands import Settings
from pasta_async.evals.engines import cold_backend
from pasta_async.evals.forcing import force
from pasta_async.evals.records import environment, markdown_table
from pasta_async.evals.simulated import CONSTANTS, EngineModel
from pasta_async.protocol import DecodeRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async import Backend
    from pasta_async.clock import Clock

__all__ = ["Sample", "fit", "main", "take_samples"]

_FITTED = [*product((1, 4, 16), (64, 512))]
_CHECKED = [*product((2, 8), (256,))]
"""Requests at once, and tokens of context."""
_TOKENS = 24
"""Tokens that each timed request decodes."""
_SEEDS = itertools.count(random.randrange(10**9) * 10**6)


class Sample(NamedTuple):
    """What was measured with so many requests at once on contexts of so many tokens."""

    at_once: int
    context: int
    step: float
    """Seconds between two tokens of a request while all of them decode (median)."""
    first_token: float
    """Seconds until a request's first token, nothing of its context cached (median)."""

    @property
    def tokens(self) -> int:
        """Tokens of all contexts halfway through."""
        return self.at_once * (self.context + _TOKENS // 2)


async def take_samples(
    backend: Backend,
    settings: Sequence[tuple[int, int]],
    *,
    rounds: int = 3,
    shared: bool = False,
    clock: Clock = REAL_CLOCK,
) -> list[Sample]:
    """Decode so many requests at once on contexts of so many tokens, which no cache knows; medians of rounds.

    Cancelling it aborts the requests under way.

    Args:
        backend: What is timed; it has to take forced requests.
        settings: Requests at once and tokens of context.
        rounds: How often each setting is timed, after one that warms up; all settings take turns.
        shared: Whether the requests of a round have one context, which the cache knows by then: threads of
            an answer.
        clock: Measures.
    """
    words = list[int]()
    for start in range(0, 2000, 50):  # texts that fit any context
        words += await backend.encode(" ".join(f"{k} apples and" for k in range(start, start + 50)))
    found: dict[tuple[int, int], list[tuple[float, float]]] = {setting: [] for setting in settings}
    for turn in range(rounds + 1):
        for setting in settings:
            timed = await _time_round(backend, words, *setting, shared, clock)
            found[setting] += [timed] if turn else []
    return [
        Sample(*setting, median(step for step, _ in timed), median(first for _, first in timed))
        for setting, timed in found.items()
    ]


async def _time_round(
    backend: Backend, words: Sequence[int], at_once: int, context: int, shared: bool, clock: Clock
) -> tuple[float, float]:
    """Median seconds between tokens while all decode, and until the first token."""
    requests = [_request(backend, words, context) for _ in range(at_once)]
    if shared:
        requests = [replace(request, ids=requests[0].ids) for request in requests]
        await _token_times(backend, replace(requests[0], max_tokens=1), clock)
    began = clock.time()
    times = await asyncio.gather(*(_token_times(backend, request, clock) for request in requests))
    start, end = max(one[0] for one in times), min(one[-1] for one in times)
    gaps = [b - a for one in times for a, b in pairwise(one) if start <= a and b <= end]
    whole = [(one[-1] - one[0]) / (len(one) - 1) for one in times]  # where they never all decode together
    return median(gaps or whole), median(one[0] for one in times) - began


def _request(backend: Backend, words: Sequence[int], context: int) -> DecodeRequest:
    """A request on a context that begins unlike any other."""
    draw = random.Random(next(_SEEDS))
    ids, forced = (tuple(draw.choices(words, k=count)) for count in (context, _TOKENS + 1))
    return force(backend, DecodeRequest(f"sample {draw.random()}", 0, ids, _TOKENS, Sampling()), forced)


async def _token_times(backend: Backend, request: DecodeRequest, clock: Clock) -> list[float]:
    times = list[float]()
    async with aclosing(backend.decode(request)) as pieces:
        async for piece in pieces:
            times += [clock.time()] * len(piece.ids)
    return times


def fit(samples: Sequence[Sample]) -> EngineModel:
    """The constants that are nearest to some samples, by least squares of the relative error, none negative.

    Raises:
        InvalidRequestError: The samples do not tell the constants apart: they need two batches, two contexts.
    """
    if len({s.at_once for s in samples}) < 2 or len({s.context for s in samples}) < 2:
        raise InvalidRequestError(
            "a fit needs at least two numbers of requests at once, and two lengths of context"
        )
    steps = [(s.step, (1.0, s.at_once, s.tokens)) for s in samples]
    step, sequence, context = _least_squares(steps)
    alone = [s for s in samples if s.at_once == min(s.at_once for s in samples)]
    first = [(max(s.first_token - step, 1e-9), (1.0, s.at_once * s.context)) for s in alone]
    round_trip, prefill = _least_squares(first)
    return EngineModel(
        step=step,
        sequence=sequence,
        context=context,
        prefill=prefill,
        round_trip=round_trip,
        assumed=CONSTANTS[5:],
    )


def _least_squares(rows: Sequence[tuple[float, Sequence[float]]]) -> list[float]:
    """Coefficients, none negative, by which the columns sum to the values with the least relative error."""
    import numpy as np

    nnls: Any = importlib.import_module("scipy.optimize").nnls
    table = np.array([columns for _, columns in rows]) / np.array([[value] for value, _ in rows])
    scale = table.max(axis=0)
    found: Any = nnls(table / scale, np.ones(len(rows)))[0]
    return (found / scale).tolist()


def _check_rows(model: EngineModel, samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Steps as they were measured and as the model has them: a row for each sample."""
    return [
        {
            "at once": sample.at_once,
            "context": sample.context,
            "step ms, measured": 1000 * sample.step,
            "model": 1000 * (modelled := model.seconds(sample.at_once, sample.tokens, 0)),
            "error": f"{100 * (modelled / sample.step - 1):+.0f}%",
        }
        for sample in samples
    ]


class SimulatorSettings(Settings):
    """What is timed, and how."""

    backend: str = Field(description="local:FOLDER, or the URL of an SGLang server")
    out: Path = Field(description="file for the constants")
    rounds: int = Field(default=3, ge=1, description="how often each setting is timed")
    step_tokens: int | None = Field(default=None, ge=1, description="prompt tokens that it takes in a step")


async def _fit(settings: SimulatorSettings) -> None:
    embedded = not settings.backend.startswith("http")
    async with cold_backend(settings.backend) as backend:
        fitted = await take_samples(backend, _FITTED, rounds=settings.rounds)
        checked = await take_samples(backend, _CHECKED, rounds=settings.rounds)
    step_tokens = settings.step_tokens or (256 if embedded else 2048)
    model = fit(fitted).model_copy(update={"embedded": embedded, "step_tokens": step_tokens})
    settings.out.write_text(model.model_dump_json(indent=1) + "\n", encoding="utf-8")
    print("steps that were fitted\n\n" + markdown_table(_check_rows(model, fitted)))
    print("\nsteps that were not\n\n" + markdown_table(_check_rows(model, checked)))
    print(f"\n{settings.out}: {model}\n{environment()}")


main: Command = command(SimulatorSettings, _fit, "simulator", __doc__)

if __name__ == "__main__":
    main()
