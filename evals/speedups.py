"""From timed answers to speed-ups, for each prompt and over many."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING, Any

from pasta_async.evals.statistics import bootstrap_interval, geometric_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pasta_async.evals.timing import Run

__all__ = ["Comparison", "compare", "summarise"]


@dataclass(frozen=True)
class Comparison:
    """The two forms of one prompt, over all passes."""

    prompt: int
    family: str
    speedup: float
    """Baseline's seconds / parallel's seconds (geometric mean over the passes)."""
    theoretical: float
    """Baseline's tokens / tokens on the critical path."""

    @property
    def realised(self) -> float:
        """How much of the theoretical speed-up was had."""
        return self.speedup / self.theoretical


def compare(runs: Iterable[Run]) -> list[Comparison]:
    """Put the two forms of each prompt side by side, in order of the prompts.

    Raises:
        ValueError: A form of a prompt is missing in some pass.
    """
    pairs = defaultdict[tuple[int, int], dict[str, "Run"]](dict)
    for run in runs:
        pairs[run.prompt, run.number][run.form] = run
    if any(len(pair) < 2 for pair in pairs.values()):
        raise ValueError("every prompt has to be answered in both forms in every pass")
    prompts = sorted({prompt for prompt, _ in pairs})
    return [_compare([pair for (p, _), pair in pairs.items() if p == prompt]) for prompt in prompts]


def _compare(pairs: Sequence[dict[str, Run]]) -> Comparison:
    first = pairs[0]["parallel"]
    return Comparison(
        prompt=first.prompt,
        family=first.family,
        speedup=geometric_mean([pair["baseline"].seconds / pair["parallel"].seconds for pair in pairs]),
        theoretical=geometric_mean(
            [pair["baseline"].tokens / pair["parallel"].critical_path for pair in pairs]
        ),
    )


def summarise(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """A row of figures for each family, and one over all; intervals are 95%, over prompts."""
    families = list(dict.fromkeys(run.family for run in runs))
    rows = [_row(family, [run for run in runs if run.family == family]) for family in families]
    return rows if len(families) == 1 else [*rows, _row("all", runs)]


def _row(name: str, runs: Sequence[Run]) -> dict[str, Any]:
    comparisons = compare(runs)
    speedups = [c.speedup for c in comparisons]
    low, high = bootstrap_interval(speedups)
    parallel = [run for run in runs if run.form == "parallel"]
    baseline = [run for run in runs if run.form == "baseline"]
    context = sum(run.cached_tokens + run.prefilled_tokens for run in parallel)
    return {
        "family": name,
        "prompts": len(comparisons),
        "speed-up": geometric_mean(speedups),
        "95%": f"{low:.2f}-{high:.2f}",
        "theoretical": geometric_mean([c.theoretical for c in comparisons]),
        "realised": geometric_mean([c.realised for c in comparisons]),
        "baseline ms": mean(run.seconds for run in baseline) * 1000,
        "parallel ms": mean(run.seconds for run in parallel) * 1000,
        "first token ms, baseline": mean(run.first_token for run in baseline) * 1000,
        "first token ms, parallel": mean(run.first_token for run in parallel) * 1000,
        "step CPU ms, baseline": _step(baseline),
        "step CPU ms, parallel": _step(parallel),
        "tokens": mean(run.tokens for run in baseline),
        "critical path": mean(run.critical_path for run in parallel),
        "requests": mean(run.requests for run in parallel),
        "malformed": _percent([not run.well_formed for run in parallel]),
        "cached": _percent([1.0 * sum(run.cached_tokens for run in parallel) / context]) if context else "-",
        "right, parallel": _percent([run.right for run in parallel]),
        "right, baseline": _percent([run.right for run in baseline]),
    }


def _step(runs: Sequence[Run]) -> float:
    """CPU milliseconds of this process for a token of the critical path."""
    return 1000 * sum(run.cpu_seconds for run in runs) / sum(run.critical_path for run in runs)


def _percent(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{100 * mean(known):.1f}%" if known else "-"
