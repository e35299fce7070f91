"""The statistics of the benchmarks: means of ratios, and how sure one can be of them."""

# scipy has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
from __future__ import annotations

from statistics import fmean, geometric_mean
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Estimate", "estimate", "format_estimate", "format_share", "share"]

_RESAMPLES = 2000


class Estimate(TypedDict):
    """An estimate and its 95% interval, as it stands in a result file."""

    value: float
    low: float
    high: float


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


def share(verdicts: Sequence[bool]) -> Estimate:
    """How many of the verdicts hold, in percent, with Wilson's 95% interval (1927)."""
    from scipy.stats import binomtest

    found: Any = binomtest(sum(verdicts), len(verdicts)).proportion_ci(method="wilson")
    return {"value": 100 * fmean(verdicts), "low": 100 * float(found.low), "high": 100 * float(found.high)}


def format_share(part: float, whole: float) -> str:
    """A share for a table: `12%`."""
    return f"{100 * part / whole:.0f}%" if whole else "-"
