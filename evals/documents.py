"""Prompts and written documents to measure with.

    python -m pasta_async.evals.documents --prompts eval.jsonl --answers outputs.jsonl --out documents.jsonl

makes documents of AlpacaEval's prompts (`instruction`) and answers (`output`, in the same order), which it
annotates by their structure (pasta_async.training.annotate). AlpacaEval's data is CC BY-NC 4.0; keep it, and
what is made of it, out of what you publish under other terms.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import AliasChoices, BaseModel, Field

from pasta_async.cli.command import Command, CommandSettings, command
from pasta_async.errors import InvalidRequestError
from pasta_async.training.corpus import Record, read_lines, read_records, write_records
from pasta_async.training.synthetic import Example, sample

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pasta_async.lang import Document
    from pasta_async.training.synthetic import Split

__all__ = [
    "WARM_UP_SEED",
    "DocumentSettings",
    "ForcedSettings",
    "Prompt",
    "digest",
    "documents_digest",
    "held_out",
    "main",
    "read_documents",
    "read_prompts",
]

WARM_UP_SEED = 1_000_000
"""Where the held-out prompts come from that do not count: far from those that do."""

_SPLITS: tuple[Split, ...] = ("names", "templates")


@dataclass(frozen=True)
class Prompt:
    """One prompt, and its example if it is one of the synthetic task."""

    text: str
    family: str
    example: Example | None = None


def held_out(families: Sequence[str], count: int, *, first_seed: int = 0) -> list[Prompt]:
    """So many prompts of each family, unseen names and unseen templates in turn, the families mixed."""
    return [
        Prompt(example.prompt, family, example)
        for k in range(count)
        for family in families
        for example in [sample(family, first_seed + k // 2, _SPLITS[k % 2])]
    ]


def read_prompts(path: Path | str) -> list[Prompt]:
    """The prompts of a text file, one in each line that is not empty.

    A file named .jsonl holds objects with an `instruction` (or `prompt`), and a `dataset` that figures are
    grouped by; one named .json a list of such objects (AlpacaEval's forms, and IFEval's).

    Raises:
        InvalidRequestError: There is none, or the file cannot be read.
    """
    if Path(path).suffix in (".json", ".jsonl"):
        prompts = [Prompt(row.instruction, row.dataset) for _, row in read_lines(path, _Question)]
    else:
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise InvalidRequestError(f"{path} cannot be read: {error}") from error
        prompts = [Prompt(line.strip(), "file") for line in lines if line.strip()]
    if not prompts:
        raise InvalidRequestError(f"{path} holds no prompt: write one in each line")
    return prompts


class _Question(BaseModel):
    instruction: str = Field(validation_alias=AliasChoices("instruction", "prompt"))
    dataset: str = "file"


class _Output(BaseModel):
    output: str


def digest(texts: Iterable[str]) -> str:
    """24 hexadecimal digits that stand for some texts and their order."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:24]


def read_documents(path: Path | str, first: int | None = None) -> dict[str, Document]:
    """Prompts and their written documents, from a file of records (`pasta_async.training.corpus.Record`).

    Args:
        path: JSON lines with `messages` and `written`.
        first: Take so many of them only.

    Raises:
        InvalidRequestError: The file is unreadable, empty, or holds a prompt twice.
    """
    documents: dict[str, Document] = {}
    for record in read_records(path):
        if len(documents) == first:
            break
        if record.prompt in documents:
            raise InvalidRequestError(f"{path}: the prompt {record.prompt!r:.80} stands there twice")
        documents[record.prompt] = record.document
    if not documents:
        raise InvalidRequestError(f"{path} holds no record")
    return documents


def documents_digest(documents: Mapping[str, Document]) -> str:
    """Tells other prompts or documents apart from these (`digest`)."""
    return digest(part for prompt, written in documents.items() for part in (prompt, written.format()))


class DocumentSettings(CommandSettings):
    """Settings of a command that has given answers written."""

    documents: Path = Field(description="records (JSON lines) with prompts and written answers")
    first: int | None = Field(default=None, ge=1, description="take so many of them only")


class ForcedSettings(DocumentSettings):
    """Settings of a command that has them written on an engine, timed."""

    backend: str = Field(description="local:FOLDER, the URL of an SGLang server, or simulated:FILE")
    out: Path | None = Field(
        default=None, description="file for the raw figures; one that was broken off is gone on with"
    )


class JoinSettings(CommandSettings):
    """Which files become one."""

    prompts: Path = Field(description="JSON lines with `instruction`")
    answers: Path = Field(description="JSON lines with `output`, in the same order")
    out: Path = Field(description="the file of records that is written")


def _join(settings: JoinSettings) -> str:
    from pasta_async.training.annotate import annotate_by_structure  # needs a Markdown parser

    prompts, answers = read_prompts(settings.prompts), [*read_lines(settings.answers, _Output)]
    if len(prompts) != len(answers):
        raise InvalidRequestError(
            f"{settings.prompts} has {len(prompts)} prompts, {settings.answers} {len(answers)} answers"
        )
    records = {
        prompt.text: Record(
            id=str(number),
            messages=({"role": "user", "content": prompt.text},),
            written=annotate_by_structure(answer.output).format(),
            source=prompt.family,
            annotator="structure:points",
        )
        for prompt, (number, answer) in zip(prompts, answers, strict=True)
    }
    count = write_records(settings.out, records.values())
    parallel = sum(bool(record.document.promises) for record in records.values())
    return f"{settings.out}: {count} documents, {parallel} of them with promises"


main: Command = command(JoinSettings, _join, "documents", __doc__)

if __name__ == "__main__":
    main()
