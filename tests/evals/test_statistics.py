from __future__ import annotations

import random
from statistics import NormalDist, mean, stdev

import pytest

from pasta_async.evals.statistics import bootstrap_interval, geometric_mean, quantile


def test_geometric_mean_of_known_values():
    assert geometric_mean([1, 4]) == pytest.approx(2)
    assert geometric_mean([2, 0.5]) == pytest.approx(1)
    assert geometric_mean([7]) == pytest.approx(7)


def test_geometric_mean_takes_many_large_values():
    assert geometric_mean([1e200] * 50) == pytest.approx(1e200)


@pytest.mark.parametrize("values", [[], [1, 0], [1, -2]])
def test_geometric_mean_refuses_what_has_none(values: list[float]):
    with pytest.raises(ValueError, match="positive"):
        geometric_mean(values)


def test_quantiles_of_known_values():
    values = [3.0, 1.0, 2.0, 4.0]
    assert [quantile(values, share) for share in (0, 0.5, 1)] == [1, 2.5, 4]
    assert quantile(values, 0.25) == pytest.approx(1.75)


def test_a_bootstrap_of_equal_values_has_no_width():
    low, high = bootstrap_interval([2.0] * 10)
    assert low == pytest.approx(2)
    assert high == pytest.approx(2)


def test_a_bootstrap_of_a_mean_agrees_with_the_normal_interval():
    rng = random.Random(1)
    values = [rng.gauss(10, 2) for _ in range(200)]
    half = NormalDist().inv_cdf(0.975) * stdev(values) / 200**0.5
    low, high = bootstrap_interval(values, mean)
    assert low == pytest.approx(mean(values) - half, abs=half * 0.2)
    assert high == pytest.approx(mean(values) + half, abs=half * 0.2)


def test_a_bootstrap_interval_covers_as_often_as_it_says():
    rng = random.Random(2)
    covered = 0
    for seed in range(100):
        values = [rng.lognormvariate(0.5, 0.3) for _ in range(40)]
        low, high = bootstrap_interval(values, samples=200, level=0.9, seed=seed)
        covered += low <= 2.718281828**0.5 <= high
    assert 80 <= covered <= 97


def test_a_bootstrap_repeats_with_its_seed_and_narrows_with_its_level():
    values = [1.0, 1.5, 2.0, 4.0, 3.0]
    assert bootstrap_interval(values, seed=3) == bootstrap_interval(values, seed=3)
    wide, narrow = bootstrap_interval(values, level=0.99), bootstrap_interval(values, level=0.5)
    assert wide.low <= narrow.low <= narrow.high <= wide.high


@pytest.mark.parametrize("level", [0.0, 1.0])
def test_a_bootstrap_refuses_a_level_that_is_none(level: float):
    with pytest.raises(ValueError, match="level"):
        bootstrap_interval([1.0], level=level)
