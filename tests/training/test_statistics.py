from __future__ import annotations

import random
from statistics import NormalDist, mean, stdev

import pytest

from pasta_async.training.statistics import estimate, format_estimate, ratio, share


@pytest.mark.parametrize("values", [[], [1.0, 0.0], [1.0, -2.0]])
def test_ratios_without_a_geometric_mean_are_refused(values: list[float]):
    with pytest.raises(ValueError):
        estimate(values)


def test_equal_values_and_a_single_one_have_an_interval_without_width():
    for values in ([2.0] * 10, [2.0]):
        assert [*estimate(values).values()] == pytest.approx([2, 2, 2])


def test_a_bootstrap_of_a_mean_agrees_with_the_normal_interval_and_repeats():
    rng = random.Random(1)
    values = [rng.gauss(10, 2) for _ in range(200)]
    half = NormalDist().inv_cdf(0.975) * stdev(values) / 200**0.5
    found = estimate(values, mean)
    assert found["low"] == pytest.approx(mean(values) - half, abs=half * 0.2)
    assert found["high"] == pytest.approx(mean(values) + half, abs=half * 0.2)
    assert found == estimate(values, mean)


def test_wilsons_interval_of_a_share():
    assert [*share([True] * 9 + [False]).values()] == pytest.approx([90, 59.58, 98.21], abs=0.1)
    assert share([True] * 8)["low"] == pytest.approx(67.6, abs=0.1)
    assert format_estimate(share([True] * 8)) == "100.0 (67.6 to 100.0)"


def test_a_ratio_draws_prompts_not_their_parts():
    parts, wholes = [3.0, 0.0] * 40, [3.0, 1.0] * 40
    found = ratio(parts, wholes)
    assert found and found["value"] == pytest.approx(75)
    alone = share([True] * 120 + [False] * 40)
    assert found["high"] - found["low"] > 0.8 * (alone["high"] - alone["low"])
    assert ratio([0.0] * 8, [2.0] * 8) == share([False] * 8), "no draw has one, which says little"
    assert ratio([0.0], [0.0]) is None


def test_both_ends_of_nine_tenths_are_one_sided_bounds():
    values = [float(number % 7) for number in range(100)]
    wide, narrow = estimate(values, mean), estimate(values, mean, confidence=0.9)
    assert wide["low"] < narrow["low"] < mean(values) < narrow["high"] < wide["high"]
