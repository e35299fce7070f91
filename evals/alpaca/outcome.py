"""One result from answers and judgements, with everything that it takes to repeat it."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

from numpy import quantile

from pasta_async.evals.alpaca.judging import BOOTSTRAP_SEED
from pasta_async.evals.answers import FORMS, of_form, theoretical
from pasta_async.evals.statistics import estimate, format_estimate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.evals.answers import Answer
    from pasta_async.evals.documents import Prompt
    from pasta_async.evals.statistics import Estimate

__all__ = ["outcome", "tables"]


def outcome(questions: Sequence[Prompt], answers: Sequence[Answer], judged: dict[str, Any]) -> dict[str, Any]:
    """Win rates in percent with 95% intervals, lengths in characters, and the theoretical speed-up.

    Args:
        questions: The prompts.
        answers: Both forms of each.
        judged: What `judge` returned.
    """
    texts = {form: [one.text for one in of_form(answers, form)] for form in FORMS}
    forked = of_form(answers, "parallel")
    preferences: list[float | None] = judged["preferences"]
    return {
        "win_rate": _win_rate(preferences),
        "length_controlled_win_rate": _length_controlled(judged),
        "alpaca_eval": {**judged["winrate"], **judged.get("length_controlled", {})},
        "missing": judged["missing"],
        "by_dataset": _by_dataset(questions, preferences),
        "mean_length": {form: fmean(map(len, found)) for form, found in texts.items()},
        "empty": {form: sum(not text.strip() for text in found) for form, found in texts.items()},
        "same_text": sum(a == b for a, b in zip(*texts.values(), strict=True)),
        "theoretical_speedup": theoretical(forked, of_form(answers, "baseline")),
        "malformed": fmean(not one.well_formed for one in forked),
        "with_promises": fmean(one.promises > 0 for one in forked),
    }


def tables(result: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The result as rows of two tables: all prompts, and by source."""
    controlled = result["length_controlled_win_rate"]
    whole = {
        "prompts": result["prompts"]["count"],
        "win rate %": format_estimate(result["win_rate"]),
        "length-controlled %": controlled.get("reason") or format_estimate(controlled),
        "characters, parallel": result["mean_length"]["parallel"],
        "characters, baseline": result["mean_length"]["baseline"],
        "theoretical speed-up": format_estimate(result["theoretical_speedup"], ".2f"),
        "malformed": f"{result['malformed']:.1%}",
        "judge": result["judge"]["model"],
    }
    sources = [
        {"source": row["dataset"], "prompts": row["prompts"], "win rate %": format_estimate(row["win_rate"])}
        for row in result["by_dataset"]
    ]
    return [[whole], sources]


def _by_dataset(questions: Sequence[Prompt], preferences: Sequence[float | None]) -> list[dict[str, Any]]:
    pairs = list(zip(questions, preferences, strict=True))
    sources = {
        name: [preference for question, preference in pairs if question.family == name]
        for name in dict.fromkeys(question.family for question in questions)
    }
    return [
        {"dataset": name, "prompts": len(found), "win_rate": _win_rate(found)}
        for name, found in sources.items()
    ]


def _win_rate(preferences: Sequence[float | None]) -> Estimate | None:
    known = [100 * value for value in preferences if value is not None]
    return estimate(known, fmean, seed=BOOTSTRAP_SEED) if known else None


def _length_controlled(judged: dict[str, Any]) -> dict[str, Any]:
    if "length_controlled" not in judged:
        return {"reason": judged["no_length_control"]}
    value = judged["length_controlled"]["length_controlled_winrate"]
    draws: list[float] = judged["length_controlled_draws"] or [value]
    return {
        "value": value,
        "low": float(quantile(draws, 0.025)),
        "high": float(quantile(draws, 0.975)),
        "draws": len(draws),
    }
