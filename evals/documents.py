"""Written documents to measure with: files of records, and AlpacaEval's reference answers made into one.

    python -m pasta_async.evals.documents --prompts eval.jsonl --answers outputs.jsonl --out documents.jsonl

The prompts have `instruction`, the answers `output`, in the same order. The answers are annotated by their
structure (pasta_async.training.annotate). AlpacaEval's data is CC BY-NC 4.0; keep it, and what is made of it,
out of what you publish under other terms.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasta_async.cli.command import ending
from pasta_async.errors import InvalidRequestError
from pasta_async.evals.prompts import digest
from pasta_async.training.corpus import Record, read_records, write_records

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pasta_async.lang import Document

__all__ = ["documents_digest", "main", "read_documents"]


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
    """Tells other prompts or documents apart from these (`pasta_async.evals.prompts.digest`)."""
    return digest(part for prompt, written in documents.items() for part in (prompt, written.format()))


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


@ending()
def main(arguments: Sequence[str] | None = None) -> None:
    """Join prompts and answers into a file of annotated records."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="documents", description=__doc__, formatter_class=form)
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lines with `instruction`")
    parser.add_argument("--answers", type=Path, required=True, help="JSON lines with `output`, same order")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    records = {record.prompt: record for record in _join(options.prompts, options.answers)}
    count = write_records(options.out, records.values())
    parallel = sum(bool(record.document.promises) for record in records.values())
    print(f"{options.out}: {count} documents, {parallel} of them with promises")


if __name__ == "__main__":
    main()
