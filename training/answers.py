"""Draw a model's own plain answers: `python -m pasta_async.training.answers`.

Training on answers that the model itself would give leaves its knowledge as it is, and the loss to the tags.
Kept is what ends by itself, says something and does not repeat itself. The journal beside OUT has every
answer: the same command resumes an interrupted run, and other limits on what is kept draw nothing anew.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from typing import TYPE_CHECKING, Any

from pydantic import Field

from pasta_async import Client
from pasta_async.cli.command import Command, Count, command
from pasta_async.errors import PastaError
from pasta_async.jobs import Journal, for_each, journal_beside, progress
from pasta_async.training.corpus import PartSettings, digest, plain_record, read_records, write_records
from pasta_async.training.endpoint import FailureBudget
from pasta_async.training.faults import repeats_itself
from pasta_async.training.identity import backend_digest
from pasta_async.training.sample import answer_seed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pasta_async.training.corpus import Record

__all__ = ["AnswerSettings", "draw_answers", "main"]


class AnswerSettings(PartSettings):
    """How to draw. Every field is a flag of the command line."""

    backend: str = Field(default="local:", description="as for pasta_async.generate")
    prompts: tuple[Path, ...] = Field(min_length=1, description="files of records with prompts to answer")
    out: Path = Field(
        description="file of records with these answers, JSON lines; its journal stands beside it"
    )
    max_tokens: Count = Field(default=500, description="of an answer; longer ones are not kept")
    least: Count = Field(default=3, description="words that an answer must have to be kept")
    temperature: float = Field(default=0.6, ge=0, description="of the sampler")
    seed: int = Field(default=0, description="every answer has its own, derived from this one")
    together: Count = Field(default=64, description="answers at the same time")


async def draw_answers(settings: AnswerSettings) -> dict[str, Any]:
    """Draw, write the file, and return figures of the run. Cancelling it loses only the answers under way.

    Raises:
        PastaError: The prompts or the backend cannot be used; answers that were drawn are kept.
    """
    records = [*settings.part(record for path in settings.prompts for record in read_records(path))]
    started, budget, failures = time.monotonic(), FailureBudget(proven=True), Counter[str]()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(settings.backend))
        identity = settings.model_dump(include={"backend", "max_tokens", "temperature", "seed"})
        identity["weights"] = backend_digest(settings.backend)
        path = journal_beside(settings.out)
        journal = stack.enter_context(Journal(path, identity))
        drawn = {row["key"] for row in journal.rows}
        advance = stack.enter_context(progress(len(records), "answers"))

        async def draw(record: Record) -> None:
            try:
                answer = await client.generate(
                    record.messages,
                    temperature=settings.temperature,
                    max_tokens=settings.max_tokens,
                    seed=answer_seed(settings.seed, record.id, 0),
                    baseline=True,
                )
            except PastaError as error:
                budget.failed(error)
                failures[type(error).__name__] += 1
            else:
                budget.succeeded()
                row = {"text": answer.text, "tokens": answer.usage.completion_tokens}
                journal.append({"key": _key(record), "finish_reason": answer.finish_reason, **row})
            advance()

        await for_each([one for one in records if _key(one) not in drawn], draw, settings.together)
        found = {row["key"]: row for row in journal.rows}
    left_out = Counter[str]()
    kept = write_records(settings.out, _kept(settings, records, found, left_out))
    tokens = sum(row["tokens"] for key, row in found.items() if key not in drawn)
    seconds = round(time.monotonic() - started, 3)
    return {
        "kept": kept,
        "left_out": dict(left_out),
        "failures": dict(failures),
        "resumed": len(drawn),
        "tokens": tokens,
        "seconds": seconds,
    }


def _key(record: Record) -> str:
    return digest(record.messages, record.id)


def _kept(
    settings: AnswerSettings, records: Sequence[Record], found: dict[str, Any], left_out: Counter[str]
) -> Iterator[Record]:
    """Records of the answers to train on; the others are counted by what is wrong with them."""
    for record in records:
        row = found.get(_key(record))
        if row is None:
            left_out["failed"] += 1
        elif fault := _fault(row, settings.least):
            left_out[fault] += 1
        else:
            yield plain_record(record.messages, row["text"].strip(), source=record.source, id=record.id)


def _fault(row: dict[str, Any], least: int) -> str:
    if row["finish_reason"] != "stop":
        return "long"
    if len(row["text"].split()) < least:
        return "trivial"
    return "repeats" if repeats_itself(row["text"]) else ""


main: Command = command(AnswerSettings, draw_answers, "pasta_async.training.answers", __doc__, resumes=True)

if __name__ == "__main__":
    main()
