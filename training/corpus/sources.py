"""Readers of instruction data: local files, and the `datasets` library."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from pasta_async.errors import InvalidRequestError
from pasta_async.training.corpus.record import Record, plain_record
from pasta_async.training.corpus.store import explain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pasta_async.protocol import Message

__all__ = ["ALIASES", "read_prompts", "read_source"]

ALIASES = {"slimorca": "Open-Orca/SlimOrca"}
"""Short names of data sets on the hub."""

_HUB_NAME = re.compile(r"(?!.*\.(jsonl?|txt|csv|parquet)$)[\w-][\w.-]*(/[\w-][\w.-]*)?")
_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "prompter": "user"}
_PROMPTS = ("instruction", "prompt", "question")
_ANSWERS = ("output", "response", "answer", "completion")


def read_source(
    data: str | Path, *, split: str = "train", limit: int | None = None, prompts: str | Path | None = None
) -> Iterator[Record]:
    """Read prompts with their answers.

    A row is a `Record`, or is mapped to one by its fields:

    - `messages` of role and content, or `conversations` of from and value (SlimOrca): everything before the
      last answer is the prompt;
    - `instruction` with an optional `input` (Alpaca), `prompt` or `question`; with `output`, `response`,
      `answer` or `completion`, and an optional `system`.

    Its id is `id` if it has one, otherwise made of its content.

    Args:
        data: A file (`.jsonl`, or `.json` with a list), a folder that `datasets` saved or can load, or the
            name of a data set on the hub; `slimorca` is one of `ALIASES`.
        split: Of a data set.
        limit: Read no more rows than this.
        prompts: A file with the prompts of rows that hold answers alone, in the same order.

    Raises:
        InvalidRequestError: The data cannot be read, or a row cannot be mapped; with its place.
    """
    asked = None if prompts is None else read_prompts(prompts)
    for number, (place, row) in enumerate(_rows(str(data), split)):
        if limit is not None and number >= limit:
            return
        if asked is not None:
            if number >= len(asked):
                raise InvalidRequestError(f"{prompts} has {len(asked)} prompts, {data} has more answers")
            row = {**row, "instruction": asked[number]}
        yield _record(row, place, Path(data).name)


def read_prompts(path: str | Path) -> list[str]:
    """The prompts of a file, such as AlpacaEval's: what the user said last in each row.

    Raises:
        InvalidRequestError: The file cannot be read, or a row has no prompt.
    """
    found = [_messages(row, place)[-1]["content"] for place, row in _file_rows(Path(path))]
    if not found:
        raise InvalidRequestError(f"{path} holds no prompt")
    return found


def _record(row: Mapping[str, Any], place: str, source: str) -> Record:
    try:
        if "written" in row:
            return Record.model_validate(row)
        messages, answer = _messages(row, place), _answer(row, place)
        row_id = "" if row.get("id") is None else str(row["id"])
        return plain_record(messages, answer, source=source, id=row_id)
    except ValidationError as error:
        raise InvalidRequestError(f"{place}: {explain(error)}") from None


def _messages(row: Mapping[str, Any], place: str) -> list[Message]:
    turns = _turns(row)
    if turns is not None:
        while turns and turns[-1]["role"] == "assistant":
            turns.pop()
        if turns:
            return turns
    for name in _PROMPTS:
        if isinstance(row.get(name), str) and row[name].strip():
            return _alpaca(row, name)
    raise InvalidRequestError(
        f"{place}: no prompt in the fields {', '.join(row) or '(none)'}; known are messages, conversations, "
        + ", ".join(_PROMPTS)
    )


def _alpaca(row: Mapping[str, Any], name: str) -> list[Message]:
    asked = "\n\n".join(part for part in (row[name], row.get("input") or "") if part)
    system = str(row.get("system") or "")
    opening = [{"role": "system", "content": system}] if system else []
    return [*opening, {"role": "user", "content": asked}]


def _answer(row: Mapping[str, Any], place: str) -> str:
    turns = _turns(row)
    if turns is not None and turns and turns[-1]["role"] == "assistant":
        return turns[-1]["content"]
    for name in _ANSWERS:
        if isinstance(row.get(name), str):
            return row[name]
    raise InvalidRequestError(
        f"{place}: no answer in the fields {', '.join(row)}; known are messages, conversations, "
        + ", ".join(_ANSWERS)
    )


def _turns(row: Mapping[str, Any]) -> list[Message] | None:
    """The turns of a chat, in either form; None if the row has another form."""
    turns = row.get("messages") or row.get("conversations")
    if not isinstance(turns, list):
        return None
    return [_turn(turn) for turn in cast("list[Any]", turns)]


def _turn(turn: Any) -> Message:
    said = cast("dict[str, Any]", turn) if isinstance(turn, dict) else {}
    role = str(said.get("role", said.get("from", "")))
    return {"role": _ROLES.get(role, role), "content": str(said.get("content", said.get("value", "")))}


def _rows(data: str, split: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if Path(data).is_file():
        yield from _file_rows(Path(data))
        return
    if not (Path(data).is_dir() or _HUB_NAME.fullmatch(data)):
        raise InvalidRequestError(f"{data}: there is no such file or folder, and a data set has no such name")
    for number, row in enumerate(_dataset(ALIASES.get(data, data), split)):
        yield f"{data}, row {number}", row


def _file_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rows of a file, with their places."""
    try:
        with path.open(encoding="utf-8") as file:
            if path.suffix == ".json":
                numbered = list(enumerate(cast("list[Any]", json.load(file)), 1))
                places = [(f"{path}, row {number}", row) for number, row in numbered]
            else:
                lines = ((number, line) for number, line in enumerate(file, 1) if line.strip())
                places = ((f"{path}:{number}", json.loads(line)) for number, line in lines)
            for place, row in places:
                if not isinstance(row, dict):
                    raise InvalidRequestError(f"{place}: a row is an object, not {type(row).__name__}")
                yield place, cast("dict[str, Any]", row)
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidRequestError):
            raise
        raise InvalidRequestError(f"{path} cannot be read as JSON: {error}") from error


def _dataset(name: str, split: str) -> Iterable[Mapping[str, Any]]:
    """A data set by the `datasets` library: a folder, or a name on the hub."""
    try:
        import datasets  # pyright: ignore[reportMissingTypeStubs] - late, since it takes seconds
    except ModuleNotFoundError:
        raise InvalidRequestError(
            f"{name} is no file, and to look it up as a data set needs the library `datasets`: "
            "pip install 'pasta_async[train]'"
        ) from None
    folder, library = Path(name), cast("Any", datasets)  # it leaves its types open
    try:
        if (folder / "dataset_dict.json").is_file():
            return library.load_from_disk(name)[split]
        if (folder / "state.json").is_file():
            return library.load_from_disk(name)
        return library.load_dataset(name, split=split)
    except (OSError, ValueError, KeyError) as error:
        raise InvalidRequestError(_unreachable(name, split, error)) from error


def _unreachable(name: str, split: str, error: Exception) -> str:
    said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if Path(name).exists():
        return f"{name} is no data set with a split {split!r}: {said}"
    return (
        f"the data set {name} cannot be loaded: {said}. If the hub is out of reach, download it "
        "where it is not, and name the folder, or a file with its rows as JSON lines"
    )
