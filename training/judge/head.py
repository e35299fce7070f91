"""The head of a judge: a reward that is linear in the features, learned by Bradley and Terry's model (1952).

The first of two answers wins with probability sigmoid(reward - other reward + b * difference in length). The
reward is kept from length twice: what of the features goes with length is taken off them (`length_effects`),
and b takes up what of the preferences does. A judge leaves b out, as if both answers were equally long.
How far it can be trusted is said by its agreement with preferences that it did not learn from.
"""

# scipy leaves some of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingTypeStubs=false
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pasta_async.errors import InvalidRequestError
from pasta_async.training.judge.preferences import Comparison
from pasta_async.training.statistics import estimate


class Head(NamedTuple):
    """What a judge has learned."""

    weights: NDArray[Any]
    """[features]"""
    effects: NDArray[Any]
    """[terms] what the weighted features owe to each term of an answer's length."""

    def reward(self, features: NDArray[Any], text: str) -> float:
        """The reward of an answer, by its features [features]; a difference of two is the log-odds to win."""
        return float(features @ self.weights - length_terms([text])[0] @ self.effects)


def length_terms(texts: Sequence[str]) -> NDArray[Any]:
    """[answers, terms] the logarithm of an answer's characters, and its square."""
    logarithms = np.log1p([len(text) for text in texts])
    return np.stack([logarithms, logarithms**2], axis=1)


def length_effects(features: NDArray[Any], terms: NDArray[Any]) -> NDArray[Any]:
    """[terms, features] how the features [answers, features] go with length, by least squares."""
    constant = np.ones((len(terms), 1))
    return np.linalg.lstsq(np.concatenate([terms, constant], axis=1), features, rcond=None)[0][:-1]


def fit_head(
    differences: NDArray[Any], lengths: NDArray[Any], wins: NDArray[Any], penalty: float
) -> NDArray[Any]:
    """Fit the weights of a head, [features], and behind them that of length.

    It is logistic regression without an intercept, so it does not matter which answer is first.

    Args:
        differences: [pairs, features] features of the first answer less those of the second.
        lengths: [pairs] how much longer the first one is (`Comparison.length`).
        wins: [pairs] whether the first one is better.
        penalty: Of the squares of the weights of the scaled features; that of length is free.
    """
    from scipy.optimize import minimize
    from scipy.special import expit

    scale = np.sqrt((differences**2).mean(0)) * np.sqrt(differences.shape[1])
    scale[scale == 0] = 1.0
    scaled = np.concatenate([differences / scale, lengths[:, None]], axis=1, dtype=np.float64)
    signed = np.where(wins[:, None], scaled, -scaled)
    penalties = np.append(np.full(differences.shape[1], penalty), 0.0)

    def objective(weights: NDArray[Any]) -> tuple[float, NDArray[Any]]:
        odds = signed @ weights
        cost = np.logaddexp(0, -odds).sum() + 0.5 * (penalties * weights**2).sum()
        return cost, -signed.T @ expit(-odds) + penalties * weights

    found: Any = minimize(objective, np.zeros(scaled.shape[1]), jac=True, method="L-BFGS-B")
    return found.x / np.append(scale, 1.0)


def lengths_and_wins(comparisons: Sequence[Comparison]) -> tuple[NDArray[Any], NDArray[Any]]:
    """How much longer the first answers are, and whether they win, as `fit_head` takes them."""
    return np.array([one.length for one in comparisons]), np.array([one.first_wins for one in comparisons])


def agreement(judged: Sequence[Comparison], rewards: NDArray[Any]) -> dict[str, Any]:
    """How often a judge is right, how often the longer answer is better, and the difference, in percent.

    The comparisons are some that it did not learn from, the rewards, [judged], the first answer's less the
    other's. Where one of the two cannot decide, it is right half of the time. Intervals are over prompts.

    Raises:
        InvalidRequestError: Nothing was judged.
    """
    if not judged:
        raise InvalidRequestError("no pair is left to test the judge on: bring more, or use more (--within)")
    lengths, wins = lengths_and_wins(judged)
    right, longer = (0.5 + 0.5 * np.where(wins, 1, -1) * np.sign(one) for one in (rewards, lengths))
    prompts = [one.prompt for one in judged]
    found: dict[str, Any] = {
        "pairs": len(judged),
        "prompts": len(set(prompts)),
        "models": len({model for one in judged for model in one.models if model}),
    }
    for name, values in (("judge", right), ("longer", longer), ("difference", right - longer)):
        found[name] = estimate((100 * values).tolist(), "arithmetic", clusters=prompts)
    return found


def certainty(judged: Sequence[Comparison], rewards: NDArray[Any]) -> tuple[float, float]:
    """How sure a judge may be, by its rewards as for `agreement`.

    Returns:
        What rewards have to be multiplied by for their differences to be the log-odds of equally long
        answers, and the log loss in nats that is left then (a coin's is 0.6931).
    """
    lengths, wins = lengths_and_wins(judged)
    # The penalty keeps a judge that was never wrong from certainty; one worse than a coin gives no verdict.
    scale = max(0.0, float(fit_head(rewards[:, None], lengths, wins, penalty=0.1)[0]))
    odds = scale * np.where(wins, rewards, -rewards)
    return scale, float(np.logaddexp(0, -odds).mean())
