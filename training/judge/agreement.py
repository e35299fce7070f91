"""How far a judge can be trusted: agreement with preferences it did not learn from, and its calibration."""

# scipy leaves some of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeStubs=false
from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from pasta_async.errors import InvalidRequestError
from pasta_async.training.judge.head import fit_head, lengths_and_wins

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from pasta_async.training.judge.preferences import Comparison

__all__ = ["as_markdown", "describe"]

_BINS = 5
_LEAST = 10
"""Comparisons of a model below which its win rate is not looked at."""


def describe(
    comparisons: Sequence[Comparison], groups: Mapping[str, NDArray[Any]]
) -> tuple[float, dict[str, Any]]:
    """What is known of a judge by its rewards for comparisons that it did not learn from.

    Args:
        comparisons: What was judged.
        groups: By what was unseen: [comparisons] the first answer's reward less the other's, NaN where it was
            not judged. Certainty is measured on the first group.

    Returns:
        What rewards have to be multiplied by for their differences to be the log-odds of equally long
        answers; and the report.

    Raises:
        InvalidRequestError: Nothing of a group could be judged.
    """
    rows = {name: _Judged.of(comparisons, rewards) for name, rewards in groups.items()}
    if empty := [name for name, row in rows.items() if not row.comparisons]:
        raise InvalidRequestError(
            f"no pair is left to test the judge on ({empty[0]}): bring more, or use more of them (--within)"
        )
    first = next(iter(rows.values()))
    # The penalty keeps a judge that was never wrong from certainty; one worse than a coin gives no verdict.
    fitted = fit_head(first.rewards[:, None], first.lengths, first.wins, penalty=0.1)
    scale = max(0.0, float(fitted[0]))
    odds = scale * first.rewards
    return scale, {
        "agreement": {name: row.agreement() for name, row in rows.items()},
        "calibration": first.calibration(odds),
        "log_loss": float(np.logaddexp(0, -np.where(first.wins, odds, -odds)).mean()),
        "win_rates": first.win_rates(odds),
    }


@dataclass(frozen=True, slots=True)
class _Judged:
    """Comparisons and the rewards that a judge gave who did not know them."""

    comparisons: Sequence[Comparison]
    rewards: NDArray[Any]
    lengths: NDArray[Any]
    wins: NDArray[Any]

    @classmethod
    def of(cls, comparisons: Sequence[Comparison], rewards: NDArray[Any]) -> Self:
        places: list[int] = np.flatnonzero(~np.isnan(rewards)).tolist()
        some = [comparisons[place] for place in places]
        return cls(some, rewards[places], *lengths_and_wins(some))

    def agreement(self) -> dict[str, Any]:
        """How often the judge is right, and how often the longer answer is better, in percent.

        Where one of them cannot decide, it is right half of the time.
        """
        signs = np.where(self.wins, 1, -1)
        right, longer = (50 + 50 * signs * np.sign(one) for one in (self.rewards, self.lengths))
        prompts = np.unique([one.prompt for one in self.comparisons], return_inverse=True)[1]
        values = {"judge": right, "longer": longer, "difference": right - longer}
        return {
            "pairs": len(self.comparisons),
            "prompts": int(prompts.max()) + 1,
            "models": len({model for one in self.comparisons for model in one.models if model}),
            **{name: _clustered(value, prompts) for name, value in values.items()},
        }

    def calibration(self, odds: NDArray[Any]) -> list[dict[str, float]]:
        """How sure the judge was, and how often it was right, in percent; what it was least sure of first."""
        sure, right = 100 / (1 + np.exp(-np.abs(odds))), 100 * ((odds > 0) == self.wins)
        bins = np.array_split(np.argsort(sure, kind="stable"), min(_BINS, len(odds)))
        return [
            {"pairs": len(own), "sure": float(sure[own].mean()), "right": float(right[own].mean())}
            for own in bins
        ]

    def win_rates(self, odds: NDArray[Any]) -> dict[str, float] | None:
        """Spearman's correlation of models' win rates with those by the judge; None for too few models."""
        from scipy.stats import spearmanr

        found: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        chances = 1 / (1 + np.exp(-odds))
        for one, chance in zip(self.comparisons, chances, strict=True):
            first, second = one.models
            found[first].append((one.first_wins, chance))
            found[second].append((not one.first_wins, 1 - chance))
        means = [np.mean(own, axis=0) for name, own in found.items() if name and len(own) >= _LEAST]
        if len(means) < 5:
            return None
        own, judged = np.array(means).T
        correlation: Any = spearmanr(own, judged)
        return {"models": len(means), "correlation": float(correlation.statistic)}


def _clustered(values: NDArray[Any], clusters: NDArray[Any]) -> dict[str, float]:
    """The mean of some values, and its 95% interval when clusters are drawn with replacement."""
    from scipy.stats import bootstrap

    sums, counts = np.bincount(clusters, values), np.bincount(clusters)
    found: Any = bootstrap(
        (sums, counts),
        lambda total, count, axis: total.sum(axis) / count.sum(axis),
        paired=True,
        vectorized=True,
        n_resamples=2000,
        method="percentile",
        rng=0,
    ).confidence_interval
    return {"value": float(values.mean()), "low": float(found.low), "high": float(found.high)}


def as_markdown(report: dict[str, Any]) -> str:
    """The report as two tables and a line below them."""
    lines = [
        f"Pairs whose lengths differ by at most {report['within']:.0%}. Right in percent, with 95% intervals "
        "over prompts.\n",
        "| test | pairs | prompts | models | judge right | longer answer right | difference |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in report["agreement"].items():
        shown = (_interval(row[column]) for column in ("judge", "longer", "difference"))
        lines.append(
            f"| {name} | {row['pairs']} | {row['prompts']} | {row['models']} | {' | '.join(shown)} |"
        )
    lines += ["", "| sure, % | right, % | pairs |", "|---|---|---|"]
    lines += [f"| {one['sure']:.1f} | {one['right']:.1f} | {one['pairs']} |" for one in report["calibration"]]
    below = f"\nLog loss {report['log_loss']:.4f} nats (a coin's is 0.6931)."
    if rates := report["win_rates"]:
        below += f" Rank correlation of {rates['models']} models' win rates: {rates['correlation']:.2f}."
    return "\n".join([*lines, below]) + "\n"


def _interval(found: dict[str, float]) -> str:
    return f"{found['value']:.1f} ({found['low']:.1f} to {found['high']:.1f})"
