"""Readers of instruction data: JSON files, and everything else by the `datasets` library."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import Field, ValidationError

from pasta_async.errors import InvalidRequestError
from pasta_async.training.corpus.leakage import LeakageFilter
from pasta_async.training.corpus.records import Record, StrictModel, explain, plain_record, read_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pasta_async.protocol import Message

__all__ = ["ALIASES", "SourceSettings", "read_prompts", "read_source"]

ALIASES = {"slimorca": "Open-Orca/SlimOrca"}
"""Short names of data sets on the hub."""

_HUB_NAME = re.compile(r"(?!.*\.(jsonl?|txt|csv|parquet)$)[\w-][\w.-]*(/[\w-][\w.-]*)?")
_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "prompter": "user"}
_PROMPTS = ("instruction", "prompt", "question")
_ANSWERS = ("output", "response", "answer", "completion")


class SourceSettings(StrictModel):
    """What to read. Every field is a flag of the command line."""

    data: str = Field(description="a file of prompts and answers, the folder of a data set, or its name")
    split: str = Field(default="train", description="split of a data set")
    limit: int | None = Field(default=None, ge=1, description="read no more rows than this")
    prompts: Path | None = Field(
        default=None, description="file with the prompts of rows that hold answers alone, in the same order"
    )
    against: tuple[Path, ...] = Field(
        default=(), description="files of evaluation prompts to keep out of the data"
    )

    def read(self) -> tuple[Iterator[Record], LeakageFilter]:
        """The records that leak no evaluation prompt, and the filter that counts the others.

        Raises:
            InvalidRequestError: The data or the evaluation prompts cannot be read.
        """
        leaks = LeakageFilter(tuple(prompt for path in self.against for prompt in read_prompts(path)))
        records = read_source(self.data, split=self.split, limit=self.limit, prompts=self.prompts)
        return leaks.keep(records), leaks


def read_source(
    data: str | Path, *, split: str = "train", limit: int | None = None, prompts: str | Path | None = None
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
        limit: Rows to read at most.
        prompts: A file with the prompts of rows that hold answers alone, in the same order.

    Raises:
        InvalidRequestError: The data cannot be read, or a row cannot be mapped; with its place.
    """
    questions = None if prompts is None else read_prompts(prompts)
    for number, (place, row) in enumerate(islice(_rows(str(data), split), limit)):
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
    if not Path(path).is_file():
        raise InvalidRequestError(f"{path}: there is no such file")
    found = [_exchange(row, place)[0][-1]["content"] for place, row in _rows(str(path), "train")]
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
