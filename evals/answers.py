"""Answer prompts in both forms, so that an interruption loses only what was under way."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from pasta_async.errors import PromptTooLongError
from pasta_async.evals.statistics import estimate
from pasta_async.jobs import for_each, progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async import Client, Generation, Sampling
    from pasta_async.evals.statistics import Estimate
    from pasta_async.jobs import Journal

__all__ = ["FORMS", "Answer", "Form", "answer_all", "of_form", "theoretical"]

Form = Literal["baseline", "parallel"]
"""The model's answer without tags, or one in PASTA-LANG."""
FORMS: tuple[Form, Form] = ("baseline", "parallel")


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer."""

    prompt: int
    """Its prompt's place in the list."""
    form: Form
    text: str
    written: str
    """With the tags."""
    tokens: int
    """Generated, tags counted."""
    critical_path: int
    promises: int
    seconds: float
    """Beside other answers: no measure of speed."""
    well_formed: bool
    """Whether it ended by itself, with nothing to complain about."""
    text_tokens: int = 0
    """Of the visible text."""


async def answer_all(
    client: Client,
    prompts: Sequence[str],
    journal: Journal,
    *,
    sampling: Sampling,
    together: int = 4,
    forms: Sequence[Form] = FORMS,
) -> list[Answer]:
    """Every prompt in each form, in order of the prompts; what the journal has is not asked again.

    A prompt that the model's context cannot hold has an empty answer in both.

    Args:
        client: What answers.
        prompts: What is asked.
        journal: Where answers are kept.
        sampling: Of every answer.
        together: Answers at the same time.
        forms: One form alone, if not both.

    Raises what `Client.generate` raises; finished answers are kept. Cancelling it cancels those under way.
    """
    found = {(row["prompt"], row["form"]): Answer(**row) for row in journal.rows}
    everything: list[tuple[int, Form]] = [(i, form) for i in range(len(prompts)) for form in forms]
    due = [one for one in everything if one not in found]

    async def answer(one: tuple[int, Form]) -> None:
        index, form = one
        try:
            generation = await client.generate(prompts[index], sampling=sampling, baseline=form == "baseline")
            found[one] = _answer(index, form, generation)
        except PromptTooLongError:
            found[one] = Answer(index, form, "", "", 0, 0, 0, 0.0, well_formed=False)
        journal.append(asdict(found[one]))
        done()

    with progress(len(due), "answers") as done:
        await for_each(due, answer, together)
    return [found[one] for one in everything]


def theoretical(answers: Sequence[Answer], baseline: Sequence[Answer]) -> Estimate:
    """The theoretical speed-up: geometric mean over the prompts of the baseline's tokens / critical path."""
    pairs = zip(answers, baseline, strict=True)
    ratios = [plain.tokens / own.critical_path for own, plain in pairs if plain.tokens and own.tokens]
    return estimate(ratios or [1.0])


def of_form(answers: Sequence[Answer], form: Form) -> list[Answer]:
    """The answers in one form, in order of the prompts."""
    return [answer for answer in answers if answer.form == form]


def _answer(index: int, form: Form, generation: Generation) -> Answer:
    return Answer(
        prompt=index,
        form=form,
        text=generation.text,
        written=generation.document.format(),
        tokens=generation.usage.completion_tokens,
        critical_path=generation.critical_path,
        promises=len(generation.threads) - 1,
        seconds=generation.elapsed,
        well_formed=generation.finish_reason == "stop" and not generation.diagnostics,
        text_tokens=generation.text_tokens,
    )
