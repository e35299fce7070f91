"""Training data: one format of records, and readers of other forms.

`python -m pasta_async.training.data.corpus` turns a file or a data set into this format. It leaves out, and
counts by reason, rows that it cannot use and prompts that would leak evaluation prompts into training.
Nothing here needs torch; docs/training.md describes the format.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, cast

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)

from pasta_async.cli.command import Command, CommandSettings, command
from pasta_async.errors import InvalidRequestError, missing_extra
from pasta_async.lang import Document, escape, parse
from pasta_async.protocol import Message
from pasta_async.training.data.leakage import LeakageFilter

_SPEAKERS = ("system", "user", "assistant")

M = TypeVar("M")


class StrictModel(BaseModel):
    """The base of the models that files are read into: immutable, and without undeclared fields."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


def _check_messages(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    for message in messages:
        if set(message) != {"role", "content"} or message["role"] not in _SPEAKERS:
            raise ValueError(f"a message has a role ({', '.join(_SPEAKERS)}) and a content, not {message}")
        if not isinstance(message["content"], str):
            raise ValueError(f"a message's content is text, not {message['content']!r:.80}")
    if not messages or messages[-1]["role"] != "user":
        raise ValueError("the last message must be the user's")
    return messages


Prompt = Annotated[tuple[Message, ...], AfterValidator(_check_messages)]
"""A conversation: ``{"role": ..., "content": ...}``, the last one by the user."""


def _check_form(form: str) -> str:
    try:
        re.compile(form)
    except re.error as error:
        raise ValueError(f"form is no regular expression: {error}") from error
    return form


class Asked(StrictModel):
    """A prompt with a name."""

    id: str = Field(min_length=1)
    """Unique in its file."""
    messages: Prompt
    form: Annotated[str, AfterValidator(_check_form)] = ""
    """A regular expression that matches an answer in the form that the prompt asks for; empty: any answer."""

    @property
    def prompt(self) -> str:
        """The text of the user's last message."""
        return self.messages[-1]["content"]


class Record(Asked):
    """A prompt and its answer in PASTA-LANG's written form. The format of every step up to stage 1."""

    written: str = ""
    """The answer in its written form; a plain answer is one without tags (literal ones escaped). Empty in
    files of prompts alone."""
    source: str = ""
    annotator: str = ""
    """Who put in the tags: a model's name, ``structure:points``, ...; empty for a plain answer."""
    scores: dict[str, float] = {}
    """Measurements of the answer, by name."""

    @property
    def document(self) -> Document:
        """The answer, read leniently: what is malformed is in its `diagnostics`."""
        return parse(self.written)


def plain_record(
    messages: Sequence[Message], response: str, *, source: str = "", id: str = "", form: str = ""
) -> Record:
    """The record of an answer without annotation; without an id it gets one made of its content."""
    return Record(
        id=id or digest(messages, response),
        messages=tuple(messages),
        written=escape(response),
        source=source,
        form=form,
    )


def digest(messages: Sequence[Message], response: str) -> str:
    """24 hexadecimal digits that stand for a prompt and its answer."""
    content = json.dumps([list(messages), response], sort_keys=True)
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:24]


LeftOut = dict[str, dict[str, Any]]
"""The rows that an import leaves out, by reason: the number of `rows`, and the `first` one."""


# --- files of JSON lines


def read_lines(path: Path | str, kind: type[M]) -> Iterator[tuple[int, M]]:
    """Read a file of JSON lines of one kind, each with its number; `.gz` is unpacked, empty ones are skipped.

    Raises:
        InvalidRequestError: Unreadable, or a line is of another kind; with its number.
    """
    adapter = TypeAdapter(kind)
    opened = gzip.open if Path(path).suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if line.isspace():
                    continue
                try:
                    yield number, adapter.validate_json(line)
                except ValidationError as error:
                    raise InvalidRequestError(f"{path}:{number}: {explain(error)}") from None
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{path} cannot be read: {error}") from error


def read_records(path: Path | str) -> Iterator[Record]:
    """Read a file of records, one at a time.

    Raises:
        InvalidRequestError: Unreadable, a line is no record, or an id occurs twice; with its line.
    """
    seen: dict[str, int] = {}
    for number, record in read_lines(path, Record):
        if (first := seen.setdefault(record.id, number)) != number:
            raise InvalidRequestError(f"{path}:{number}: the id {record.id!r} is taken by line {first}")
        yield record


def write_records(path: Path | str, records: Iterable[BaseModel]) -> int:
    """Write records, or other models, as JSON lines, whole or not at all; returns how many there are."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.part")
    count = 0
    with draft.open("w", encoding="utf-8") as out:
        for record in records:
            out.write(record.model_dump_json(exclude_defaults=True) + "\n")
            count += 1
    os.replace(draft, path)
    return count


def explain(error: ValidationError) -> str:
    """The errors of a record, in one line."""
    return "; ".join(f"{'.'.join(map(str, e['loc'])) or 'record'}: {e['msg']}" for e in error.errors())


# --- rows of other forms

_ROLES = {"human": "user", "gpt": "assistant"}


class _Turn(BaseModel):
    role: Annotated[str, BeforeValidator(lambda role: _ROLES.get(str(role), role))] = Field(
        validation_alias=AliasChoices("role", "from")
    )
    content: str = Field(validation_alias=AliasChoices("content", "value"))


class Row(BaseModel, coerce_numbers_to_str=True):
    """A prompt, perhaps with its answer, by the names of fields that data sets have."""

    id: str | None = None
    turns: list[_Turn] | None = Field(
        default=None, validation_alias=AliasChoices("messages", "conversations")
    )
    """A conversation; an assistant's last turn is the answer."""
    instruction: str | None = Field(
        default=None, validation_alias=AliasChoices("instruction", "prompt", "question")
    )
    context: str | None = Field(default=None, validation_alias=AliasChoices("input", "context"))
    """Text to put behind the instruction."""
    answer: str | None = Field(
        default=None, validation_alias=AliasChoices("output", "response", "answer", "completion")
    )
    system: str | None = Field(default=None, validation_alias=AliasChoices("system", "system_prompt"))

    def record(self, source: str, need_answer: bool = False) -> Record:
        """The row in the project's format.

        Raises:
            ValueError: It has no prompt, or no answer.
        """
        messages: list[Message] = [turn.model_dump() for turn in self.turns or ()]
        answer = self.answer
        if messages and messages[-1]["role"] == "assistant":
            answer = messages.pop()["content"]
        if not messages and self.instruction:
            content = "\n\n".join(filter(None, (self.instruction, self.context)))
            messages = [{"role": "user", "content": content}]
        if self.system and messages and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": self.system})
        if need_answer and answer is None:
            raise ValueError("no answer")
        return plain_record(messages, answer or "", source=source, id=self.id or "")


# --- sources


class PartSettings(CommandSettings):
    """The part of something to take: fields of several commands."""

    skip: int = Field(default=0, ge=0, description="number of items to leave out at the start")
    limit: int | None = Field(default=None, ge=1, description="most items to take after those")

    def part(self, items: Iterable[M]) -> Iterator[M]:
        """The part of some items."""
        return islice(items, self.skip, None if self.limit is None else self.skip + self.limit)


class SourceSettings(PartSettings):
    """A source of prompts and answers."""

    data: str = Field(description="a file of JSON lines (.gz too), or a data set: its folder or its name")
    split: str = Field(default="train", description="split of a data set")
    against: tuple[Path, ...] = Field(
        default=(), description="files of evaluation prompts, to keep out of the data"
    )

    def read(self, need_answer: bool = True) -> tuple[list[Record], LeftOut]:
        """The records of the source, and the rows that are left out.

        A row is a `Record`, or a `Row`. Left out is what cannot be used, repeats an earlier row, or leaks.
        An id is the row's own, or made of its content: also where an earlier record has its own, as answers
        of one chat do.

        Raises:
            InvalidRequestError: The data or the evaluation prompts cannot be read.
        """
        leaks = LeakageFilter(prompt for path in self.against for prompt in read_prompts(path))
        records: dict[str, Record] = {}
        contents: set[str] = set()
        left_out: defaultdict[str, list[str]] = defaultdict(list)
        for number, row in self.part(_rows(self.data, self.split)):
            try:
                if "written" in row or "form" in row:
                    record = Record.model_validate(row)
                else:
                    record = Row.model_validate(row).record(Path(self.data).name, need_answer)
                if need_answer and not record.written.strip():
                    raise ValueError("no answer")
            except ValueError as error:
                reason = explain(error) if isinstance(error, ValidationError) else str(error)
                left_out["unusable"].append(f"{self.data}:{number}: {reason}")
                continue
            # Repetitions go first: they would leak for the same reason as the row that they repeat.
            content = digest(record.messages, record.written if need_answer else "")
            if content in contents:
                left_out["repeated"].append(record.id)
                continue
            contents.add(content)
            if rule := leaks.find_in(record.messages, record.document.text):
                left_out[rule].append(f"{record.id}: {record.prompt!r:.80}")
                continue
            if record.id in records:  # its own id, but another content
                record = record.model_copy(update={"id": f"{record.id}-{content}"})
            records[record.id] = record
        report = {reason: {"rows": len(rows), "first": rows[0]} for reason, rows in left_out.items()}
        return [*records.values()], report


def read_prompts(path: str | Path) -> list[str]:
    """The prompts of a file, such as AlpacaEval's: the text of the user's last message in each row.

    Raises:
        InvalidRequestError: The file cannot be read, or a row has no prompt.
    """
    prompts: list[str] = []
    for number, row in read_lines(path, Row):
        try:
            prompts.append(row.record("").prompt)
        except ValidationError as error:
            raise InvalidRequestError(f"{path}:{number}: {explain(error)}") from None
    if not prompts:
        raise InvalidRequestError(f"{path} holds no prompt")
    return prompts


def _rows(data: str, split: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The rows of a source with their numbers: a file's, or those that the library `datasets` loads."""
    if Path(data).is_file() or Path(data).suffix in (".jsonl", ".gz"):
        yield from read_lines(data, dict[str, Any])
        return
    try:
        import datasets  # pyright: ignore[reportMissingTypeStubs] - late, since it takes seconds
    except ModuleNotFoundError as error:
        raise InvalidRequestError(str(missing_extra(f"the source {data}", "train", error))) from error
    try:
        rows: Any = cast("Any", datasets).load_dataset(data, split=split, streaming=True)
        yield from enumerate(rows, 1)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise InvalidRequestError(
            f"{data} cannot be loaded as a data set, split {split!r}: {error}. If the hub is out of reach, "
            "name a folder, or a file with its rows as JSON lines"
        ) from error


class CorpusSettings(SourceSettings):
    """The source to read, and the file to write."""

    prompts_only: bool = Field(
        default=False, description="rows need no answer, and none is kept: prompts that a model is to answer"
    )
    out: Path = Field(description="file to write, JSON lines")


def convert(settings: CorpusSettings) -> dict[str, Any]:
    """Read, filter and write the file; returns how many records there are and what is left out.

    Raises:
        InvalidRequestError: The data or the evaluation prompts cannot be read, or no row can be used.
    """
    records, left_out = settings.read(need_answer=not settings.prompts_only)
    if not records:
        raise InvalidRequestError(f"{settings.data} has no row to use: {json.dumps(left_out)}")
    if settings.prompts_only:
        records = [record.model_copy(update={"written": ""}) for record in records]
    return {"records": write_records(settings.out, records), "left_out": left_out}


main: Command = command(CorpusSettings, convert, "pasta_async.training.data.corpus", __doc__)

if __name__ == "__main__":
    main()
