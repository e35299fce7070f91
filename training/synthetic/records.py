"""The synthetic task in the format of all training data, and back."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Literal, cast

from pasta_async.lang.document import Document, Text
from pasta_async.training.corpus import Record
from pasta_async.training.synthetic import FAMILIES, sample
from pasta_async.training.synthetic.noise import annotated_by_looks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pasta_async.training.synthetic import Example, Split

__all__ = ["Annotator", "draw_records", "example_of", "record_of"]

SOURCE = "synthetic"
Annotator = Literal["maker", "looks", "nobody"]
"""Who puts in the tags: the task's maker, who knows what is right; one that goes by looks; nobody."""


def record_of(example: Example, annotator: Annotator = "maker") -> Record:
    """An example as a record."""
    return Record(
        id=f"{SOURCE}/{example.family}/{example.split}/{example.seed}",
        messages=({"role": "user", "content": example.prompt},),
        written=_annotated(example, annotator).format(),
        source=SOURCE,
        annotator="" if annotator == "nobody" else f"{SOURCE}:{annotator}",
    )


def _annotated(example: Example, annotator: Annotator) -> Document:
    match annotator:
        case "maker":
            return example.document
        case "looks":
            return annotated_by_looks(example)
        case "nobody":
            return Document((Text(example.document.text),))


def example_of(record: Record) -> Example:
    """The example that a record was made of, by which a program judges any answer to its prompt.

    Raises:
        ValueError: The record is not of the synthetic task.
    """
    match record.id.split("/"):
        case [_, family, split, seed] if record.id.startswith(f"{SOURCE}/") and seed.isdecimal():
            return sample(family, int(seed), cast("Split", split))
        case _:
            raise ValueError(f"{record.id!r} is no record of the synthetic task")


def draw_records(
    count: int,
    seed: int,
    split: Split = "train",
    families: Sequence[str] = FAMILIES,
    count_tokens: Callable[[str], int] | None = None,
    annotator: Annotator = "maker",
) -> Iterator[Record]:
    """Draw records, all different; the same arguments always give the same ones, however annotated."""
    rng = random.Random(f"{split}/{seed}")
    drawn: set[str] = set()
    while len(drawn) < count:
        example = sample(rng.choice(families), rng.getrandbits(40), split, count_tokens)
        record = record_of(example, annotator)
        if record.id not in drawn:
            drawn.add(record.id)
            yield record
