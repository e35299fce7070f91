"""Training data: one format of records, and readers of other forms.

`python -m pasta_async.training.data.corpus` turns a file or a data set into this format. It leaves out, and
counts by reason, rows that it cannot use and prompts that would leak evaluation prompts into training.
Nothing here needs torch; docs/training.md describes the format.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from pasta_async.cli.command import Command, CommandSettings, command
from pasta_async.errors import InvalidRequestError
from pasta_async.lang import Document, escape, parse
from pasta_async.protocol import Message
from pasta_async.training.data.leakage import LeakageFilter

_SPEAKERS = ("system", "user", "assistant")

M = TypeVar("M")


class StrictModel(BaseModel):
    """Immutable, and without fields that nobody declared: the base of what files are read into."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


def _check_messages(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    for message in messages:
        if set(message) != {"role", "content"} or message["role"] not in _SPEAKERS:
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
    form: str = ""
    """A regular expression that matches an answer in the form that the prompt asks for; empty: any answer."""

    @property
    def prompt(self) -> str:
        """The text of the user's last message."""
        return self.messages[-1]["content"]


class Record(Asked):
    """A prompt and its answer in PASTA-LANG's written form. The format of every step from annotation on."""

    written: str = ""
    """The answer in its written form; a plain answer is one without tags (literal ones escaped). Empty in
    files of prompts alone."""
    source: str = ""
    annotator: str = ""
    """Name of who put in the tags: a model, ``structure:points``, ...; empty for a plain answer."""
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


class RowError(ValueError):
    """A row that cannot be used; `reason` is what such rows are counted by."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason: str = reason


class LeftOut:
    """Rows that an import leaves out: how many by reason, and the first of each with its place."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.first: dict[str, str] = {}

    def add(self, reason: str, message: str) -> None:
        """Count a row."""
        self.counts[reason] += 1
        self.first.setdefault(reason, message)

    def report(self) -> dict[str, dict[str, Any]]:
        """The counts and first places as JSON, the most frequent reason first."""
        return {name: {"rows": rows, "first": self.first[name]} for name, rows in self.counts.most_common()}


# --- files of JSON


def read_lines(path: Path | str, kind: type[M]) -> Iterator[tuple[int, M]]:
    """Read a file of one kind of values, each with the number of its line (in a list: its place there).

    Raises:
        InvalidRequestError: Unreadable, or a value is of another kind; with its number.
    """
    adapter = TypeAdapter(kind)
    for number, value in _json_values(path):
        try:
            if isinstance(value, RowError):
                raise InvalidRequestError(f"{path}:{number}: {value}")
            yield number, adapter.validate_python(value)
        except ValidationError as error:
            raise InvalidRequestError(f"{path}:{number}: {explain(error)}") from None


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


def _json_values(path: Path | str) -> Iterator[tuple[int, Any]]:
    """The values of a file of JSON lines, or of one JSON list, with their numbers from 1 on.

    A line that is no JSON comes as a `RowError`, so that the caller decides whether to go on. A byte order
    mark is skipped. Files named `.gz` are unpacked.
    """
    opened = gzip.open if Path(path).suffix.lower() == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig") as file:
            first = True
            for number, line in enumerate(file, 1):
                if line.isspace():
                    continue
                if first and line.lstrip().startswith("["):  # a row is an object, so this is the list of all
                    yield from enumerate(_parse_list(path, line + file.read()), 1)
                    return
                first = False
                try:
                    value: Any = json.loads(line)
                except ValueError as error:
                    value = RowError("no-json", f"the line is no JSON: {error}")
                yield number, value
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{path} cannot be read: {error}") from error


def _parse_list(path: Path | str, text: str) -> list[Any]:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidRequestError(f"{path} is no JSON list: {error}") from None


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
    """The complaints about a record in one line."""
    return "; ".join(f"{'.'.join(map(str, e['loc'])) or 'record'}: {e['msg']}" for e in error.errors())


# --- rows of other forms

_ROLES = {
    **{name: name for name in _SPEAKERS},
    **{"human": "user", "prompter": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant"},
}
_CONVERSATIONS = ("messages", "conversations")
_PROMPTS = ("instruction", "prompt", "question")
_INPUTS = ("input", "context")
_ANSWERS = ("output", "response", "answer", "completion")
_SYSTEMS = ("system", "system_prompt")


def _record_of_row(row: Any, source: str, need_answer: bool) -> Record:
    """A row as a record; see `SourceSettings.read` for the forms.

    Raises:
        RowError: The row cannot be used.
    """
    if isinstance(row, RowError):
        raise row
    if not isinstance(row, Mapping):
        raise RowError("no-object", f"a row is an object with named fields, not {row!r:.60}")
    fields = cast("Mapping[str, Any]", row)
    if "written" in fields or "form" in fields:
        try:
            return Record.model_validate(fields)
        except ValidationError as error:
            raise RowError("no-record", explain(error)) from None
    messages, answer = _exchange(fields)
    if need_answer and answer is None:
        raise RowError("no-answer", _missing("answer", fields, _ANSWERS))
    given = fields.get("id")
    name = str(given) if isinstance(given, int | str) else ""
    return plain_record(messages, answer or "", source=source, id=name)


def _exchange(row: Mapping[str, Any]) -> tuple[list[Message], str | None]:
    """The prompt of a row, and its answer, which may be empty; None where there is none."""
    messages, answer = _conversation(row)
    if answer is None:
        answer = _first_text(row, _ANSWERS)
    if not messages:
        prompt = _first_text(row, _PROMPTS)
        if prompt is None or not prompt.strip():
            raise RowError("no-prompt", _missing("prompt", row, (*_CONVERSATIONS, *_PROMPTS)))
        content = "\n\n".join(filter(None, (prompt, _first_text(row, _INPUTS))))
        messages = [*_history(row), {"role": "user", "content": content}]
    system = _first_text(row, _SYSTEMS)
    if system and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    return messages, answer


def _conversation(row: Mapping[str, Any]) -> tuple[list[Message], str | None]:
    """The messages of a row up to its last answer, and that answer; without any answer, all messages.

    What the user says behind the last answer is left out: nobody answers it.
    """
    turns: Any = next((row[name] for name in _CONVERSATIONS if row.get(name)), list[Any]())
    if not isinstance(turns, list):
        raise RowError("no-messages", f"a conversation is a list of messages, not {turns!r:.60}")
    messages = [_message(turn) for turn in cast("list[Any]", turns)]
    for before, message in pairwise(messages):
        if before["role"] == message["role"] == "assistant":
            raise RowError("two-answers", f"two answers stand behind each other: {message['content']!r:.60}")
    answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    if not answers:
        return messages, None
    prompt = messages[: answers[-1]]
    if not prompt or prompt[-1]["role"] != "user":
        raise RowError("no-prompt", "no message of a user stands before the answer")
    return prompt, messages[answers[-1]]["content"]


def _ends_unanswered(row: Mapping[str, Any]) -> bool:
    """True if the last turn of a conversation is a user's."""
    turns: Any = next((row[name] for name in _CONVERSATIONS if row.get(name)), None)
    return "written" not in row and bool(turns) and _message(turns[-1])["role"] == "user"


def _message(turn: Any) -> Message:
    fields = cast("dict[str, Any]", turn) if isinstance(turn, dict) else dict[str, Any]()
    named: Any = fields.get("role") or fields.get("from")
    role = _ROLES.get(named) if isinstance(named, str) else None
    if role is None:
        raise RowError("unknown-role", f"the role {named!r:.40} is none of {', '.join(_ROLES)}")
    content: Any = fields.get("value") if fields.get("content") is None else fields["content"]
    parts: list[Any] = cast("list[Any]", content) if isinstance(content, list) else [content]
    texts = [
        cast("dict[str, Any]", part).get("text") if isinstance(part, Mapping) else part for part in parts
    ]
    if not all(isinstance(text, str) for text in texts):
        raise RowError("no-text", f"the content of a message is text, not {content!r:.60}")
    return {"role": role, "content": "".join(cast("list[str]", texts))}


def _history(row: Mapping[str, Any]) -> list[Message]:
    """The turns before an instruction: `history`, a list of pairs of a prompt and its answer."""
    history: Any = row.get("history")
    if _is_absent(history):
        return []
    messages: list[Message] = []
    for pair in cast("list[Any]", history if isinstance(history, list) else [history]):
        texts = cast("list[Any]", pair) if isinstance(pair, list) else []
        if len(texts) != 2 or not all(isinstance(text, str) for text in texts):
            raise RowError("no-history", f"`history` is a list of pairs of texts; one is {pair!r:.60}")
        messages += [{"role": "user", "content": texts[0]}, {"role": "assistant", "content": texts[1]}]
    return messages


def _first_text(row: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The first of some fields that is there.

    Raises:
        RowError: It is no text.
    """
    for name in names:
        value: Any = row.get(name)
        if _is_absent(value):
            continue
        if not isinstance(value, str):
            raise RowError("no-text", f"the field `{name}` is text, not {value!r:.60}")
        return value
    return None


def _is_absent(value: Any) -> bool:
    """None, or NaN, which tables have for an empty cell."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _missing(wanted: str, row: Mapping[str, Any], known: Sequence[str]) -> str:
    return f"no {wanted} in the fields {', '.join(row) or '(none)'}; known are {', '.join(known)}"


# --- sources


class PartSettings(CommandSettings):
    """The part of something to take: fields of several commands."""

    skip: int = Field(default=0, ge=0, description="leave out the first so many")
    limit: int | None = Field(default=None, ge=1, description="take no more than so many of those behind")

    def part(self, items: Iterable[M]) -> Iterator[M]:
        """The part of some items."""
        return islice(items, self.skip, None if self.limit is None else self.skip + self.limit)


class SourceSettings(PartSettings):
    """A source of prompts and answers."""

    data: str = Field(description="a JSON file of prompts and answers, or a data set: its folder or its name")
    split: str = Field(default="train", description="split of a data set")
    against: tuple[Path, ...] = Field(
        default=(), description="files of evaluation prompts, and answers, to keep out of the data"
    )

    def read(self, need_answer: bool = True) -> tuple[Iterator[Record], LeftOut]:
        """The records of the source, and the rows that are left out, complete once the records are read.

        A row is a `Record`, or is mapped to one by its fields:

        - `messages` of role and content, or `conversations` of from and value (ShareGPT, SlimOrca): what
          stands before the last answer is the prompt; a content may be a list of parts of text;
        - `instruction` with an optional `input` or `context` (Alpaca, Dolly), `prompt` or `question`, perhaps
          behind a `history` of pairs; with `output`, `response`, `answer` or `completion`.

        Each may have a `system` or `system_prompt` beside it, which counts unless the messages begin with
        one. Fields that are None or NaN are absent. A row's id is its `id`, or made of its content.

        Raises:
            InvalidRequestError: The data or the evaluation prompts cannot be read.
        """
        exchanges = [exchange for path in self.against for exchange in _read_exchanges(path)]
        answers = [answer for _, answer in exchanges if answer]
        leaks = LeakageFilter((prompt for prompt, _ in exchanges), answers)
        left_out = LeftOut()
        records = self._usable(need_answer, left_out)
        return without_leaks(records, leaks, left_out), left_out

    def _usable(self, need_answer: bool, left_out: LeftOut) -> Iterator[Record]:
        name = Path(self.data).name
        for place, row in self.part(_rows(self.data, self.split)):
            try:
                record = _record_of_row(row, name, need_answer)
            except RowError as error:
                left_out.add(error.reason, f"{place}: {error}")
                continue
            if need_answer and _ends_unanswered(row):
                left_out.add("unanswered-turn", f"{place}: the answer before the last turn is used")
            yield record


def without_leaks(records: Iterable[Record], leaks: LeakageFilter, left_out: LeftOut) -> Iterator[Record]:
    """The records that leak nothing and repeat no earlier one; the others are counted by rule.

    Where several records share an id, such as answers of one chat, later ones get an id of their content.
    """
    seen: set[str] = set()
    ids: set[str] = set()
    for record in records:
        content = digest(record.messages, record.written)
        if content in seen:
            left_out.add("repeated", record.id)
            continue
        seen.add(content)
        if rule := leaks.find_in(record.messages, record.document.text):
            left_out.add(rule, f"{record.id}: {record.prompt!r:.80}")
            continue
        if record.id in ids:
            record = record.model_copy(update={"id": f"{record.id}-{content}"})
        ids.add(record.id)
        yield record


def read_prompts(path: str | Path) -> list[str]:
    """The prompts of a file, such as AlpacaEval's: the text of the user's last message in each row.

    Raises:
        InvalidRequestError: The file cannot be read, or a row has no prompt.
    """
    return [prompt for prompt, _ in _read_exchanges(path)]


def _read_exchanges(path: str | Path) -> list[tuple[str, str | None]]:
    """The prompts of a file, each with its answer where it has one; every row must have a prompt."""
    exchanges: list[tuple[str, str | None]] = []
    for number, row in read_lines(path, dict[str, Any]):
        try:
            messages, answer = _exchange(row)
        except RowError as error:
            raise InvalidRequestError(f"{path}:{number}: {error}") from None
        exchanges.append((messages[-1]["content"], answer))
    if not exchanges:
        raise InvalidRequestError(f"{path} holds no prompt")
    return exchanges


def _rows(data: str, split: str) -> Iterator[tuple[str, Any]]:
    """The rows of a source, each with its place for messages.

    JSON files are not for the library `datasets`, which wants one schema for all rows and has no line
    numbers. Anything else that is no file is a folder or a name that it knows.
    """
    if Path(data).is_file() or Path(data).suffix.lower() in (".json", ".jsonl", ".ndjson", ".gz"):
        yield from ((f"{data}:{number}", value) for number, value in _json_values(data))
        return
    try:
        import datasets  # pyright: ignore[reportMissingTypeStubs] - late, since it takes seconds
    except ModuleNotFoundError:
        needed = "the library `datasets`: pip install 'pasta_async[train]'"
        raise InvalidRequestError(f"{data} is read by {needed}") from None
    try:
        rows: Any = cast("Any", datasets).load_dataset(data, split=split, streaming=True)
        for number, row in enumerate(rows, 1):
            yield f"{data}, row {number}", row
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InvalidRequestError(
            f"{data} cannot be loaded as a data set, split {split!r}: {reason}. If the hub is out of reach, "
            "download it where it is not, and name the folder, or a file with its rows as JSON lines"
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
    if settings.prompts_only:
        records = (record.model_copy(update={"written": ""}) for record in records)
    written = write_records(settings.out, records)
    if not written:
        settings.out.unlink()
        raise InvalidRequestError(f"{settings.data} has no row to use: {json.dumps(left_out.report())}")
    return {"records": written, "left_out": left_out.report()}


main: Command = command(CorpusSettings, convert, "pasta_async.training.data.corpus", __doc__)

if __name__ == "__main__":
    main()
