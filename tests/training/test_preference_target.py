"""The target of the squared term, against simulation and against distributions that are known exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from pasta_async.training.prefer import best_of_n_target


def best_of(n: int, masses: Sequence[float]) -> NDArray[np.float64]:
    """The distribution of the best of n draws from a policy over answers in rising order."""
    below = np.concatenate([[0.0], np.cumsum(masses)])
    return np.diff(below**n)


@pytest.mark.parametrize("n", [2, 3, 10, 16])
def test_the_target_is_what_simulation_gives(n: int) -> None:
    ranks = np.random.default_rng(n).random((400_000, n))  # where each sample lies in the reference
    best, worst = ranks.max(1), ranks.min(1)
    margins = (n - 1) * np.log(best / worst)  # log-ratio of best-of-n is log n + (n - 1) log rank
    error = margins.std() / math.sqrt(len(margins))
    assert abs(margins.mean() - best_of_n_target(n)) < 4 * error
    assert error < 0.02 * best_of_n_target(n)
    # it is spread as the larger of n - 1 exponential variables is, whatever the rank of the best
    variance = (n - 1) ** 2 * sum(1 / k**2 for k in range(1, n))
    assert margins.var() == pytest.approx(variance, rel=0.03)
    assert abs(np.corrcoef(margins, best)[0, 1]) < 0.01
