"""Means and shares with their 95% intervals, over prompts."""

# scipy has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false
from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from statistics import fmean, geometric_mean
from typing import Any, Literal, TypedDict

from pasta_async.errors import missing_extra

try:
    from scipy.stats import binomtest, bootstrap, norm, t
except ModuleNotFoundError as _error:
    raise missing_extra("evals", "evals", _error) from _error

MIN_SAMPLE = 10
"""Fewer observations get no bootstrap interval: resampling so few says nothing about others."""

_RESAMPLES = 2000


class Estimate(TypedDict):
    """An estimate and its 95% interval, as they stand in a result file; None with too few values."""

    value: float
    low: float | None
    high: float | None


class Difference(Estimate):
    """A mean difference."""

    bound: float | None
    """Least value, with 95% confidence (one-sided)."""


def estimate(
    values: Sequence[float],
    mean: Literal["geometric", "arithmetic"] = "geometric",
    *,
    clusters: Sequence[Hashable] = (),
    confidence: float = 0.95,
) -> Estimate:
    """A mean of values with its percentile bootstrap interval: the same for the same values.

    Args:
        values: Observations.
        mean: Kind of mean.
        clusters: The cluster that each value belongs to, its prompt for instance: then clusters are drawn,
            not values. Without them, values are independent.
        confidence: Confidence of the interval; with 0.9 each of its ends is a one-sided bound of 95%.

    Returns:
        Without an interval if there are fewer than `MIN_SAMPLE` values, or clusters, or if all values are the
        same: every draw would be alike, and say nothing about others.

    Raises:
        ValueError: There is no value, or none above 0 for a geometric mean.
    """
    if mean == "geometric":
        # The mean of logarithms is estimated, and scaled back.
        value = geometric_mean(values)
        values = [*map(math.log, values)]
        scale = math.exp
    else:
        value = fmean(values)
        scale = float
    sums: defaultdict[Hashable, float] = defaultdict(float)
    counts: Counter[Hashable] = Counter()
    for cluster, observed in zip(clusters or range(len(values)), values, strict=True):
        sums[cluster] += observed
        counts[cluster] += 1
    n = len(sums)
    if n < MIN_SAMPLE or len({*values}) == 1:
        return {"value": value, "low": None, "high": None}

    # Draws from few values spread too little, by sqrt((n - 1) / n), and lack the tails of Student's t: so the
    # expanded percentile interval is taken (Hesterberg 2015, The American Statistician 69).
    tail = float(norm.cdf(math.sqrt(n / (n - 1)) * t.ppf((1 - confidence) / 2, n - 1)))

    def statistic(sums: Any, counts: Any, axis: int) -> Any:
        return sums.sum(axis=axis) / counts.sum(axis=axis)

    options: dict[str, Any] = {"n_resamples": _RESAMPLES, "method": "percentile", "paired": True, "rng": 0}
    drawn: Any = bootstrap(
        ([*sums.values()], [*counts.values()]), statistic, confidence_level=1 - 2 * tail, **options
    )
    low, high = (scale(float(end)) for end in drawn.confidence_interval)
    return {"value": value, "low": low, "high": high}


def mean_difference(values: Sequence[float], *, clusters: Sequence[Hashable] = ()) -> Difference:
    """Mean of differences; see `estimate`."""
    bound = estimate(values, "arithmetic", clusters=clusters, confidence=0.9)["low"]
    return {**estimate(values, "arithmetic", clusters=clusters), "bound": bound}


def percentage(verdicts: Sequence[bool], *, clusters: Sequence[Hashable] = ()) -> Estimate:
    """Verdicts that hold, in percent, with Wilson's 95% interval (1927).

    Where some verdicts share a cluster (`estimate`) it is the bootstrap's; but where all are the same, every
    draw is alike, so that it is Wilson's over the clusters.
    """
    if len({*clusters}) < len(clusters):
        if len({*verdicts}) > 1:
            return estimate([100.0 * holds for holds in verdicts], "arithmetic", clusters=clusters)
        verdicts = [verdicts[0]] * len({*clusters})
    interval: Any = binomtest(sum(verdicts), len(verdicts)).proportion_ci(method="wilson")
    low, high = 100 * float(interval.low), 100 * float(interval.high)
    return {"value": 100 * fmean(verdicts), "low": low, "high": high}
