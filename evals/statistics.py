"""The statistics of the benchmarks: means of ratios, and how sure one can be of them."""

from __future__ import annotations

import math
import random
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "Estimate",
    "Interval",
    "bootstrap_interval",
    "estimate",
    "geometric_mean",
    "quantile",
    "share",
    "told",
    "wilson",
]


class Interval(NamedTuple):
    """A range that an estimate lies in, at some level of confidence."""

    low: float
    high: float


class Estimate(TypedDict):
    """An estimate and its 95% interval, as it stands in a result file."""

    value: float
    low: float
    high: float


def geometric_mean(values: Sequence[float]) -> float:
    """The mean for ratios: that of x and 1/x is 1.

    Raises:
        ValueError: There is no value, or one is not positive.
    """
    if not values or min(values) <= 0:
        raise ValueError("a geometric mean needs at least one value, and all of them positive")
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which so large a share (0 to 1) of them lies, interpolated.

    Raises:
        ValueError: There is no value, or `share` is no share.
    """
    if not values or not 0 <= share <= 1:
        raise ValueError("a quantile needs at least one value, and a share between 0 and 1")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def bootstrap_interval(
    values: Sequence[float],
    statistic: Callable[[Sequence[float]], float] = geometric_mean,
    *,
    level: float = 0.95,
    samples: int = 2000,
    seed: int = 0,
) -> Interval:
    """The percentile bootstrap interval of a statistic; the values (one for each prompt) are resampled.

    Args:
        values: Independent observations.
        statistic: What is estimated.
        level: Confidence, between 0 and 1.
        samples: Resamples.
        seed: The same seed gives the same interval.

    Raises:
        ValueError: There is no value, or `level` is none.
    """
    if not values or not 0 < level < 1:
        raise ValueError("a bootstrap needs at least one value, and a level between 0 and 1")
    draw = random.Random(seed)
    estimates = [statistic(draw.choices(values, k=len(values))) for _ in range(samples)]
    tail = (1 - level) / 2
    return Interval(quantile(estimates, tail), quantile(estimates, 1 - tail))


def estimate(
    values: Sequence[float], statistic: Callable[[Sequence[float]], float] = geometric_mean, *, seed: int = 0
) -> Estimate:
    """A statistic of values (one for each prompt) with its 95% bootstrap interval.

    Raises:
        ValueError: There is no value.
    """
    low, high = bootstrap_interval(values, statistic, seed=seed)
    return {"value": statistic(values), "low": low, "high": high}


def told(found: Estimate | None, form: str = ".1f") -> str:
    """An estimate for a table: `51.2 (47.9 to 54.4)`."""
    if found is None:
        return "-"
    return f"{found['value']:{form}} ({found['low']:{form}} to {found['high']:{form}})"


def wilson(right: int, count: int, z: float = 1.96) -> Interval:
    """The 95% interval of a share, after Wilson (1927)."""
    share = right / count
    middle = share + z * z / (2 * count)
    margin = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    return Interval(max(0.0, (middle - margin) / scale), min(1.0, (middle + margin) / scale))


def share(verdicts: Sequence[bool]) -> Estimate:
    """How many of the verdicts hold, in percent, with Wilson's interval."""
    low, high = wilson(sum(verdicts), len(verdicts))
    return {"value": 100 * fmean(verdicts), "low": 100 * low, "high": 100 * high}
