"""From timed answers under load to latencies, throughput and goodput."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pasta_async.evals.statistics import geometric_mean, quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.evals.load.driving import Block, Mode

__all__ = ["Figures", "default_target", "figures", "pays_up_to", "summarise"]

BASE = "sequential"


@dataclass(frozen=True, slots=True)
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


def figures(blocks: Sequence[Block], target: float) -> list[Figures]:
    """Figures of every block, by mode, level and method, under a latency target in seconds."""
    bases = {(block.mode, block.level): block for block in blocks if block.method == BASE}
    order = sorted(blocks, key=lambda block: (block.mode, block.level))
    return [_figures(block, bases.get((block.mode, block.level)), target) for block in order]


def _figures(block: Block, base: Block | None, target: float) -> Figures:
    latencies = [answer.seconds for answer in block.answers]
    return Figures(
        mode=block.mode,
        level=block.level,
        method=block.method,
        answers=len(latencies),
        p50=quantile(latencies, 0.5),
        p90=quantile(latencies, 0.9),
        p99=quantile(latencies, 0.99),
        first_token=quantile([answer.first_token for answer in block.answers], 0.5),
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


def default_target(blocks: Sequence[Block]) -> float:
    """Twice the median latency in sequence at the lowest load; of any method if that is missing."""
    base = [block for block in blocks if block.method == BASE] or blocks
    lowest = min(base, key=lambda block: (block.mode, block.level))
    return 2 * quantile([answer.seconds for answer in lowest.answers], 0.5)


def pays_up_to(found: Sequence[Figures], method: str, mode: Mode) -> float | None:
    """The highest level up to which a method's answers come sooner than in sequence; None if at none."""
    level = None
    for one in found:
        if (one.method, one.mode) == (method, mode):
            if one.speedup is None or one.speedup <= 1:
                break
            level = one.level
    return level


def summarise(found: Sequence[Figures]) -> list[dict[str, Any]]:
    """The figures as rows of a table."""
    return [
        {
            "load": f"{one.level:g} a second" if one.mode == "open" else f"{one.level:g} at once",
            "method": one.method,
            "answers": one.answers,
            "p50 s": one.p50,
            "p90 s": one.p90,
            "p99 s": one.p99,
            "first token s": one.first_token,
            "answers/s": one.throughput,
            "goodput/s": one.goodput,
            "tokens/s": one.tokens,
            "sooner than in sequence": "-" if one.speedup is None else f"{one.speedup:.2f}",
        }
        for one in found
    ]
