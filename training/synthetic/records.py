"""The synthetic task as training data: `python -m pasta_async.training.synthetic` writes records of it.

They have right, noisy or no annotations, and lead back to the examples that they were made of.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, cast

from pydantic import Field

from pasta_async.cli.command import Command, CommandSettings, command
from pasta_async.lang import Chunk, Document, Promise
from pasta_async.training.data.corpus import Asked, Record, write_records
from pasta_async.training.synthetic.families import FAMILIES, SOURCE, Example, Family, Split, sample
from pasta_async.training.views import Mark, insert_tags, marks_of, recount, rough_tokens, token_counter

Annotator = Literal["maker", "noisy", "nobody"]
"""Who annotates: the task's maker, who knows what is right; one that errs (`annotate_noisily`); nobody."""


class ErrorRates(NamedTuple):
    """What the noisy annotator does with answers of one layout, as probabilities."""

    annotates: float
    """It annotates an answer at all."""
    misses: float
    """It then overlooks a promise, each on its own."""
    careless: float
    """It takes dependent parts for independent: leaves out a needed sync, promises the steps of a chain."""


ERROR_RATES: dict[str, ErrorRates] = {
    "list": ErrorRates(annotates=0.9, misses=0.1, careless=0.6),
    "paragraphs": ErrorRates(annotates=0.7, misses=0.1, careless=0.4),
    "prose": ErrorRates(annotates=0.4, misses=0.2, careless=0.3),
}
"""Fixed before any model was trained by preferences on it."""


def _record_of(example: Example, annotator: Annotator) -> Record:
    """An example as a record."""
    right = example.document
    documents = {"maker": right, "nobody": insert_tags(right.text, ())}
    document = annotate_noisily(example) if annotator == "noisy" else documents[annotator]
    return Record(
        id=example.id,
        messages=({"role": "user", "content": example.prompt},),
        written=document.format(),
        source=SOURCE,
        annotator="" if annotator == "nobody" else f"{SOURCE}:{annotator}",
    )


def example_of(record: Asked) -> Example:
    """The example that a record was made of, by which a program grades any answer to its prompt.

    Raises:
        ValueError: The record is not of the synthetic task.
    """
    match record.id.split("/"):
        case [source, family, split, seed] if source == SOURCE and seed.isdecimal():
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
        record = _record_of(example, annotator)
        if record.id not in drawn:
            drawn.add(record.id)
            yield record


def annotate_noisily(example: Example) -> Document:
    """The right answer with the tags of an annotator that judges by layout, as real ones tend to.

    It sees parallelism where the answer has the form of a list and misses it in prose, and it often takes
    the parts of a list for independent when they are not. Stage 1 learns that, and stage 2 corrects it.
    The answer's text is never changed; the same example always gets the same tags.
    """
    rng = random.Random(f"looks/{example.family}/{example.split}/{example.seed}")
    document, text = example.document, example.document.text
    rates = ERROR_RATES["list" if "\n- " in text else "paragraphs" if "\n\n" in text else "prose"]
    if rng.random() >= rates.annotates:
        return insert_tags(text, ())
    careless = rng.random() < rates.careless
    if careless and not document.promises:
        document = _parallel_chain(example)
    kept: list[Mark] = []  # main writes the text of a promise that is overlooked
    for mark in marks_of(document):
        if rng.random() >= rates.misses if isinstance(mark.tag, Promise) else kept and not careless:
            kept.append(mark)
    return insert_tags(text, kept)


def _parallel_chain(example: Example) -> Document:
    """A chain written as if its steps were independent: each step, and the result, is a promise."""
    text = example.document.text
    _, *steps = re.finditer(r"\W*([^.]+\.)", text)
    topics = [*example.names[: len(steps) - 1], "result"]
    promises = [Promise(topic, None, Chunk()) for topic in topics]
    marks = [Mark(*step.span(1), tag) for step, tag in zip(steps, promises, strict=True)]
    return recount(insert_tags(text, marks), rough_tokens)


class SyntheticSettings(CommandSettings):
    """What to draw."""

    out: Path = Field(description="file to write, JSON lines")
    count: int = Field(default=1000, ge=1, description="how many examples")
    seed: int = Field(default=0, description="another seed draws others")
    split: Split = Field(default="train", description="train, names or templates: which are held out")
    families: tuple[Family, ...] = Field(default=FAMILIES, description="kinds of prompts")
    annotator: Annotator = Field(
        default="maker", description="maker: the right tags; noisy: some wrong; nobody: no tags"
    )
    tokenizer: Path | None = Field(
        default=None, description="model folder whose tokenizer counts the estimates (default: a rough count)"
    )


def export(settings: SyntheticSettings) -> None:
    """Draw records, write the file, and print how many there are."""
    count = None if settings.tokenizer is None else token_counter(settings.tokenizer)
    records = draw_records(
        settings.count, settings.seed, settings.split, settings.families, count, settings.annotator
    )
    print(f"{write_records(settings.out, records)} records in {settings.out}")


main: Command = command(SyntheticSettings, export, "pasta_async.training.synthetic", __doc__)
