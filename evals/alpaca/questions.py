"""The prompts of AlpacaEval and the difficulties of its length-controlled model, from files, safely joined.

AlpacaEval joins the difficulties to the prompts by position, and says nothing when the order is another one.
Here a join that cannot be checked is refused.
"""

from __future__ import annotations

import csv
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pasta_async.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["OFFICIAL", "Question", "fingerprint", "read_difficulty", "read_questions"]

OFFICIAL = "bfe8c45991f635de0b1f94abeeb1335ef665d58eddd87ddf6fa71b7b0c2ce7a5"
"""The `fingerprint` of AlpacaEval's 805 prompts in the official order."""


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt."""

    instruction: str
    dataset: str
    """The source it comes from."""


def fingerprint(questions: Sequence[Question]) -> str:
    """SHA-256 of the instructions in their order."""
    return hashlib.sha256("\0".join(question.instruction for question in questions).encode()).hexdigest()


def read_questions(path: Path | str) -> list[Question]:
    """Prompts from JSON lines, or a JSON list, of objects with `instruction` and perhaps `dataset`.

    Raises:
        InvalidRequest: There is none, one has no instruction, or one stands there twice.
    """
    questions = [_question(path, number, row) for number, row in enumerate(_objects(Path(path)), 1)]
    if not questions:
        raise InvalidRequest(f"{path} holds no prompt")
    seen = dict[str, int]()
    for number, question in enumerate(questions, 1):
        if seen.setdefault(question.instruction, number) != number:
            raise InvalidRequest(
                f"{path}: prompt {number} is the same as prompt {seen[question.instruction]}; "
                "AlpacaEval tells prompts apart by their text"
            )
    return questions


def read_difficulty(path: Path | str, questions: Sequence[Question]) -> list[float]:
    """The difficulty of each prompt, from a CSV file with `instruction_difficulty` in the prompts' order.

    The rows must be known to be those of the prompts: by a column `instruction` that says so, or, without
    one, by the prompts being the official 805 in the official order.

    Raises:
        InvalidRequest: That is not known, or not so; or a value is no number.
    """
    with Path(path).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows or "instruction_difficulty" not in rows[0]:
        raise InvalidRequest(f"{path} needs a column `instruction_difficulty`")
    if len(rows) != len(questions):
        raise InvalidRequest(f"{path} has {len(rows)} rows for {len(questions)} prompts")
    _check_join(path, rows, questions)
    return [_number(path, number, row["instruction_difficulty"]) for number, row in enumerate(rows, 1)]


def _check_join(path: Path | str, rows: Sequence[dict[str, str]], questions: Sequence[Question]) -> None:
    for number, (row, question) in enumerate(zip(rows, questions, strict=True)):
        if row.get("index", str(number)) != str(number):
            raise InvalidRequest(f"{path}: row {number + 1} has index {row['index']}; they count from 0")
        if row.get("instruction", question.instruction) != question.instruction:
            raise InvalidRequest(f"{path}: row {number + 1} is of another prompt: {row['instruction']!r}")
    if "instruction" not in rows[0] and fingerprint(questions) != OFFICIAL:
        raise InvalidRequest(
            f"{path} goes by position, and the prompts are not AlpacaEval's 805 in the official order: give "
            "it a column `instruction`, or leave it out to have lengths controlled without difficulties"
        )


def _objects(path: Path) -> list[Any]:
    try:
        text = path.read_text(encoding="utf-8")
        if text.lstrip().startswith("["):
            return cast("list[Any]", json.loads(text))
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except FileNotFoundError:
        raise InvalidRequest(f"there is no file {path}") from None
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"{path} is neither JSON lines nor a JSON list: {error}") from error


def _question(path: Path | str, number: int, row: Any) -> Question:
    match row:
        case {"instruction": str(instruction)} if instruction.strip():
            return Question(instruction, str(row.get("dataset", "")))
        case _:
            raise InvalidRequest(f"{path}: prompt {number} has no `instruction`")


def _number(path: Path | str, number: int, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise InvalidRequest(f"{path}: row {number} has the difficulty {value!r}, no number") from None
