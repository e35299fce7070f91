"""From answers to the figures of one model."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

from pasta_async.evals.statistics import estimate, geometric_mean, share
from pasta_async.lang import Sync, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pasta_async.evals.answers import Answer
    from pasta_async.evals.prompts import Prompt
    from pasta_async.evals.timing import Run

__all__ = ["outcome", "wall_clock"]


def outcome(
    prompts: Sequence[Prompt],
    answers: Sequence[Answer],
    grades: Sequence[float],
    baseline: tuple[Sequence[Answer], Sequence[float]] | None = None,
) -> dict[str, Any]:
    """The figures of a model, for all prompts and for each family.

    Args:
        prompts: What was asked.
        answers: One for each prompt.
        grades: How good each of them is, from 0 to 1.
        baseline: Answers and grades of the sequential model; None: these are the sequential model's own.
    """
    families = list(dict.fromkeys(prompt.family for prompt in prompts))

    def figures(wanted: Callable[[Prompt], bool]) -> dict[str, Any]:
        places = [place for place, prompt in enumerate(prompts) if wanted(prompt)]
        own = _own([answers[i] for i in places], [grades[i] for i in places])
        if baseline is None:
            return own
        plain, plain_grades = baseline
        difference = estimate([100 * (grades[i] - plain_grades[i]) for i in places], fmean)
        return {**own, **_compared([(answers[i], plain[i]) for i in places]), "difference": difference}

    return {
        "all": figures(lambda prompt: True),
        "by_family": {name: figures(lambda prompt, name=name: prompt.family == name) for name in families},
    }


def _own(answers: Sequence[Answer], grades: Sequence[float]) -> dict[str, Any]:
    """What can be said of a model's answers by themselves. Shares and grades in percent."""
    return {
        "prompts": len(answers),
        "score": estimate([100 * grade for grade in grades], fmean),
        "right": share([grade == 1 for grade in grades]),
        "text_tokens": fmean(one.text_tokens for one in answers),
        "tokens": fmean(one.tokens for one in answers),
        "critical_path": fmean(one.critical_path for one in answers),
        "promises": fmean(one.promises for one in answers),
        "parallel": share([one.promises > 0 for one in answers]),
        "synced": share([_syncs(one) for one in answers]),
        "malformed": share([not one.well_formed for one in answers]),
    }


def _compared(pairs: Sequence[tuple[Answer, Answer]]) -> dict[str, Any]:
    """Speed-ups over the baseline, by tokens: geometric means over the prompts."""
    return {
        "theoretical_speedup": estimate(
            [max(1, plain.tokens) / max(1, own.critical_path) for own, plain in pairs]
        ),
        # One more token ends the answer, as in what the baseline generated.
        "length_matched_speedup": estimate(
            [(own.text_tokens + 1) / max(1, own.critical_path) for own, _ in pairs]
        ),
    }


def wall_clock(runs: Sequence[Run], answers: Sequence[Answer], baseline: Sequence[Answer]) -> dict[str, Any]:
    """The realised speed-ups of answers that were timed alone, over passes and prompts.

    Length-matched: the baseline's seconds, scaled to the length of the model's own text.
    """
    prompts = sorted({run.prompt for run in runs})
    seconds = {
        (prompt, form): geometric_mean([r.seconds for r in runs if (r.prompt, r.form) == (prompt, form)])
        for prompt in prompts
        for form in ("parallel", "baseline")
    }
    speedups = [seconds[prompt, "baseline"] / seconds[prompt, "parallel"] for prompt in prompts]
    lengths = [(answers[i].text_tokens + 1) / max(1, baseline[i].tokens) for i in prompts]
    return {
        "prompts": len(prompts),
        "speedup": estimate(speedups),
        "length_matched_speedup": estimate([s * length for s, length in zip(speedups, lengths, strict=True)]),
        "seconds": {
            form: fmean(seconds[prompt, form] for prompt in prompts) for form in ("parallel", "baseline")
        },
    }


def _syncs(answer: Answer) -> bool:
    return any(isinstance(node, Sync) for node in parse(answer.written).nodes)
