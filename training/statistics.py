"""Means of what was measured, and how sure one can be of them."""

# scipy has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
from __future__ import annotations

from statistics import fmean, geometric_mean
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Estimate", "estimate", "format_estimate", "format_share", "ratio", "share"]

_RESAMPLES = 2000


class Estimate(TypedDict):
    """An estimate and its 95% interval, as it stands in a result file."""

    value: float
    low: float
    high: float


def estimate(
    values: Sequence[float],
    statistic: Callable[[Sequence[float]], float] = geometric_mean,
    *,
    seed: int = 0,
    confidence: float = 0.95,
) -> Estimate:
    """A statistic of values with its percentile bootstrap interval.

    Args:
        values: Independent observations, one for each prompt.
        statistic: What is estimated.
        seed: The same seed gives the same interval.
        confidence: Of the interval; with 0.9 each of its ends is a one-sided bound of 95%.

    Raises:
        ValueError: There is no value.
    """
    value = statistic(values)
    if len(values) == 1:
        return {"value": value, "low": value, "high": value}
    return _bootstrap(
        value,
        (values,),
        lambda resample: statistic(resample.tolist()),
        seed,
        vectorized=False,
        confidence_level=confidence,
    )


def ratio(parts: Sequence[float], wholes: Sequence[float], *, seed: int = 0) -> Estimate | None:
    """The sum of the parts to that of the wholes, in percent, with its 95% percentile bootstrap interval.

    Args:
        parts: One for each prompt, such as its instructions that were followed.
        wholes: One for each, such as all its instructions; prompts are drawn, not instructions.
        seed: The same seed gives the same interval.

    Returns:
        None if the wholes are nothing. Where all or none have it, every draw is alike: the interval is then
        that of `share` over the prompts.
    """
    from numpy import maximum

    if not sum(wholes):
        return None
    value = 100 * sum(parts) / sum(wholes)
    if not any(parts) or list(parts) == list(wholes):
        return share([value > 0] * sum(whole > 0 for whole in wholes))
    return _bootstrap(
        value,
        (parts, wholes),
        lambda some, all_, axis: 100 * some.sum(axis=axis) / maximum(1, all_.sum(axis=axis)),
        seed,
        paired=True,
    )


def _bootstrap(
    value: float, data: tuple[Sequence[float], ...], statistic: Callable[..., Any], seed: int, **options: Any
) -> Estimate:
    """A value with its percentile bootstrap interval; the options are `scipy.stats.bootstrap`'s."""
    from scipy.stats import bootstrap

    given: dict[str, Any] = {"n_resamples": _RESAMPLES, "method": "percentile", "rng": seed, **options}
    found: Any = bootstrap(data, statistic, **given).confidence_interval
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
