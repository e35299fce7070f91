"""Prompts to measure with: held-out ones of the synthetic task, or a file's."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pasta_async.errors import InvalidRequestError
from pasta_async.training.synthetic import Example, sample, score

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pasta_async.training.synthetic import Split

__all__ = ["Prompt", "digest", "held_out", "read_prompts"]

_SPLITS: tuple[Split, ...] = ("names", "templates")


@dataclass(frozen=True)
class Prompt:
    """One prompt, and how its answer is judged if it is one of the synthetic task."""

    text: str
    family: str
    example: Example | None = None

    def right(self, answer: str) -> bool | None:
        """Whether an answer is right; None where nobody knows."""
        return None if self.example is None else score(self.example, answer)


def held_out(families: Sequence[str], count: int, *, first_seed: int = 0) -> list[Prompt]:
    """So many prompts of each family, unseen names and unseen templates in turn, the families mixed."""
    return [
        Prompt(example.prompt, family, example)
        for k in range(count)
        for family in families
        for example in [sample(family, first_seed + k // 2, _SPLITS[k % 2])]
    ]


def read_prompts(path: Path | str) -> list[Prompt]:
    """The prompts of a text file, one in each line that is not empty.

    A file named .jsonl holds objects with an `instruction`, and a `dataset` that figures are grouped by; one
    named .json a list of such objects (AlpacaEval's forms).

    Raises:
        InvalidRequestError: There is none, or the file cannot be read.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if path.suffix in (".json", ".jsonl"):
            rows = json.loads(text) if path.suffix == ".json" else map(json.loads, lines)
            prompts = [Prompt(str(row["instruction"]), str(row.get("dataset", "file"))) for row in rows]
        else:
            prompts = [Prompt(line, "file") for line in lines]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InvalidRequestError(f"{path} cannot be read as prompts: {error!r}") from error
    if not prompts:
        raise InvalidRequestError(f"{path} holds no prompt: write one in each line")
    return prompts


def digest(texts: Iterable[str]) -> str:
    """24 hexadecimal digits that stand for some texts and their order."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:24]
