"""The prompts of AlpacaEval and the difficulties of its length-controlled model, from files, safely joined.

AlpacaEval joins the difficulties to the prompts by position, and says nothing when the order is another one.
Here a join that cannot be checked is refused.
"""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from pasta_async.errors import InvalidRequestError
from pasta_async.evals.documents import read_prompts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.evals.documents import Prompt

__all__ = ["OFFICIAL", "fingerprint", "read_difficulty", "read_questions"]

OFFICIAL = "bfe8c45991f635de0b1f94abeeb1335ef665d58eddd87ddf6fa71b7b0c2ce7a5"
"""The `fingerprint` of AlpacaEval's 805 prompts in the official order."""


def fingerprint(questions: Sequence[Prompt]) -> str:
    """SHA-256 of the instructions in their order."""
    return hashlib.sha256("\0".join(question.text for question in questions).encode()).hexdigest()


def read_questions(path: Path | str) -> list[Prompt]:
    """Prompts from a file of AlpacaEval's form; their families are the sources they come from.

    Raises:
        InvalidRequestError: There is none, one has no instruction, or one stands there twice.
    """
    questions = read_prompts(path)
    seen = dict[str, int]()
    for number, question in enumerate(questions, 1):
        if seen.setdefault(question.text, number) != number:
            raise InvalidRequestError(
                f"{path}: prompt {number} is the same as prompt {seen[question.text]}; "
                "AlpacaEval tells prompts apart by their text"
            )
    return questions


def read_difficulty(path: Path | str, questions: Sequence[Prompt]) -> list[float]:
    """The difficulty of each prompt, from a CSV file with `instruction_difficulty` in the prompts' order.

    The rows must be known to be those of the prompts: by a column `instruction` that says so, or, without
    one, by the prompts being the official 805 in the official order.

    Raises:
        InvalidRequestError: That is not known, or not so; or a value is no number.
    """
    with Path(path).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows or "instruction_difficulty" not in rows[0]:
        raise InvalidRequestError(f"{path} needs a column `instruction_difficulty`")
    if len(rows) != len(questions):
        raise InvalidRequestError(f"{path} has {len(rows)} rows for {len(questions)} prompts")
    _check_join(path, rows, questions)
    return [_number(path, number, row["instruction_difficulty"]) for number, row in enumerate(rows, 1)]


def _check_join(path: Path | str, rows: Sequence[dict[str, str]], questions: Sequence[Prompt]) -> None:
    for number, (row, question) in enumerate(zip(rows, questions, strict=True)):
        if row.get("index", str(number)) != str(number):
            raise InvalidRequestError(f"{path}: row {number + 1} has index {row['index']}; they count from 0")
        if row.get("instruction", question.text) != question.text:
            raise InvalidRequestError(
                f"{path}: row {number + 1} is of another prompt: {row['instruction']!r}"
            )
    if "instruction" not in rows[0] and fingerprint(questions) != OFFICIAL:
        raise InvalidRequestError(
            f"{path} goes by position, and the prompts are not AlpacaEval's 805 in the official order: give "
            "it a column `instruction`, or leave it out to have lengths controlled without difficulties"
        )


def _number(path: Path | str, number: int, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise InvalidRequestError(f"{path}: row {number} has the difficulty {value!r}, no number") from None
