"""What parallel decoding would gain on other hardware: loads on a simulated engine, fitted on a real one.

    python -m pasta_async.evals.simulator fit --backend http://127.0.0.1:30000 --out engine.json
    python -m pasta_async.evals.simulator run --engine engine.json --documents docs.jsonl --gpus 8 --rates 50

`fit` times decode steps at some concurrencies and context lengths, fits the constants, and checks them at
others that it did not fit. `run` plays a Poisson process of answers on so many engines, the interpreter and
the methods unchanged, and says which constants were not measured (`--assume step=0.01` sets one).
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import random
import time
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field

from pasta_async import Sampling
from pasta_async.cli.command import run_command
from pasta_async.clock import REAL_CLOCK, RealClock
from pasta_async.errors import InvalidRequestError
from pasta_async.evals.commands import DocumentSettings, Positive, Settings, run_sub_command
from pasta_async.evals.documents import read_documents
from pasta_async.evals.engines import cold_backend
from pasta_async.evals.forcing import force
from pasta_async.evals.load import default_target, figures, measure, summarise
from pasta_async.evals.methods import METHODS, cases_of, open_engine
from pasta_async.evals.records import environment, markdown_table, opened_journal
from pasta_async.evals.simulated import CONSTANTS, CodecTokenizer, EngineModel, SimulatedBackend
from pasta_async.protocol import DecodeRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async import Backend
    from pasta_async.clock import Clock
    from pasta_async.evals.load import Block, Mode

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
    values = np.array([value for value, _ in rows])
    table = np.array([columns for _, columns in rows]) / values[:, None]
    scale = table.max(axis=0)
    found: Any = nnls(table / scale, np.ones(len(rows)))[0]
    return (found / scale).tolist()


def _check_rows(model: EngineModel, samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Steps as they were measured and as the model has them: a row for each sample."""
    rows = list[dict[str, Any]]()
    for sample in samples:
        modelled = model.seconds(sample.at_once, sample.tokens, 0)
        rows.append(
            {
                "at once": sample.at_once,
                "context": sample.context,
                "step ms, measured": 1000 * sample.step,
                "model": 1000 * modelled,
                "error": f"{100 * (modelled / sample.step - 1):+.0f}%",
            }
        )
    return rows


class FitSettings(Settings):
    """What is timed, and how."""

    backend: str = Field(description="local:FOLDER, or the URL of an SGLang server")
    out: Path = Field(description="file for the constants")
    rounds: int = Field(default=3, ge=1, description="how often each setting is timed")
    step_tokens: int | None = Field(default=None, ge=1, description="prompt tokens that it takes in a step")
    cpu_time: bool = Field(
        default=False, description="measure processor time: for local:FOLDER on a busy machine"
    )


class _CpuClock(RealClock):
    """The processor time of this process: on one core that has nothing else to do, so much time passes."""

    def time(self) -> float:
        return time.process_time()


async def _fit(settings: FitSettings) -> None:
    embedded = not settings.backend.startswith("http")
    if settings.cpu_time and not embedded:
        raise InvalidRequestError("--cpu-time is for an engine in this process, local:FOLDER")
    clock = _CpuClock() if settings.cpu_time else REAL_CLOCK
    async with cold_backend(settings.backend) as backend:
        fitted = await take_samples(backend, _FITTED, rounds=settings.rounds, clock=clock)
        checked = await take_samples(backend, _CHECKED, rounds=settings.rounds, clock=clock)
    step_tokens = settings.step_tokens or (256 if embedded else 2048)
    model = fit(fitted).model_copy(update={"embedded": embedded, "step_tokens": step_tokens})
    settings.out.write_text(model.model_dump_json(indent=1) + "\n", encoding="utf-8")
    print("steps that were fitted\n\n" + markdown_table(_check_rows(model, fitted)))
    print("\nsteps that were not\n\n" + markdown_table(_check_rows(model, checked)))
    print(f"\n{settings.out}: constants, ms: {model.format_constants()}")
    print(f"{'processor time, ' if settings.cpu_time else ''}{environment()}")


class RunSettings(DocumentSettings):
    """Which load runs on which engines."""

    engine: Path = Field(description="what `fit` wrote")
    assume: tuple[str, ...] = Field(default=(), description="another value of a constant: NAME=SECONDS")
    gpus: int = Field(default=1, ge=1, description="engines")
    rates: tuple[Positive, ...] = Field(default=(1.0,), description="arrivals a second")
    answers: int = Field(default=200, ge=1, description="for each rate and method")
    methods: tuple[str, ...] = Field(default=("sequential", "pasta"), description="what is compared")
    max_running: int = Field(default=256, ge=1, description="requests in a batch")
    step_tokens: int | None = Field(default=None, ge=1, description="prompt tokens in a step")
    tokenizer: str | None = Field(default=None, description="a model folder; without it, words are counted")
    target: float | None = Field(default=None, gt=0, description="latency target in seconds")
    out: Path | None = Field(default=None, description="file for the raw figures, as those of `load`")

    def model(self) -> EngineModel:
        """The engine model with what is assumed.

        Raises:
            InvalidRequestError: There is no such model or constant.
        """
        try:
            values = {name: float(value) for name, value in (one.split("=") for one in self.assume)}
        except ValueError as error:
            raise InvalidRequestError("--assume takes constants as NAME=SECONDS") from error
        model = EngineModel.load(self.engine).with_assumed(values)
        return model.model_copy(update={"step_tokens": self.step_tokens or model.step_tokens})


async def _simulate(settings: RunSettings) -> list[Block]:
    model, documents = settings.model(), read_documents(settings.documents, settings.first)
    tokenizer = CodecTokenizer.from_folder(settings.tokenizer) if settings.tokenizer else None
    backend = SimulatedBackend(
        model, engines=settings.gpus, tokenizer=tokenizer, max_running=settings.max_running
    )
    loads: list[tuple[Mode, float]] = [("open", rate) for rate in settings.rates]
    methods = [METHODS[name] for name in settings.methods]
    measured = {
        "benchmark": "simulator",
        "gpus": settings.gpus,
        "constants": model.format_constants(),
        "answers": settings.answers,
        "max_running": settings.max_running,
        "embedded": model.embedded,
        "step_tokens": model.step_tokens,
    }
    async with open_engine(backend, documents, clock=backend.clock) as engine:
        with opened_journal(settings.out, measured) as journal:
            cases = cases_of(documents)
            return await measure(engine, cases, methods, loads, answers=settings.answers, journal=journal)


def _run(settings: RunSettings) -> None:
    blocks = asyncio.run(_simulate(settings))
    target = settings.target or default_target(blocks)
    print(f"SIMULATED: {settings.gpus} engines; constants, ms: {settings.model().format_constants()}")
    print("assumed besides: KV memory does not end, an answer stays on one engine, and each engine has a")
    print(f"client process of its own\n\nlatency target {target:.3g} s\n")
    print(markdown_table(summarise(figures(blocks, target))))


def _fit_main(arguments: Sequence[str] | None) -> None:
    run_command(
        FitSettings,
        lambda settings: asyncio.run(_fit(settings)),
        program="simulator fit",
        description=__doc__,
        arguments=arguments,
    )


def _run_main(arguments: Sequence[str] | None) -> None:
    run_command(
        RunSettings, _run, program="simulator run", description=__doc__, arguments=arguments, resumes=True
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit an engine model and check it (`fit`), or run a load on one (`run`)."""
    run_sub_command({"fit": _fit_main, "run": _run_main}, arguments)


if __name__ == "__main__":
    main()
