"""The statistics of the benchmarks: means of ratios, and how sure one can be of them."""

# scipy has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
from __future__ import annotations

from statistics import fmean, geometric_mean
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "Estimate",
    "Interval",
    "estimate",
    "format_estimate",
    "format_share",
    "geometric_mean",
    "quantile",
    "share",
    "wilson",
]

_RESAMPLES = 2000


class Interval(NamedTuple):
    """The 95% interval of an estimate."""

    low: float
    high: float


class Estimate(TypedDict):
    """An estimate and its 95% interval, as it stands in a result file."""

    value: float
    low: float
    high: float


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which so large a share (0 to 1) of them lies, interpolated.

    Raises:
        ValueError: There is no value, or `share` is not between 0 and 1.
    """
    import numpy as np

    if not values:
        raise ValueError("a quantile needs at least one value")
    return float(np.quantile(values, share))


def estimate(
    values: Sequence[float], statistic: Callable[[Sequence[float]], float] = geometric_mean, *, seed: int = 0
) -> Estimate:
    """A statistic of values with its 95% percentile bootstrap interval.

    Args:
        values: Independent observations, one for each prompt.
        statistic: What is estimated.
        seed: The same seed gives the same interval.

    Raises:
        ValueError: There is no value.
    """
    from scipy.stats import bootstrap

    value = statistic(values)
    if len(values) == 1:
        return {"value": value, "low": value, "high": value}
    found: Any = bootstrap(
        (values,),
        lambda resample: statistic(resample.tolist()),
        vectorized=False,
        n_resamples=_RESAMPLES,
        method="percentile",
        rng=seed,
    ).confidence_interval
    return {"value": value, "low": float(found.low), "high": float(found.high)}


def format_estimate(found: Estimate | None, form: str = ".1f") -> str:
    """An estimate for a table: `51.2 (47.9 to 54.4)`."""
    if found is None:
        return "-"
    return f"{found['value']:{form}} ({found['low']:{form}} to {found['high']:{form}})"


def wilson(right: int, count: int) -> Interval:
    """The 95% interval of a share, after Wilson (1927)."""
    from scipy.stats import binomtest

    found: Any = binomtest(right, count).proportion_ci(method="wilson")
    return Interval(float(found.low), float(found.high))


def share(verdicts: Sequence[bool]) -> Estimate:
    """How many of the verdicts hold, in percent, with Wilson's interval."""
    low, high = wilson(sum(verdicts), len(verdicts))
    return {"value": 100 * fmean(verdicts), "low": 100 * low, "high": 100 * high}


def format_share(part: float, whole: float) -> str:
    """A share for a table: `12%`."""
    return f"{100 * part / whole:.0f}%" if whole else "-"
