from __future__ import annotations

import random
from statistics import NormalDist, mean, stdev

import pytest

from pasta_async.evals.report import cell
from pasta_async.evals.statistics import (
    MIN_SAMPLE,
    Estimate,
    estimate,
    mean_difference,
    percentage,
)


def test_equal_values_have_no_interval_and_few_have_none():
    for few in ([2.0], [1.0, 4.0] * 4, [2.0] * MIN_SAMPLE):
        estimated = estimate(few)
        assert estimated == {"value": pytest.approx(2), "low": None, "high": None}
        assert cell(estimated) == "2"
        assert mean_difference(few)["bound"] is None


def width(estimated: Estimate) -> float:
    low, high = estimated["low"], estimated["high"]
    assert low is not None
    assert high is not None
    return high - low


def test_values_that_go_together_are_drawn_together():
    values = [float(number // 8) for number in range(160)]
    clusters = [number // 8 for number in range(160)]
    alone, together = estimate(values, "arithmetic"), estimate(values, "arithmetic", clusters=clusters)
    assert width(together) / width(alone) == pytest.approx(8**0.5, rel=0.15)
    assert estimate(values, "arithmetic", clusters=[*range(160)]) == alone
    assert estimate(values, "arithmetic", clusters=[number // 20 for number in range(160)])["low"] is None
    right = [value > 4 for value in values]
    assert width(percentage(right, clusters=clusters)) > 2 * width(percentage(right))


def test_a_bootstrap_of_a_mean_agrees_with_the_normal_interval_and_repeats():
    rng = random.Random(1)
    values = [rng.gauss(10, 2) for _ in range(200)]
    half = NormalDist().inv_cdf(0.975) * stdev(values) / 200**0.5
    estimated = estimate(values, "arithmetic")
    assert estimated["low"] == pytest.approx(mean(values) - half, abs=half * 0.2)
    assert estimated["high"] == pytest.approx(mean(values) + half, abs=half * 0.2)
    assert estimated == estimate(values, "arithmetic")


def test_an_interval_of_few_values_is_as_wide_as_students():
    values = [8.0, 9.0, 9.5, 10.0, 10.0, 10.2, 10.5, 11.0, 11.3, 12.0]
    half = 2.262 * stdev(values) / 10**0.5
    assert width(estimate(values, "arithmetic")) == pytest.approx(2 * half, rel=0.08)


def test_wilsons_interval_of_a_share():
    assert [*percentage([True] * 9 + [False]).values()] == pytest.approx([90, 59.58, 98.21], abs=0.1)
    assert percentage([True] * 8)["low"] == pytest.approx(67.6, abs=0.1)
    assert cell(percentage([True] * 8)) == "100 (67.6 to 100)"
    assert percentage([True] * 80, clusters=[*range(8)] * 10) == percentage([True] * 8), "ten draws of eight"


def test_both_ends_of_nine_tenths_are_one_sided_bounds():
    values = [float(number % 7) for number in range(100)]
    wide, narrow = estimate(values, "arithmetic"), estimate(values, "arithmetic", confidence=0.9)
    assert width(narrow) < width(wide)
    assert mean_difference(values)["bound"] == narrow["low"]
