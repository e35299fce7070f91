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

from pasta_async.errors import InvalidRequestError
from pasta_async.evals.commands import Command, Settings, command
from pasta_async.training.corpus import Record, read_records, write_records
from pasta_async.training.synthetic import Example, sample, score

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pasta_async.lang import Document
    from pasta_async.training.synthetic import Split

__all__ = [
    "Prompt",
    "digest",
    "document_prompts",
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
    try:
        text = path.read_text(encoding="utf-8")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if path.suffix in (".json", ".jsonl"):
            rows = json.loads(text) if path.suffix == ".json" else map(json.loads, lines)
            prompts = [Prompt(str(row["instruction"]), str(row.get("dataset", "file"))) for row in rows]
        else:
            prompts = [Prompt(line, "file") for line in lines]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InvalidRequestError(f"{path} cannot be read as prompts: {error!r}") from error
    if not prompts:
        raise InvalidRequestError(f"{path} holds no prompt: write one in each line")
    return prompts


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


def document_prompts(documents: Mapping[str, Document]) -> list[Prompt]:
    """The prompts of documents, in two families: answers with promises, and those without."""
    return [Prompt(text, "parallel" if d.promises else "sequential") for text, d in documents.items()]


def _join(prompts: Path, answers: Path) -> Iterator[Record]:
    """One record for each prompt, with the answer of the same line."""
    from pasta_async.training.annotate import annotate_by_structure  # needs a Markdown parser

    asked, said = _lines(prompts), _lines(answers)
    if len(asked) != len(said):
        raise InvalidRequestError(f"{prompts} has {len(asked)} prompts, {answers} {len(said)} answers")
    for number, (prompt, answer) in enumerate(zip(asked, said, strict=True)):
        yield Record(
            id=str(number),
            messages=({"role": "user", "content": prompt["instruction"]},),
            written=annotate_by_structure(answer["output"]).format(),
            source=str(prompt.get("dataset", prompts.name)),
            annotator="structure:points",
        )


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"{path} cannot be read as JSON lines: {error}") from error


class JoinSettings(Settings):
    """Which files become one."""

    prompts: Path = Field(description="JSON lines with `instruction`")
    answers: Path = Field(description="JSON lines with `output`, in the same order")
    out: Path = Field(description="the file of records that is written")


def _write(settings: JoinSettings) -> None:
    records = {record.prompt: record for record in _join(settings.prompts, settings.answers)}
    count = write_records(settings.out, records.values())
    parallel = sum(bool(record.document.promises) for record in records.values())
    print(f"{settings.out}: {count} documents, {parallel} of them with promises")


main: Command = command(JoinSettings, _write, "documents", __doc__)

if __name__ == "__main__":
    main()
