"""Means of what was measured, and how sure one can be of them."""

# scipy has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false
from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from statistics import fmean, geometric_mean
from typing import Any, Literal, TypedDict, TypeVar

MIN_SAMPLE = 10
"""Fewer observations have no bootstrap interval: drawn again and again, they say only what they are."""

_RESAMPLES = 2000


class Estimate(TypedDict):
    """An estimate and its 95% interval, as they stand in a result file; None with too few values."""

    value: float
    low: float | None
    high: float | None


class Gain(Estimate):
    """A mean difference."""

    bound: float | None
    """With 95% confidence, one-sided, it is not less."""


Found = TypeVar("Found", bound=Estimate)


def estimate(
    values: Sequence[float],
    mean: Literal["geometric", "arithmetic"] = "geometric",
    *,
    clusters: Sequence[Hashable] = (),
    confidence: float = 0.95,
) -> Estimate:
    """A mean of values with its percentile bootstrap interval: the same for the same values.

    Args:
        values: Observations, one for each prompt.
        mean: Which one.
        clusters: What each value belongs to, such as the frame of its prompt, where values of one cluster
            go together: then clusters are drawn, not values. Without them, values are independent.
        confidence: Of the interval; with 0.9 each of its ends is a one-sided bound of 95%.

    Returns:
        Without an interval if there are fewer than `MIN_SAMPLE` values, or clusters.

    Raises:
        ValueError: There is no value, or none above 0 for a geometric mean.
    """
    if mean == "geometric":
        value, values, scale = geometric_mean(values), [*map(math.log, values)], math.exp
    else:
        value, scale = fmean(values), float
    parts, wholes = _by_cluster(values, [1] * len(values), clusters)
    return _bootstrap(value, parts, wholes, scale, confidence)


def gain(values: Sequence[float], *, clusters: Sequence[Hashable] = ()) -> Gain:
    """The mean of differences; see `estimate`."""
    bound = estimate(values, "arithmetic", clusters=clusters, confidence=0.9)["low"]
    return {**estimate(values, "arithmetic", clusters=clusters), "bound": bound}


def ratio(
    parts: Sequence[float], wholes: Sequence[float], *, clusters: Sequence[Hashable] = ()
) -> Estimate | None:
    """The sum of the parts to that of the wholes, in percent, with its 95% percentile bootstrap interval.

    Each prompt has a part, such as its promises with a fault, and a whole, such as all its promises: prompts
    are drawn, not promises, and their clusters as for `estimate`.

    Returns:
        None if the wholes are nothing. Where all or none have it, every draw is alike: the interval is then
        that of `share` over the prompts.
    """
    if not sum(wholes):
        return None
    value = 100 * sum(parts) / sum(wholes)
    parts, wholes = _by_cluster(parts, wholes, clusters)
    if not any(parts) or parts == wholes:
        return share([value > 0] * sum(whole > 0 for whole in wholes))
    return _bootstrap(value, parts, wholes, lambda end: 100 * end)


def of_known(
    figure: Callable[..., Found], values: Sequence[float | None], clusters: Sequence[Hashable]
) -> Found | None:
    """A figure over the values that there are, with what they belong to; None if there is none."""
    known = [(one, cluster) for one, cluster in zip(values, clusters, strict=True) if one is not None]
    return figure([one for one, _ in known], clusters=[cluster for _, cluster in known]) if known else None


def _by_cluster(
    parts: Sequence[float], wholes: Sequence[float], clusters: Sequence[Hashable]
) -> tuple[list[float], list[float]]:
    """The sums of the parts and of the wholes in each cluster; without clusters, as they are."""
    sums: defaultdict[Hashable, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for place, (part, whole) in enumerate(zip(parts, wholes, strict=True)):
        cluster = clusters[place] if clusters else place
        sums[cluster] = sums[cluster][0] + part, sums[cluster][1] + whole
    return [part for part, _ in sums.values()], [whole for _, whole in sums.values()]


def _bootstrap(
    value: float,
    parts: Sequence[float],
    wholes: Sequence[float],
    scale: Callable[[float], float],
    confidence: float = 0.95,
) -> Estimate:
    """A value with the percentile interval of the sum of the parts to that of the wholes, drawn together."""
    if len(parts) < MIN_SAMPLE:
        return {"value": value, "low": None, "high": None}
    from numpy import maximum
    from scipy.stats import bootstrap

    def statistic(some: Any, all_: Any, axis: int) -> Any:
        return some.sum(axis=axis) / maximum(1, all_.sum(axis=axis))

    options: dict[str, Any] = {"n_resamples": _RESAMPLES, "method": "percentile", "paired": True, "rng": 0}
    found: Any = bootstrap((parts, wholes), statistic, confidence_level=confidence, **options)
    low, high = (scale(float(end)) for end in found.confidence_interval)
    return {"value": value, "low": low, "high": high}


def format_estimate(found: Estimate | None, form: str = ".1f") -> str:
    """An estimate for a table: `51.2 (47.9 to 54.4)`; `51.2` without an interval."""
    if found is None:
        return "-"
    value = f"{found['value']:{form}}"
    if found["low"] is None or found["high"] is None:
        return value
    return f"{value} ({found['low']:{form}} to {found['high']:{form}})"


def format_gain(found: Gain | None, form: str = ".1f") -> str:
    """A difference for a table: `+1.2 (-0.4 to +2.9), at least -0.1`."""
    shown = format_estimate(found, f"+{form}")
    return f"{shown}, at least {found['bound']:+{form}}" if found and found["bound"] is not None else shown


def share(verdicts: Sequence[bool], *, clusters: Sequence[Hashable] = ()) -> Estimate:
    """How many of the verdicts hold, in percent, with Wilson's 95% interval (1927).

    Where some verdicts share a cluster (`estimate`) it is the bootstrap's; but where all are the same, every
    draw is alike, so that it is Wilson's over the clusters.
    """
    from scipy.stats import binomtest

    if len({*clusters}) < len(clusters):
        if len({*verdicts}) > 1:
            return estimate([100.0 * one for one in verdicts], "arithmetic", clusters=clusters)
        verdicts = [verdicts[0]] * len({*clusters})
    found: Any = binomtest(sum(verdicts), len(verdicts)).proportion_ci(method="wilson")
    return {"value": 100 * fmean(verdicts), "low": 100 * float(found.low), "high": 100 * float(found.high)}


def format_share(part: float, whole: float) -> str:
    """A share for a table: `12%`."""
    return f"{100 * part / whole:.0f}%" if whole else "-"
