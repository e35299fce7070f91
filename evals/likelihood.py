"""How likely a plain model finds answers, in bits a token: parallel ones beside the plain.

    python -m pasta_async.evals.likelihood answers.jsonl --model FOLDER --out results/likelihood

Measured is the visible text behind the plain prompt, so a chunk stands behind the siblings that its thread
has not seen.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field

from pasta_async.cli.command import Command
from pasta_async.evals.answers import Answer
from pasta_async.evals.instruments import Forms, InstrumentSettings, compared, instrument, table
from pasta_async.jobs import Journal, progress
from pasta_async.prompts import Message
from pasta_async.training.data.corpus import digest
from pasta_async.training.identity import model_digest

_AT_ONCE = 32
"""Answers that are computed together and then written to the journal."""


class LikelihoodSettings(InstrumentSettings):
    """What is measured, and by which model."""

    model: Path = Field(description="folder of the model, which is asked in its plain form")


def measure(settings: LikelihoodSettings, forms: Forms) -> dict[str, Any]:
    """Bits a token of answers: see `compared`. One without text, or too long for the model, has none."""
    asked = {_key(one): one for own in forms.values() for one in own}
    identity = {"benchmark": "likelihood", "model": model_digest(settings.model)}
    with Journal(settings.out / "bits.jsonl", identity) as journal:
        _compute(settings, asked, journal)
        bits = {row["key"]: row["bits"] for row in journal.rows}
    figures = {form: [{"bits a token": bits[_key(one)]} for one in own] for form, own in forms.items()}
    return {**identity, **compared(forms, figures)}


def _messages(answer: Answer) -> tuple[Message, ...]:
    return ({"role": "user", "content": answer.question},)


def _key(answer: Answer) -> str:
    return digest(_messages(answer), answer.text)


def _compute(settings: LikelihoodSettings, asked: dict[str, Answer], journal: Journal) -> None:
    """Compute the bits a token of what the journal does not have, and append them."""
    from pasta_async.training.likelihood import LanguageModel, bits_per_token

    kept = {row["key"] for row in journal.rows}
    due = [key for key in asked if key not in kept]
    if not due:
        return
    model = LanguageModel(settings.model)
    with progress(len(asked), "answers", done=len(asked) - len(due)) as advance:
        for start in range(0, len(due), _AT_ONCE):
            keys = due[start : start + _AT_ONCE]
            answers = [(_messages(asked[key]), asked[key].text) for key in keys]
            for key, bits in zip(keys, bits_per_token(model, answers), strict=True):
                journal.append({"key": key, "bits": bits})
            advance(len(keys))


main: Command = instrument(
    LikelihoodSettings, measure, "likelihood", __doc__, tables=partial(table, form=".3f"), resumes=True
)

if __name__ == "__main__":
    main()
