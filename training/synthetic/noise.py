"""An annotator that goes by looks, as real ones do: what stage 1 learns from, and stage 2 has to put right.

It sees parallelism where the answer has the form of a list and misses it in prose; and where it sees a list,
it often takes its parts for independent when they are not. The text of an answer is never changed.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from pasta_async.lang.document import Chunk, Document, Promise, Sync, Text
from pasta_async.training.corpus.tokens import in_tens, rough_tokens
from pasta_async.training.synthetic.writing import merge_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from pasta_async.lang.document import Node
    from pasta_async.training.synthetic.writing import Example

__all__ = ["HABITS", "Habit", "annotated_by_looks", "parallel_chain"]

Look = Literal["list", "paragraphs", "prose"]


class Habit(NamedTuple):
    """What the annotator does with answers of one look, as probabilities."""

    annotates: float
    """It annotates an answer at all."""
    misses: float
    """It then overlooks a promise, each on its own."""
    careless: float
    """It takes for independent what is not: leaves out a needed sync, promises the steps of a chain."""


HABITS: dict[Look, Habit] = {
    "list": Habit(annotates=0.9, misses=0.1, careless=0.6),
    "paragraphs": Habit(annotates=0.7, misses=0.1, careless=0.4),
    "prose": Habit(annotates=0.4, misses=0.2, careless=0.3),
}
"""Fixed before any model was trained by preferences on it."""


def annotated_by_looks(example: Example) -> Document:
    """The right answer with this annotator's tags; the same example always gets the same ones."""
    rng = random.Random(f"looks/{example.family}/{example.split}/{example.seed}")
    habit = HABITS[_look(example.document.text)]
    if rng.random() >= habit.annotates:
        return Document((Text(example.document.text),))
    careless = rng.random() < habit.careless
    document = example.document
    if careless and not document.promises:
        document = parallel_chain(example, rough_tokens)
    return _blurred(document, rng, habit.misses, syncs=not careless)


def parallel_chain(example: Example, count_tokens: Callable[[str], int]) -> Document:
    """A chain written as if its steps were independent: each step, and the result, is a promise."""
    (_, first), *steps = re.findall(r"(\W*)([^.]+\.)", example.document.text)
    nodes: list[Node] = [Text(first)]
    for number, (space, step) in enumerate(steps, start=1):
        topic = "result" if number == len(steps) else example.names[number - 1]
        nodes += [Text(space), Promise(topic, in_tens(count_tokens(step)), Chunk((Text(step),)))]
    return Document(tuple(nodes))


def _look(text: str) -> Look:
    return "list" if "\n- " in text else "paragraphs" if "\n\n" in text else "prose"


def _blurred(document: Document, rng: random.Random, misses: float, *, syncs: bool) -> Document:
    """A document without some of its promises (main writes their text), and with or without its syncs."""
    nodes: list[Node] = []
    for node in document.nodes:
        if isinstance(node, Promise) and rng.random() < misses:
            nodes += node.chunk.nodes if node.chunk else ()
        elif not isinstance(node, Sync) or (syncs and any(isinstance(n, Promise) for n in nodes)):
            nodes.append(node)
    return replace(document, nodes=merge_text(nodes))
