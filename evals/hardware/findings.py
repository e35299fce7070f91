"""What was found on some hardware, as one table."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pasta_async.evals.fork_modes import summarise as fork_rows
from pasta_async.evals.load import figures, pays_up_to
from pasta_async.evals.load.summary import default_target
from pasta_async.evals.speedups import summarise as speed_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pasta_async.evals.fork_modes import Answer
    from pasta_async.evals.hardware.steps import Step, Traffic
    from pasta_async.evals.load import Block
    from pasta_async.evals.timing import Run

__all__ = ["Findings", "table"]


class Findings(NamedTuple):
    """Everything that one run measured."""

    runs: Sequence[Run]
    """Answers one at a time, in both forms."""
    blocks: Sequence[Block]
    """Answers under load."""
    steps: Sequence[Step]
    """Decode steps."""
    traffic: Traffic
    """What a step has to read."""
    forks: Sequence[Answer]
    """Answers in both ways to fork."""


def table(findings: Findings) -> list[dict[str, str]]:
    """The one table: a row for each question."""
    pairs = [*_speed(findings.runs), *_load(findings.blocks), *_steps(findings), *_forks(findings.forks)]
    return [{"measured": name, "found": told} for name, told in pairs]


def _speed(runs: Sequence[Run]) -> Iterable[tuple[str, str]]:
    for row in speed_rows(runs):
        told = f"{row['speed-up']:.2f} ({row['95%']}), theoretical {row['theoretical']:.2f}"
        yield f"speed-up of one answer at a time, {row['family']} ({row['prompts']})", told


def _load(blocks: Sequence[Block]) -> Iterable[tuple[str, str]]:
    found = [one for one in figures(blocks, default_target(blocks)) if one.method == "pasta"]
    levels = " / ".join(f"{one.level:g}" for one in found)
    yield f"sooner than in sequence, {levels} at once", _joined(one.speedup or 0.0 for one in found)
    end = pays_up_to(found, "pasta", "closed")
    yield "parallel decoding pays", "at no load" if end is None else f"up to {end:g} at once"


def _steps(findings: Findings) -> Iterable[tuple[str, str]]:
    steps, traffic = findings.steps, findings.traffic
    threads = " / ".join(str(step.threads) for step in steps)
    shared = f"{threads} threads on {steps[0].context} tokens" if steps else threads
    yield f"decode step, ms, {shared}", _joined(1000 * step.seconds for step in steps)
    floor = f"{traffic.weights / 1e9:.3g} GB of weights at {traffic.bandwidth / 1e9:.3g} GB/s"
    yield f"its floor, ms ({floor})", _joined(1000 * step.floor for step in steps)
    yield "step / floor", _joined(step.seconds / step.floor for step in steps)


def _forks(answers: Sequence[Answer]) -> Iterable[tuple[str, str]]:
    if not any(answer.promises for answer in answers):
        return
    stream, cut = fork_rows(answers)
    for name in ("cached at forks", "cached at joins"):
        yield f"context {name}: spawned mid-stream / cut at the promise", f"{stream[name]} / {cut[name]}"
    for name in ("prefilled tokens", "round trips"):
        yield f"{name}: mid-stream / cut", f"{stream[name]:.0f} / {cut[name]:.0f}"
    yield "seconds, cut / mid-stream", cut["seconds / stream"]


def _joined(values: Iterable[float]) -> str:
    return " / ".join(f"{value:.3g}" for value in values)
