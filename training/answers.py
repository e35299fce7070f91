"""A model's own plain answers as training data: `python -m pasta_async.training.answers`.

Training on answers that the model itself would give leaves its knowledge as it is, and the loss to the tags.
They are drawn as baselines of stage 2 are (`pasta_async.training.sample`), into a file beside OUT with its
journal: the same command resumes an interrupted run, and with another `--least` nothing is drawn
anew. An answer is kept if it ends by itself, has enough words and the form that its prompt asks for, and does
not repeat itself.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from pydantic import Field

from pasta_async.cli.command import Command, Count, command
from pasta_async.training.data.corpus import Record, plain_record, write_records
from pasta_async.training.faults import lacks_form, repeats_itself
from pasta_async.training.sample import DrawSettings, SampleSettings, sample
from pasta_async.training.samples import SampledPrompt, read_samples


class AnswerSettings(DrawSettings):
    """Options of drawing."""

    out: Path = Field(description="file of records with these answers, JSON lines")
    max_tokens: Count = Field(default=500, description="of an answer; longer ones are not kept")
    least: Count = Field(default=3, description="words that an answer must have to be kept")
    temperature: float = Field(default=0.6, ge=0, le=10, description="of the sampler")


async def draw_answers(settings: AnswerSettings) -> dict[str, Any]:
    """Draw, write the file, and return figures of the run. Cancelling it loses only the answers under way.

    Raises:
        PastaError: The prompts or the backend cannot be used; answers that were drawn are kept.
    """
    given = settings.model_dump(exclude={"out", "least", "temperature"})
    drawn = settings.out.with_name(f"{settings.out.stem}.drawn.jsonl")
    figures = await sample(SampleSettings(**given, out=drawn, n=0, plain_temperature=settings.temperature))
    left_out = Counter[str](failed=figures["left_out"])
    records: list[Record] = []
    for prompt in read_samples(drawn):
        if fault := _fault(prompt, settings.least):
            left_out[fault] += 1
        else:
            labels = {"source": settings.backend, "id": prompt.id, "form": prompt.form}
            records.append(plain_record(prompt.messages, prompt.baseline.text.strip(), **labels))
    kept = write_records(settings.out, records)
    shared = {name: figures[name] for name in ("failures", "resumed", "tokens", "seconds")}
    return {"kept": kept, "left_out": dict(+left_out), **shared}


def _fault(prompt: SampledPrompt, least: int) -> str:
    """The reason why an answer is not kept; empty if it is."""
    answer = prompt.baseline
    if answer.finish_reason != "stop":
        return "long"
    if len(answer.text.split()) < least:
        return "trivial"
    if lacks_form(prompt.form, answer.text):
        return "formless"
    return "repeats" if repeats_itself(answer.text) else ""


main: Command = command(AnswerSettings, draw_answers, "pasta_async.training.answers", __doc__, resumes=True)

if __name__ == "__main__":
    main()
