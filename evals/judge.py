r"""What a judge says of answers beside the plain ones: how likely each is better.

    python -m pasta_async.evals.judge results/alpaca/answers.jsonl --judge reward --judge-model FOLDER \
        --out results/judge

The judge is one that scores samples for stage 2 (`pasta_async.training.score`).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from pasta_async.cli.command import Command
from pasta_async.errors import BackendError
from pasta_async.evals.answers import Answer
from pasta_async.evals.instruments import Forms, InstrumentSettings, compared, instrument
from pasta_async.training.endpoint import collect
from pasta_async.training.judging import Judge
from pasta_async.training.samples import Plain, SampledPrompt
from pasta_async.training.score import JudgeSettings, open_judge

JOURNAL = "judge.journal.jsonl"
"""Of the judge, in the folder of the result: what is in it is not judged again."""


class JudgedSettings(InstrumentSettings, JudgeSettings):
    """What is judged, and by whom."""


async def grade_answers(
    judge: Judge,
    answers: Sequence[Answer],
    plain: Sequence[Answer],
    ids: Sequence[str] = (),
    *,
    in_flight: int,
) -> list[float | None]:
    """How good a judge finds each answer, from 0 to 1; of most judges: how likely it beats the plain one.

    Ids name the prompts for a judge that goes by them (`task`). At most `in_flight` answers are judged at the
    same time; cancelling it ends their requests.

    Returns:
        None for an answer that the judge refuses; why is told on stderr.

    Raises:
        PastaError: The judge cannot be used, or judges none of the answers.
    """

    async def grade(place: int) -> float:
        prompt = SampledPrompt(
            id=ids[place] if ids else str(place),
            messages=({"role": "user", "content": answers[place].question},),
            samples=(),
            baseline=Plain(text=plain[place].text, tokens=plain[place].tokens),
        )
        return await judge.verdict(prompt, answers[place].text)

    grades, failures = await collect(range(len(answers)), grade, in_flight)
    if failures:
        told = f"{len(failures)} of {len(answers)} answers are not judged: {next(iter(failures.values()))}"
        if not grades:
            raise BackendError(told)
        print(told, file=sys.stderr)
    return [grades.get(place) for place in range(len(answers))]


async def _measure(settings: JudgedSettings, forms: Forms) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        judge = await open_judge(settings, settings.out / JOURNAL, stack)
        grades = {
            form: await grade_answers(judge, own, forms["baseline"], in_flight=settings.in_flight)
            for form, own in forms.items()
        }
    figures = {
        form: [{"quality %": None if grade is None else 100 * grade} for grade in own]
        for form, own in grades.items()
    }
    return {
        **settings.model_dump(include={"judge", "judge_model"}),
        "unjudged": {form: own.count(None) for form, own in grades.items()},
        **compared(forms, figures),
    }


main: Command = instrument(
    JudgedSettings,
    lambda settings, forms: asyncio.run(_measure(settings, forms)),
    "judge",
    __doc__,
    needed=("baseline",),
    resumes=True,
)

if __name__ == "__main__":
    main()
