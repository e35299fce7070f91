r"""What a judge says of answers beside the plain ones: how likely each is better.

    python -m pasta_async.evals.judge results/alpaca/answers.jsonl --judge reward --judge-model FOLDER \
        --out results/judge

The judge is one that scores samples for stage 2 (`pasta_async.training.score`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from pasta_async.cli.command import Command, command
from pasta_async.evals.answers import Answer
from pasta_async.evals.instruments import Figures, InstrumentSettings, compared, read_forms, table
from pasta_async.evals.records import write_result
from pasta_async.jobs import for_each, progress
from pasta_async.training.preference import Plain, SampledPrompt
from pasta_async.training.score import JudgeSettings, open_judge


class JudgedSettings(InstrumentSettings, JudgeSettings):
    """What is judged, and by whom."""


async def grade_answers(
    settings: JudgeSettings,
    out: Path,
    answers: Sequence[Answer],
    plain: Sequence[Answer],
    ids: Sequence[str] = (),
) -> list[float]:
    """How good a judge finds each answer, from 0 to 1; of most judges: how likely it beats the plain one.

    Cancelling it ends the requests under way.

    Args:
        settings: Who judges.
        out: Folder of the judge's journal; what is in it is not judged again.
        answers: To some prompts.
        plain: The plain answers to the same prompts.
        ids: Names of the prompts, for a judge that goes by them (`task`).

    Raises:
        PastaError: The judge cannot be used, or an answer cannot be judged.
    """
    grades: dict[int, float] = {}
    with progress(len(answers), "answers") as advance:

        async def grade_one(place: int) -> None:
            prompt = SampledPrompt(
                id=ids[place] if ids else str(place),
                messages=({"role": "user", "content": answers[place].question},),
                samples=(),
                baseline=Plain(text=plain[place].text, tokens=plain[place].tokens),
            )
            grades[place] = await judge.quality(prompt, answers[place].text)
            advance()

        async with AsyncExitStack() as stack:
            judge = await open_judge(settings, out / "judge.journal.jsonl", stack)
            await for_each(range(len(answers)), grade_one, settings.in_flight)
    return [grades[place] for place in range(len(answers))]


async def _run(settings: JudgedSettings) -> str:
    identity, forms = read_forms(settings.answers, ("baseline",))
    plain = forms["baseline"]
    grades: dict[str, list[float | None]] = {
        form: [100 * grade for grade in await grade_answers(settings, settings.out, own, plain)]
        for form, own in forms.items()
    }
    figures: Figures = {"quality %": grades}
    found: dict[str, Any] = compared(forms, figures)
    judge = {"judge": settings.judge, "judge_model": settings.judge_model}
    write_result(settings.out, {"benchmark": "judge", **judge, "answers": identity, **found})
    return table(found)


main: Command = command(JudgedSettings, _run, "judge", __doc__, positional=("answers",), resumes=True)

if __name__ == "__main__":
    main()
