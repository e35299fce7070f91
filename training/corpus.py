"""Training data: one format of records, and readers of other forms.

`python -m pasta_async.training.corpus` turns a file or a data set into this format, and leaves out and counts
prompts that would leak evaluation prompts into training. Nothing here needs torch; docs/data.md describes it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from pasta_async.cli.command import Command, CommandSettings, command
from pasta_async.errors import InvalidRequestError
from pasta_async.lang import Document, escape, parse
from pasta_async.protocol import Message
from pasta_async.training.leakage import LeakageFilter

_SPEAKERS = ("system", "user", "assistant")
_LIST: TypeAdapter[list[Any]] = TypeAdapter(list[Any])

M = TypeVar("M")


class StrictModel(BaseModel):
    """Immutable, and without fields that nobody declared: what files are read into."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


def _check_messages(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    for message in messages:
        if message.keys() != {"role", "content"} or message["role"] not in _SPEAKERS:
            raise ValueError(f"a message has a role ({', '.join(_SPEAKERS)}) and a content, not {message}")
    if not messages or messages[-1]["role"] != "user":
        raise ValueError("the last message must be the user's")
    return messages


Prompt = Annotated[tuple[Message, ...], AfterValidator(_check_messages)]
"""A conversation: ``{"role": ..., "content": ...}``, the last one by the user."""


class Asked(StrictModel):
    """A prompt with a name."""

    id: str = Field(min_length=1)
    """Unique in its file."""
    messages: Prompt

    @property
    def prompt(self) -> str:
        """What the user said last."""
        return self.messages[-1]["content"]


class Record(Asked):
    """A prompt and its answer in PASTA-LANG's written form. The format of every step from annotation on."""

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
        if (first := seen.setdefault(record.id, number)) != number:
            raise InvalidRequestError(f"{path}:{number}: the id {record.id!r} is taken by line {first}")
        yield record


def read_lines(path: Path | str, kind: type[M]) -> Iterator[tuple[int, M]]:
    """Read a file (`.gz`: packed) with a line of JSON for each value (`.json`: a list), with their numbers.

    Raises:
        InvalidRequestError: Unreadable, or a line is something else; with its number.
    """
    adapter = TypeAdapter(kind)
    number = 0
    packed = Path(path).suffix == ".gz"
    try:
        with (gzip.open if packed else open)(path, "rt", encoding="utf-8") as file:
            if Path(Path(path).stem if packed else path).suffix == ".json":
                for number, value in enumerate(_LIST.validate_json(file.read()), 1):
                    yield number, adapter.validate_python(value)
            else:
                for number, line in enumerate(file, 1):
                    if line.strip():
                        yield number, adapter.validate_json(line)
    except ValidationError as error:
        raise InvalidRequestError(f"{path}:{number}: {explain(error)}") from None
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
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


# --- reading

_FILES = (".json", ".jsonl", ".gz")
_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "prompter": "user"}
_PROMPTS = ("instruction", "prompt", "question")
_ANSWERS = ("output", "response", "answer", "completion")


class PartSettings(CommandSettings):
    """Which part of something to take: fields of several commands."""

    skip: int = Field(default=0, ge=0, description="leave out the first so many")
    limit: int | None = Field(default=None, ge=1, description="take no more than so many of those behind")

    def part(self, items: Iterable[M]) -> Iterator[M]:
        """The part of some items."""
        return islice(items, self.skip, None if self.limit is None else self.skip + self.limit)


class SourceSettings(PartSettings):
    """What to read."""

    data: str = Field(description="a JSON file of prompts and answers, or a data set: its folder or its name")
    split: str = Field(default="train", description="split of a data set")
    against: tuple[Path, ...] = Field(
        default=(), description="files of evaluation prompts, and answers, to keep out of the data"
    )

    def read(self) -> tuple[Iterator[Record], Counter[str]]:
        """The records that leak no evaluation prompt, and counts of the others, as `without_leaks` has them.

        Raises:
            InvalidRequestError: The data or the evaluation prompts cannot be read.
        """
        rows = [row for path in self.against for row in _read_exchanges(path)]
        answers = filter(None, (answer for _, answer in rows))
        leaks = LeakageFilter((prompt for prompt, _ in rows), answers)
        counts = Counter[str]()
        return without_leaks(self.part(read_source(self.data, self.split)), leaks, counts), counts


def without_leaks(records: Iterable[Record], leaks: LeakageFilter, counts: Counter[str]) -> Iterator[Record]:
    """The records that leak nothing and repeat no earlier one; others are counted by rule, or `repeated`.

    A record whose id another one has, as where a source's `id` is of a chat with several answers, gets one
    that is made of its content, too.
    """
    seen: set[str] = set()
    ids: set[str] = set()
    for record in records:
        content = digest(record.messages, record.written)
        found = None if content in seen else leaks.find_in(record.messages, record.document.text)
        if content in seen or found:
            counts[found or "repeated"] += 1
        else:
            if record.id in ids:
                record = record.model_copy(update={"id": f"{record.id}-{content}"})
            ids.add(record.id)
            yield record
        seen.add(content)


def read_source(data: str | Path, split: str = "train") -> Iterator[Record]:
    """Read prompts with their answers, one at a time.

    A row is a `Record`, or is mapped to one by its fields:

    - `messages` of role and content, or `conversations` of from and value (SlimOrca): everything before the
      last answer is the prompt; a content may be a list of parts of text;
    - `instruction` with an optional `input` (Alpaca), `prompt` or `question`; with `output`, `response`,
      `answer` or `completion`.

    Each may have a `system` beside it, which counts unless the messages begin with one. Its id is `id` if it
    has one, otherwise made of its content. The data are a JSON file (`read_lines`), or what the `datasets`
    library loads, a split of it: a folder, or the name of a data set on the hub, which is streamed.

    Raises:
        InvalidRequestError: The data cannot be read, or a row cannot be mapped; with its place.
    """
    for place, row in _rows(str(data), split):
        yield _record(row, place, Path(data).name)


def read_prompts(path: str | Path) -> list[str]:
    """The prompts of a file, such as AlpacaEval's: what the user said last in each row.

    Raises:
        InvalidRequestError: The file cannot be read, or a row has no prompt.
    """
    return [prompt for prompt, _ in _read_exchanges(path)]


def _read_exchanges(path: str | Path) -> list[tuple[str, str | None]]:
    """The prompts of a file, each with its answer where it has one."""
    rows = (_exchange(row, place) for place, row in _lines(path))
    found = [(messages[-1]["content"], answer) for messages, answer in rows]
    if not found:
        raise InvalidRequestError(f"{path} holds no prompt")
    return found


def _record(row: Mapping[str, Any], place: str, source: str) -> Record:
    try:
        if "written" in row:
            return Record.model_validate(row)
        messages, answer = _exchange(row, place)
        if answer is None:
            raise _missing("answer", row, place)
        row_id = "" if row.get("id") is None else str(row["id"])
        return plain_record(messages, answer, source=source, id=row_id)
    except ValidationError as error:
        raise InvalidRequestError(f"{place}: {explain(error)}") from None


def _exchange(row: Mapping[str, Any], place: str) -> tuple[list[Message], str | None]:
    """The prompt of a row, and the answer where it has one (it may be empty)."""
    turns: Any = row.get("messages") or row.get("conversations")
    messages = [_turn(turn, place) for turn in cast("list[Any]", turns)] if isinstance(turns, list) else []
    answers = [row[name] for name in _ANSWERS if isinstance(row.get(name), str)]
    if messages and messages[-1]["role"] == "assistant":
        answers.insert(0, messages[-1]["content"])
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
    if not messages:
        prompts = [row[name] for name in _PROMPTS if isinstance(row.get(name), str) and row[name].strip()]
        if not prompts:
            raise _missing("prompt", row, place)
        content = "\n\n".join(filter(None, (prompts[0], str(row.get("input") or ""))))
        messages = [{"role": "user", "content": content}]
    if row.get("system") and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": str(row["system"])})
    return messages, next(iter(answers), None)


def _missing(wanted: str, row: Mapping[str, Any], place: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{place}: no {wanted} in the fields {', '.join(row) or '(none)'}; "
        f"known are messages, conversations, {', '.join((*_PROMPTS, *_ANSWERS))}"
    )


def _turn(turn: Any, place: str) -> Message:
    fields = cast("dict[str, Any]", turn) if isinstance(turn, dict) else {}
    role = str(fields.get("role") or fields.get("from") or "")
    content: Any = fields.get("value") if fields.get("content") is None else fields["content"]
    parts = cast("list[Any]", content) if isinstance(content, list) else [content]
    texts = [cast("dict[str, Any]", part).get("text") if isinstance(part, dict) else part for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise InvalidRequestError(f"{place}: the content of a message is text, not {content!r:.80}")
    return {"role": _ROLES.get(role, role), "content": "".join(cast("list[str]", texts))}


def _lines(path: str | Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rows of a JSON file, each with its place for error messages."""
    return ((f"{path}:{number}", row) for number, row in read_lines(path, dict[str, Any]))


def _rows(data: str, split: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rows of a source, each with its place for error messages.

    JSON files are not for `datasets`: it wants one schema for all rows, and has no line numbers.
    """
    if Path(data).suffix in _FILES:
        yield from _lines(data)
        return
    try:
        import datasets  # pyright: ignore[reportMissingTypeStubs] - late, since it takes seconds
    except ModuleNotFoundError:
        needed = "the library `datasets`: pip install 'pasta_async[train]'"
        raise InvalidRequestError(f"{data} is read by {needed}") from None
    try:
        found: Any = cast("Any", datasets).load_dataset(data, split=split, streaming=True)
        for number, row in enumerate(found, 1):
            yield f"{data}, row {number}", row
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InvalidRequestError(
            f"{data} cannot be loaded as a data set, split {split!r}: {reason}. If the hub is out of reach, "
            "download it where it is not, and name the folder, or a file with its rows as JSON lines"
        ) from error


class CorpusSettings(SourceSettings):
    """What to read, and where to write."""

    out: Path = Field(description="file to write, JSON lines")


def convert(settings: CorpusSettings) -> None:
    """Read, filter, write the file, and print the counts.

    Raises:
        InvalidRequestError: The data or the evaluation prompts cannot be read.
    """
    records, left_out = settings.read()
    written = write_records(settings.out, records)
    print(f"{written} records in {settings.out}; left out: {dict(left_out)}")


main: Command = command(CorpusSettings, convert, "pasta_async.training.corpus", __doc__)

if __name__ == "__main__":
    main()
