"""Prompts and written documents to measure with.

    python -m pasta_async.evals.documents --prompts eval.jsonl --answers outputs.jsonl --out documents.jsonl

makes documents of AlpacaEval's prompts (`instruction`) and answers (`output`, in the same order), which it
annotates by their structure (pasta_async.training.annotate). AlpacaEval's data is CC BY-NC 4.0; keep it, and
what is made of it, out of what you publish under other terms.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from pasta_async.cli.command import Command, CommandSettings, command
from pasta_async.errors import InvalidRequestError
from pasta_async.training.corpus import Record, read_records, write_records
from pasta_async.training.synthetic import Example, sample, score

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
    """One prompt, and how its answer is judged if it is one of the synthetic task."""

    text: str
    family: str
    example: Example | None = None

    def right(self, answer: str) -> bool | None:
        """Whether an answer is right; None where nobody knows."""
        return None if self.example is None else score(self.example, answer)


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

    A file named .jsonl holds objects with an `instruction`, and a `dataset` that figures are grouped by; one
    named .json a list of such objects (AlpacaEval's forms).

    Raises:
        InvalidRequestError: There is none, or the file cannot be read.
    """
    path = Path(path)
    if path.suffix in (".json", ".jsonl"):
        rows = _read_objects(path, "instruction")
        prompts = [Prompt(row["instruction"], str(row.get("dataset", "file"))) for row in rows]
    else:
        prompts = [Prompt(line.strip(), "file") for line in _read(path).splitlines() if line.strip()]
    if not prompts:
        raise InvalidRequestError(f"{path} holds no prompt: write one in each line")
    return prompts


def _read_objects(path: Path, text: str) -> list[dict[str, Any]]:
    """The objects of a JSON list, or of JSON lines, each with a `text` of this name."""
    content = _read(path)
    try:
        lines = content.split("\n")  # a text may hold other separators of lines
        rows = json.loads(content) if path.suffix == ".json" else [json.loads(s) for s in lines if s.strip()]
        return [{**row, text: str(row[text])} for row in rows]
    except (ValueError, LookupError, TypeError) as error:
        raise InvalidRequestError(f"{path} is not JSON with `{text}` in each object: {error!r}") from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"{path} cannot be read: {error}") from error


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

    prompts, answers = read_prompts(settings.prompts), _read_objects(settings.answers, "output")
    if len(prompts) != len(answers):
        raise InvalidRequestError(
            f"{settings.prompts} has {len(prompts)} prompts, {settings.answers} {len(answers)} answers"
        )
    records = {
        prompt.text: Record(
            id=str(number),
            messages=({"role": "user", "content": prompt.text},),
            written=annotate_by_structure(answer["output"]).format(),
            source=prompt.family,
            annotator="structure:points",
        )
        for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
    }
    count = write_records(settings.out, records.values())
    parallel = sum(bool(record.document.promises) for record in records.values())
    return f"{settings.out}: {count} documents, {parallel} of them with promises"


main: Command = command(JoinSettings, _join, "documents", __doc__)

if __name__ == "__main__":
    main()
