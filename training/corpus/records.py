"""The project's training data: a prompt and its answer per record, stored as JSON lines."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from pasta_async.errors import InvalidRequestError
from pasta_async.lang import Document, escape, parse
from pasta_async.protocol import Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = [
    "Prompt",
    "Record",
    "StrictModel",
    "digest",
    "explain",
    "plain_record",
    "read_lines",
    "read_records",
    "write_records",
]

_ROLES = ("system", "user", "assistant")

_LIST: TypeAdapter[list[Any]] = TypeAdapter(list[Any])

M = TypeVar("M")


class StrictModel(BaseModel):
    """Immutable, and without fields that nobody declared: what files and command lines are read into."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


def _check_messages(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    for message in messages:
        if message.keys() != {"role", "content"} or message["role"] not in _ROLES:
            raise ValueError(f"a message has a role ({', '.join(_ROLES)}) and a content, not {message}")
    if not messages or messages[-1]["role"] != "user":
        raise ValueError("the last message must be the user's")
    return messages


Prompt = Annotated[tuple[Message, ...], AfterValidator(_check_messages)]
"""A conversation: ``{"role": ..., "content": ...}``, the last one by the user."""


class Record(StrictModel):
    """A prompt and its answer in PASTA-LANG's written form. The format of every step from annotation on."""

    id: str = Field(min_length=1)
    """Unique in its file."""
    messages: Prompt
    written: str
    """The answer in its written form; a plain answer is one without tags (literal ones escaped)."""
    source: str = ""
    annotator: str = ""
    """Who put in the tags: a model's name, ``structure:points``, ...; empty for a plain answer."""
    scores: dict[str, float] = {}
    """What was measured of it, by name."""

    @property
    def document(self) -> Document:
        """The answer, read leniently: what is malformed is in its `diagnostics`."""
        return parse(self.written)

    @property
    def prompt(self) -> str:
        """What the user said last."""
        return self.messages[-1]["content"]


def plain_record(messages: Sequence[Message], response: str, *, source: str = "", id: str = "") -> Record:
    """A record of an answer without annotation; without an id it gets one made of its content."""
    id = id or digest(messages, response)
    return Record(id=id, messages=tuple(messages), written=escape(response), source=source)


def digest(messages: Sequence[Message], response: str) -> str:
    """24 hexadecimal digits that stand for a prompt and its answer."""
    content = json.dumps([list(messages), response], sort_keys=True)
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def read_records(path: Path | str) -> Iterator[Record]:
    """Read a file of records, one at a time.

    Raises:
        InvalidRequestError: Unreadable, a line is no record, or an id occurs twice; with its line.
    """
    seen: dict[str, int] = {}
    for number, record in read_lines(path, Record):
        if seen.setdefault(record.id, number) != number:
            raise InvalidRequestError(
                f"{path}:{number}: the id {record.id!r} is taken by line {seen[record.id]}"
            )
        yield record


def read_lines(path: Path | str, kind: type[M]) -> Iterator[tuple[int, M]]:
    """Read a file with a line of JSON for each value (`.json`: a list of them), with their numbers.

    Raises:
        InvalidRequestError: Unreadable, or a line is something else; with its number.
    """
    adapter = TypeAdapter(kind)
    number = 0
    try:
        with Path(path).open(encoding="utf-8") as file:
            if Path(path).suffix == ".json":
                for number, value in enumerate(_LIST.validate_json(file.read()), 1):
                    yield number, adapter.validate_python(value)
            else:
                for number, line in enumerate(file, 1):
                    if line.strip():
                        yield number, adapter.validate_json(line)
    except ValidationError as error:
        raise InvalidRequestError(f"{path}:{number}: {explain(error)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{path} cannot be read: {error}") from error


def write_records(path: Path | str, records: Iterable[BaseModel]) -> int:
    """Write records, or other models, as JSON lines, whole or not at all; returns how many there are."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.part")
    count = 0
    with draft.open("w", encoding="utf-8") as out:
        for count, record in enumerate(records, 1):  # noqa: B007 - the count is returned
            out.write(record.model_dump_json() + "\n")
    os.replace(draft, path)
    return count


def explain(error: ValidationError) -> str:
    """What is wrong with a record, in one line."""
    return "; ".join(f"{'.'.join(map(str, e['loc'])) or 'record'}: {e['msg']}" for e in error.errors())
