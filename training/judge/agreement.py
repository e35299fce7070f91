"""How far a judge can be trusted: its agreement with preferences that it did not learn from."""

# numpy leaves some of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pasta_async.errors import InvalidRequestError
from pasta_async.training.judge.head import fit_head, lengths_and_wins
from pasta_async.training.statistics import ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pasta_async.training.judge.preferences import Comparison

__all__ = ["agreement", "certainty"]


def agreement(comparisons: Sequence[Comparison], rewards: NDArray[Any]) -> dict[str, Any]:
    """How often a judge is right, how often the longer answer is better, and the difference, in percent.

    Where one of them cannot decide, it is right half of the time. Intervals are over prompts.

    Args:
        comparisons: What was judged.
        rewards: [comparisons] the first answer's reward less the other's, NaN where it was not judged.

    Raises:
        InvalidRequestError: Nothing was judged.
    """
    known, lengths, wins = _judged(comparisons, rewards)
    if not known:
        raise InvalidRequestError("no pair is left to test the judge on: bring more, or use more (--within)")
    signs = np.where(wins, 1, -1)
    right, longer = (0.5 + 0.5 * signs * np.sign(one) for one in (rewards[~np.isnan(rewards)], lengths))
    prompts = np.unique([one.prompt for one in known], return_inverse=True)[1]
    pairs = np.bincount(prompts)
    values = {"judge": right, "longer": longer, "difference": right - longer}
    return {
        "pairs": len(known),
        "prompts": len(pairs),
        "models": len({model for one in known for model in one.models if model}),
        **{
            name: ratio(np.bincount(prompts, value).tolist(), pairs.tolist())
            for name, value in values.items()
        },
    }


def certainty(comparisons: Sequence[Comparison], rewards: NDArray[Any]) -> tuple[float, float]:
    """How sure a judge may be, by its rewards for comparisons that it did not learn from (as `agreement`).

    Returns:
        What rewards have to be multiplied by for their differences to be the log-odds of equally long
        answers, and the log loss in nats that is left then (a coin's is 0.6931).
    """
    _, lengths, wins = _judged(comparisons, rewards)
    judged = rewards[~np.isnan(rewards)]
    # The penalty keeps a judge that was never wrong from certainty; one worse than a coin gives no verdict.
    scale = max(0.0, float(fit_head(judged[:, None], lengths, wins, penalty=0.1)[0]))
    odds = scale * np.where(wins, judged, -judged)
    return scale, float(np.logaddexp(0, -odds).mean())


def _judged(
    comparisons: Sequence[Comparison], rewards: NDArray[Any]
) -> tuple[list[Comparison], NDArray[Any], NDArray[Any]]:
    """The comparisons that have a reward, how much longer their first answers are, and whether these win."""
    known = [one for one, judged in zip(comparisons, ~np.isnan(rewards), strict=True) if judged]
    return known, *lengths_and_wins(known)
