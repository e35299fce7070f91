"""Training data: one format of records, readers of other forms, and a leakage filter.

`python -m pasta_async.training.corpus` turns a file or a data set into this format, and leaves out and counts
prompts that would leak evaluation prompts into training. Nothing here needs torch; docs/data.md describes it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import unicodedata
from collections import Counter, defaultdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from pasta_async.cli.command import Command, command
from pasta_async.errors import InvalidRequestError
from pasta_async.lang import Document, escape, parse
from pasta_async.protocol import Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = [
    "ALIASES",
    "CorpusSettings",
    "LeakageFilter",
    "Overlap",
    "PartSettings",
    "Prompt",
    "Record",
    "SourceSettings",
    "StrictModel",
    "convert",
    "digest",
    "explain",
    "main",
    "plain_record",
    "read_lines",
    "read_prompts",
    "read_records",
    "read_source",
    "write_records",
]

_SPEAKERS = ("system", "user", "assistant")
_LIST: TypeAdapter[list[Any]] = TypeAdapter(list[Any])

M = TypeVar("M")


class StrictModel(BaseModel):
    """Immutable, and without fields that nobody declared: what files and command lines are read into."""

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
    """Read a file (`.gz`: packed) with a line of JSON for each value (`.json`: a list), with their numbers.

    Raises:
        InvalidRequestError: Unreadable, or a line is something else; with its number.
    """
    adapter = TypeAdapter(kind)
    number = 0
    try:
        with (gzip.open if Path(path).suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
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


# --- leakage

# Prompts are normalised first (Unicode NFKC, case folded, everything but letters and digits a space), and
# compared exactly by their shingles, every run of `SHINGLE` characters: a few thousand evaluation prompts are
# few enough that nothing has to be estimated (by MinHash, say). docs/data.md has the rules with examples.
SHINGLE = 5
NEAR = 0.7
"""Least Jaccard index. Of the tests' prompts, reworded ones have 0.73 or more, others 0.61 or less."""
INSIDE = 0.95
"""Least share of an evaluation prompt's shingles that are in the training prompt..."""
INSIDE_WORDS = 8
"""...if it has so many words (GPT-3's authors took n-grams of 8 to 13, arXiv 2005.14165, appendix C)."""
SHORT_WORDS = 4
"""Evaluation prompts of at least so many words may not be quoted in a prompt or an answer."""
COPIED = 0.5  # least share of an evaluation answer's runs of `INSIDE_WORDS` words that a training answer has


class Overlap(NamedTuple):
    """Why a record is kept out: the rule, and the evaluation prompt, or answer, that it meets."""

    rule: Literal["exact", "near", "inside", "answer"]
    prompt: str


class LeakageFilter:
    """Finds what would leak evaluation prompts or their answers into training, and counts it."""

    def __init__(self, prompts: tuple[str, ...], answers: tuple[str, ...] = ()) -> None:
        self.prompts: tuple[str, ...] = prompts
        self.answers: tuple[str, ...] = answers
        self.counts: Counter[str] = Counter()
        """Records that `keep` left out: by rule, and those `repeated`."""
        texts = [_normalise(prompt) for prompt in prompts]
        shingles = [_shingles(text) for text in texts]
        self._exact = {text: number for number, text in reversed([*enumerate(texts)])}
        self._sizes = [len(one) for one in shingles]
        self._long = [len(text.split()) >= INSIDE_WORDS for text in texts]
        self._index: defaultdict[str, list[int]] = defaultdict(list)
        for number, one in enumerate(shingles):
            for shingle in one:
                self._index[shingle].append(number)
        self._texts = texts
        self._starts: defaultdict[str, list[int]] = defaultdict(list)
        for number, text in enumerate(texts):
            for start in _runs(text, SHORT_WORDS)[:1]:
                self._starts[start].append(number)
        self._runs = [_runs(_normalise(answer), INSIDE_WORDS) for answer in answers]
        self._copied: defaultdict[str, list[int]] = defaultdict(list)
        for number, runs in enumerate(self._runs):
            for run in runs:
                self._copied[run].append(number)

    def find(self, prompt: str) -> Overlap | None:
        """The evaluation prompt that a prompt leaks, if there is one."""
        text = _normalise(prompt)
        if not text:
            return None
        if (number := self._exact.get(text)) is not None:
            return Overlap("exact", self.prompts[number])
        shingles = _shingles(text)
        shared = Counter(number for shingle in shingles for number in self._index.get(shingle, ()))
        near = {number: n / (len(shingles) + self._sizes[number] - n) for number, n in shared.items()}
        inside = {number: n / self._sizes[number] for number, n in shared.items() if self._long[number]}
        if near and max(near.values()) >= NEAR:
            return Overlap("near", self.prompts[max(near, key=near.__getitem__)])
        if inside and max(inside.values()) >= INSIDE:
            return Overlap("inside", self.prompts[max(inside, key=inside.__getitem__)])
        quoted = self._quoted(text)
        return None if quoted is None else Overlap("inside", self.prompts[quoted])

    def find_in_answer(self, answer: str) -> Overlap | None:
        """The evaluation prompt that an answer quotes, or the evaluation answer that it copies."""
        text = _normalise(answer)
        if (quoted := self._quoted(text)) is not None:
            return Overlap("answer", self.prompts[quoted])
        runs = _runs(text, INSIDE_WORDS) if self._copied else []
        shared = Counter(number for run in runs for number in self._copied.get(run, ()))
        copied = (number for number, n in shared.items() if n >= COPIED * len(self._runs[number]))
        return next((Overlap("answer", self.answers[number]) for number in copied), None)

    def _quoted(self, text: str) -> int | None:
        """The first evaluation prompt that stands in a text, word for word."""
        candidates = (n for start in _runs(text, SHORT_WORDS) for n in self._starts.get(start, ()))
        return next((number for number in candidates if f" {self._texts[number]} " in f" {text} "), None)

    def keep(self, records: Iterable[Record]) -> Iterator[Record]:
        """The records that leak nothing and repeat no earlier one; the others are added to `counts`.

        Every message of a record is compared, and its answer.
        """
        seen: set[str] = set()
        for record in records:
            if record.id in seen:
                self.counts["repeated"] += 1
                continue
            seen.add(record.id)
            answer: Message = {"role": "assistant", "content": record.document.text}
            found = next(filter(None, map(self._find_in, (*record.messages, answer))), None)
            if found is None:
                yield record
            else:
                self.counts[found.rule] += 1

    def _find_in(self, message: Message) -> Overlap | None:
        find = self.find_in_answer if message["role"] == "assistant" else self.find
        return find(message["content"])


def _runs(text: str, length: int) -> list[str]:
    """Every different run of so many words, in order."""
    words = text.split()
    return [*dict.fromkeys(" ".join(words[i : i + length]) for i in range(len(words) - length + 1))]


def _normalise(prompt: str) -> str:
    """A prompt by its letters and digits alone, in one case, with single spaces."""
    folded = unicodedata.normalize("NFKC", prompt).casefold()
    return " ".join(re.findall(r"[^\W_]+", folded))


def _shingles(text: str) -> set[str]:
    padded = f" {text} "  # so that where words begin and end counts, at the ends too
    return {padded[start : start + SHINGLE] for start in range(max(1, len(padded) - SHINGLE + 1))}


# --- reading

ALIASES = {"slimorca": "Open-Orca/SlimOrca"}
"""Short names of data sets on the hub."""

_HUB_NAME = re.compile(r"(?!.*\.(jsonl?|txt|csv|parquet)$)[\w-][\w.-]*(/[\w-][\w.-]*)?")
_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "prompter": "user"}
_PROMPTS = ("instruction", "prompt", "question")
_ANSWERS = ("output", "response", "answer", "completion")


class PartSettings(StrictModel):
    """Which part of something to take: fields of several commands."""

    skip: int = Field(default=0, ge=0, description="leave out the first so many")
    limit: int | None = Field(default=None, ge=1, description="take no more than so many of those behind")

    def part(self, items: Iterable[M]) -> Iterator[M]:
        """The part of some items."""
        return islice(items, self.skip, None if self.limit is None else self.skip + self.limit)


class SourceSettings(PartSettings):
    """What to read. Every field is a flag of the command line."""

    data: str = Field(description="a file of prompts and answers, the folder of a data set, or its name")
    split: str = Field(default="train", description="split of a data set")
    prompts: Path | None = Field(
        default=None, description="file with the prompts of rows that hold answers alone, in the same order"
    )
    against: tuple[Path, ...] = Field(
        default=(), description="files of evaluation prompts, and answers, to keep out of the data"
    )

    def read(self) -> tuple[Iterator[Record], LeakageFilter]:
        """The records that leak no evaluation prompt, and the filter that counts the others.

        Raises:
            InvalidRequestError: The data or the evaluation prompts cannot be read.
        """
        rows = [row for path in self.against for row in _read_exchanges(path)]
        answers = tuple(filter(None, (answer for _, answer in rows)))
        leaks = LeakageFilter(tuple(prompt for prompt, _ in rows), answers)
        return leaks.keep(self.part(read_source(self.data, split=self.split, prompts=self.prompts))), leaks


def read_source(
    data: str | Path, *, split: str = "train", prompts: str | Path | None = None
) -> Iterator[Record]:
    """Read prompts with their answers, one at a time.

    A row is a `Record`, or is mapped to one by its fields:

    - `messages` of role and content, or `conversations` of from and value (SlimOrca): everything before the
      last answer is the prompt;
    - `instruction` with an optional `input` (Alpaca), `prompt` or `question`; with `output`, `response`,
      `answer` or `completion`, and an optional `system`.

    Its id is `id` if it has one, otherwise made of its content.

    Args:
        data: A file (`.jsonl`, `.json` with a list, `.csv`, `.parquet`), a folder that `datasets` saved or
            can load, or the name of a data set on the hub, which is streamed (or a short one: `ALIASES`).
        split: Of a data set.
        prompts: A file with the prompts of rows that hold answers alone, in the same order.

    Raises:
        InvalidRequestError: The data cannot be read, or a row cannot be mapped; with its place.
    """
    questions = None if prompts is None else read_prompts(prompts)
    for number, (place, row) in enumerate(_rows(str(data), split)):
        if questions is not None:
            if number >= len(questions):
                raise InvalidRequestError(f"{prompts} has {len(questions)} prompts, {data} has more answers")
            row = {**row, "instruction": questions[number]}
        yield _record(row, place, Path(data).name)


def read_prompts(path: str | Path) -> list[str]:
    """The prompts of a file, such as AlpacaEval's: what the user said last in each row.

    Raises:
        InvalidRequestError: The file cannot be read, or a row has no prompt.
    """
    return [prompt for prompt, _ in _read_exchanges(path)]


def _read_exchanges(path: str | Path) -> list[tuple[str, str | None]]:
    """The prompts of a file, each with its answer where it has one."""
    if not Path(path).is_file():
        raise InvalidRequestError(f"{path}: there is no such file")
    rows = (_exchange(row, place) for place, row in _rows(str(path), "train"))
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
    messages = [_turn(turn) for turn in cast("list[Any]", turns)] if isinstance(turns, list) else []
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
        said = {"system": str(row.get("system") or ""), "user": content}
        messages = [{"role": role, "content": text} for role, text in said.items() if text]
    return messages, next(iter(answers), None)


def _missing(wanted: str, row: Mapping[str, Any], place: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{place}: no {wanted} in the fields {', '.join(row) or '(none)'}; "
        f"known are messages, conversations, {', '.join((*_PROMPTS, *_ANSWERS))}"
    )


def _turn(turn: Any) -> Message:
    fields = cast("dict[str, Any]", turn) if isinstance(turn, dict) else {}
    role = str(fields.get("role", fields.get("from", "")))
    return {"role": _ROLES.get(role, role), "content": str(fields.get("content", fields.get("value", "")))}


def _rows(data: str, split: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rows of a source, each with its place for error messages.

    JSON files are not for `datasets`: it wants one schema for all rows, and has no line numbers.
    """
    path, name = Path(data), ALIASES.get(data, data)
    if path.is_file() and path.suffix not in (".csv", ".parquet"):
        yield from ((f"{path}:{number}", row) for number, row in read_lines(path, dict[str, Any]))
        return
    if not (path.exists() or _HUB_NAME.fullmatch(data)):
        raise InvalidRequestError(f"{data}: there is no such file or folder, and a data set has no such name")
    try:
        for number, row in enumerate(_dataset(name, split), 1):
            yield f"{data}, row {number}", row
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if path.exists():
            raise InvalidRequestError(f"{data} is no data set with a split {split!r}: {reason}") from error
        raise InvalidRequestError(
            f"the data set {name} cannot be loaded: {reason}. If the hub is out of reach, download it "
            "where it is not, and name the folder, or a file with its rows as JSON lines"
        ) from error


def _dataset(name: str, split: str) -> Iterable[Mapping[str, Any]]:
    """A data set by the `datasets` library: a file, a folder, or a name on the hub (which is streamed)."""
    try:
        import datasets  # pyright: ignore[reportMissingTypeStubs] - late, since it takes seconds
    except ModuleNotFoundError:
        raise InvalidRequestError(
            f"{name} is read by the library `datasets`: pip install 'pasta_async[train]'"
        ) from None
    path, library = Path(name), cast("Any", datasets)  # it leaves its types open
    if path.is_file():
        return library.load_dataset(path.suffix[1:], data_files=name, split="train", streaming=True)
    if any((path / file).is_file() for file in ("dataset_dict.json", "state.json")):
        saved: Any = library.load_from_disk(name)
        return saved[split] if hasattr(saved, "keys") else saved
    return library.load_dataset(name, split=split, streaming=True)


class CorpusSettings(SourceSettings):
    """What to read, and where to write. Every field is a flag of the command line."""

    out: Path = Field(description="file to write, JSON lines")


def convert(settings: CorpusSettings) -> None:
    """Read, filter, write the file, and print the counts.

    Raises:
        InvalidRequestError: The data or the evaluation prompts cannot be read.
    """
    records, leaks = settings.read()
    written = write_records(settings.out, records)
    print(f"{written} records in {settings.out}; left out: {dict(leaks.counts)}")


main: Command = command(CorpusSettings, convert, "pasta_async.training.corpus", __doc__)

if __name__ == "__main__":
    main()
