"""Whole answers, on a real engine and on the simulated one: the client's work, and the error that is left."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pasta_async.evals.engines import clock_of
from pasta_async.evals.load import drive
from pasta_async.evals.methods import METHODS, Case, open_engine, play
from pasta_async.evals.simulator.model import Constant, least_squares

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from pasta_async import Backend
    from pasta_async.clock import Clock
    from pasta_async.evals.simulator.engine import SimulatedBackend
    from pasta_async.evals.simulator.model import EngineModel
    from pasta_async.lang import Document

__all__ = ["answer_seconds", "check_answers", "fit_client"]

_METHODS = ("sequential", "pasta")
_ROUNDS = 5


async def answer_seconds(
    backend: Backend,
    documents: Mapping[str, Document],
    *,
    at_once: int,
    answers: int,
    clock: Clock | None = None,
    methods: Sequence[str] = _METHODS,
) -> list[float]:
    """Mean latency of a closed loop of answers, for each method.

    Args:
        backend: Real or simulated.
        documents: What is written, in turn.
        at_once: Answers under way.
        answers: How many in all.
        clock: Measures; None: the one on which the backend takes its time.
        methods: How they are written.

    Cancelling it aborts the answers under way.
    """
    cases = [Case(index, prompt, document) for index, (prompt, document) in enumerate(documents.items())]
    asked = [cases[number % len(cases)] for number in range(answers)]
    seconds = list[float]()
    async with open_engine(backend, documents, clock=clock or clock_of(backend)) as engine:
        for name in methods:
            await play(engine, METHODS[name], cases[0])  # warm
            block = await drive(engine, METHODS[name], asked, mode="closed", level=at_once)
            seconds.append(fmean(answer.seconds for answer in block.answers))
    return seconds


async def fit_client(
    model: EngineModel,
    measured: Sequence[float],
    simulate: Callable[[EngineModel], Awaitable[Sequence[float]]],
) -> EngineModel:
    """The same model with the client's work, such that whole answers take as long as they were measured to.

    Args:
        model: Of the engine's steps.
        measured: Latencies.
        simulate: Gives the same latencies by a model.
    """
    steps = (0.05 * model.step.value, model.step.value)

    async def told(found: Sequence[float]) -> Sequence[float]:
        return await simulate(_with(model, found))

    def error(seconds: Sequence[float]) -> float:
        return sum((one / other - 1) ** 2 for one, other in zip(seconds, measured, strict=True))

    found = [0.5 * model.step.value, model.step.value]  # work that is hidden behind steps would show no slope
    base = await told(found)
    for _ in range(_ROUNDS):
        moved = [await told([x + steps[k] * (k == one) for k, x in enumerate(found)]) for one in range(2)]
        slopes = [[(to[i] - start) / steps[k] for k, to in enumerate(moved)] for i, start in enumerate(base)]
        wanted = [
            value - start + sum(s * x for s, x in zip(slope, found, strict=True))
            for value, start, slope in zip(measured, base, slopes, strict=True)
        ]
        aim = least_squares(slopes, wanted, measured)
        for share in (1.0, 0.5, 0.25, 0.1):
            trial = [x + share * (y - x) for x, y in zip(found, aim, strict=True)]
            if error(seconds := await told(trial)) < error(base):
                found, base = trial, seconds
                break
        else:
            break
    return _with(model, found)


def _with(model: EngineModel, found: Sequence[float]) -> EngineModel:
    return replace(model, token=Constant(found[0], True), request=Constant(found[1], True))


async def check_answers(
    real: Backend,
    simulated: SimulatedBackend,
    documents: Mapping[str, Document],
    *,
    at_once: int = 3,
    answers: int = 6,
    clock: Clock | None = None,
) -> list[dict[str, Any]]:
    """Mean latency of the same closed loop on both engines: a row for each method.

    Cancelling it aborts the answers under way.
    """
    seconds = await answer_seconds(real, documents, at_once=at_once, answers=answers, clock=clock)
    told = await answer_seconds(simulated, documents, at_once=at_once, answers=answers)
    return [
        {
            "method": name,
            "at once": at_once,
            "seconds, measured": one,
            "simulated": other,
            "error": f"{100 * (other / one - 1):+.0f}%",
        }
        for name, one, other in zip(_METHODS, seconds, told, strict=True)
    ]
