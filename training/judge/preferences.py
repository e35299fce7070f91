"""Preferences between answers: how a file states them, which are used, and how they are split for tests."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from pydantic import BaseModel, Field

from pasta_async.errors import InvalidRequestError
from pasta_async.training.data.corpus import read_lines


class Preference(BaseModel, frozen=True):
    """A line of a preference file: AlpacaEval's form of annotations, whose other fields are ignored."""

    instruction: str = Field(min_length=1)
    output_1: str
    output_2: str
    preference: float | None
    """From 1 (the first answer is better) to 2 (the second is); 1.5, 0 and null say neither."""
    generator_1: str = ""
    generator_2: str = ""
    """The models that wrote the answers; without them unseen models cannot be told apart."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two answers to a prompt, of which one is better."""

    prompt: str
    answers: tuple[str, str]
    models: tuple[str, str]
    first_wins: bool

    @property
    def length(self) -> float:
        """How much longer the first answer is: the logarithm of the ratio of their characters."""
        first, second = map(len, self.answers)
        return math.log((first + 1) / (second + 1))

    def near(self, within: float) -> bool:
        """Whether the shorter answer lacks at most this share of the longer one's characters."""
        shorter, longer = sorted(map(len, self.answers))
        return longer - shorter <= within * longer


def read_comparisons(paths: Iterable[Path | str]) -> tuple[list[Comparison], Counter[str]]:
    """Read preference files (`read_lines`): the comparisons, and counts.

    These are of rows, and of those left out: ties, answers that are the same, or empty.

    Raises:
        InvalidRequestError: A file cannot be read, or a row is something else; with its number.
    """
    found: list[Comparison] = []
    counts: Counter[str] = Counter(rows=0, ties=0, same=0, empty=0)
    for path in paths:
        for number, row in read_lines(path, Preference):
            counts["rows"] += 1
            preference = row.preference or 1.5
            if not 1 <= preference <= 2:
                told = f"a preference is from 1 (the first answer is better) to 2, not {preference:g}"
                raise InvalidRequestError(f"{path}:{number}: {told}")
            answers = (row.output_1, row.output_2)
            if preference == 1.5:
                counts["ties"] += 1
            elif answers[0] == answers[1]:
                counts["same"] += 1
            elif not all(map(str.strip, answers)):
                counts["empty"] += 1
            else:
                models = (row.generator_1, row.generator_2)
                found.append(Comparison(row.instruction, answers, models, preference < 1.5))
    return found, counts


def draw(comparisons: Sequence[Comparison], pairs: int, seed: int) -> list[Comparison]:
    """At most so many comparisons (0: all), as many of each prompt as of the others."""
    order = random.Random(seed).sample(comparisons, len(comparisons))
    taken: Counter[str] = Counter()
    places: list[tuple[int, int]] = []
    for place, one in enumerate(order):
        places.append((taken[one.prompt], place))
        taken[one.prompt] += 1
    return [order[place] for _, place in sorted(places)[: pairs or None]]


class Folds:
    """Splits comparisons so that each is judged by a judge that knows neither its prompt nor its models.

    Prompts and models are dealt to `prompts` and `models` folds (one if there are fewer than two models to
    deal); a block is a fold of prompts and one of models. A model that is in more than half of the
    comparisons (what all others are compared with) is in no fold.

    Raises:
        InvalidRequestError: There are fewer prompts than folds.
    """

    def __init__(self, comparisons: Sequence[Comparison], prompts: int, models: int, seed: int) -> None:
        names = {one.prompt for one in comparisons}
        if len(names) < prompts:
            raise InvalidRequestError(
                f"{len(names)} prompts cannot be dealt to {prompts} folds: bring preferences on more prompts"
            )
        common = Counter(model for one in comparisons for model in {*one.models} if model)
        dealt = [model for model, count in common.items() if 2 * count <= len(comparisons)]
        self.models: int = min(models, len(dealt)) if len(dealt) > 1 else 1
        self.prompts: int = prompts
        prompt_folds, model_folds = _deal(names, prompts, seed), _deal(dealt, self.models, seed)
        self._prompt = [prompt_folds[one.prompt] for one in comparisons]
        self._models = [{model_folds[m] for m in one.models if m in model_folds} for one in comparisons]

    def blocks(self, *, unseen_models: bool = True) -> Iterable[tuple[list[int], list[int]]]:
        """What to train on and what to judge, as indexes.

        With `unseen_models` those of what is judged are unknown, too, rather than the prompts alone; a
        comparison of models of two folds is not judged then.
        """
        places = range(len(self._prompt))
        unseen = range(self.models) if unseen_models and self.models > 1 else [None]
        for prompt, model in product(range(self.prompts), unseen):
            known = [i for i in places if self._prompt[i] != prompt and model not in self._models[i]]
            judged = [i for i in places if self._prompt[i] == prompt]
            if model is not None:
                judged = [i for i in judged if self._models[i] == {model}]
            if known and judged:
                yield known, judged


def _deal(names: Iterable[str], folds: int, seed: int) -> dict[str, int]:
    order = sorted(names)
    random.Random(seed).shuffle(order)
    return {name: place % folds for place, name in enumerate(order)}
