"""The synthetic task in the format of all training data, and back."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, cast

from pasta_async.training.corpus import Record
from pasta_async.training.synthetic import FAMILIES, sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pasta_async.training.synthetic import Example, Split

__all__ = ["draw_records", "example_of", "record_of"]

SOURCE = "synthetic"


def record_of(example: Example) -> Record:
    """An example as a record, annotated as its maker knows to be right."""
    return Record(
        id=f"{SOURCE}/{example.family}/{example.split}/{example.seed}",
        messages=({"role": "user", "content": example.prompt},),
        written=example.document.format(),
        source=SOURCE,
        annotator=SOURCE,
    )


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
) -> Iterator[Record]:
    """Draw records, all different; the same arguments always give the same ones."""
    rng = random.Random(f"{split}/{seed}")
    drawn: set[str] = set()
    while len(drawn) < count:
        record = record_of(sample(rng.choice(families), rng.getrandbits(40), split, count_tokens))
        if record.id not in drawn:
            drawn.add(record.id)
            yield record
