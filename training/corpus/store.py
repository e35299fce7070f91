"""Files of records: JSON lines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ValidationError

from pasta_async.errors import InvalidRequestError
from pasta_async.training.corpus.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["explain", "read_lines", "read_records", "write_lines", "write_records"]

M = TypeVar("M", bound=BaseModel)


def read_records(path: Path | str) -> Iterator[Record]:
    """Read a file of records, one at a time.

    Raises:
        InvalidRequestError: Unreadable, a line is no record, or an id stands there twice; with its line.
    """
    seen: dict[str, int] = {}
    for number, record in read_lines(path, Record):
        if seen.setdefault(record.id, number) != number:
            raise InvalidRequestError(
                f"{path}:{number}: the id {record.id!r} is taken by line {seen[record.id]}"
            )
        yield record


def read_lines(path: Path | str, model: type[M]) -> Iterator[tuple[int, M]]:
    """Read a file with a line of JSON for each model, one at a time, with the number of its line.

    Raises:
        InvalidRequestError: Unreadable, or a line is something else; with its number.
    """
    number = 0
    try:
        with Path(path).open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, model.model_validate_json(line)
    except ValidationError as error:
        raise InvalidRequestError(f"{path}:{number}: {explain(error)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{path} cannot be read: {error}") from error


def write_records(path: Path | str, records: Iterable[Record]) -> int:
    """Write a file of records, whole or not at all; returns how many there are."""
    return write_lines(path, records)


def write_lines(path: Path | str, models: Iterable[M]) -> int:
    """Write a file with a line of JSON for each model, whole or not at all; returns how many there are."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.part")
    count = 0
    with draft.open("w", encoding="utf-8") as out:
        for model in models:
            out.write(model.model_dump_json() + "\n")
            count += 1
    os.replace(draft, path)
    return count


def explain(error: ValidationError) -> str:
    """What is wrong with a record, in one line."""
    wrong = (f"{'.'.join(map(str, e['loc'])) or 'record'}: {e['msg']}" for e in error.errors())
    return "; ".join(wrong)
