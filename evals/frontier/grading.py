"""How good answers are: by the task's program, or by a judge that compares with the baseline's."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from pasta_async.jobs import for_each
from pasta_async.training.preference.samples import Plain, SampledPrompt
from pasta_async.training.score import ScoreSettings, open_judge
from pasta_async.training.synthetic import grade

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.evals.answers import Answer
    from pasta_async.evals.prompts import Prompt

__all__ = ["compared", "facts"]


def facts(prompts: Sequence[Prompt], answers: Sequence[Answer]) -> list[float]:
    """The share of each answer that is right, by the synthetic task's program."""
    pairs = zip(prompts, answers, strict=True)
    return [grade(prompt.example, answer.text) for prompt, answer in pairs if prompt.example is not None]


async def compared(
    settings: ScoreSettings,
    prompts: Sequence[Prompt],
    answers: Sequence[Answer],
    baseline: Sequence[Answer],
) -> list[float]:
    """How sure the judge is that each answer is better than the baseline's: 0.5 for one as good.

    Args:
        settings: Name the judge; its replies are kept beside `settings.out`, and not asked for again.
        prompts: What was asked.
        answers: One for each prompt.
        baseline: The sequential model's.

    Cancelling it ends its requests.

    Raises:
        PastaError: The judge failed, or is of no use.
    """
    grades = [0.5] * len(prompts)

    async def grade(place: int) -> None:
        plain = baseline[place]
        asked = SampledPrompt(
            id=str(place),
            messages=({"role": "user", "content": prompts[place].text},),
            samples=(),
            baseline=Plain(text=plain.text, tokens=plain.tokens),
        )
        grades[place] = await judge.quality(asked, answers[place].text)

    async with AsyncExitStack() as stack:
        judge = await open_judge(settings, stack)
        await for_each(range(len(prompts)), grade, settings.in_flight)
    return grades
