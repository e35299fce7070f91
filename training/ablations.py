"""Documents that break the rules, to measure what the rules are worth."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pasta_async.lang.document import Chunk, Document, Promise, Text
from pasta_async.lang.views import views

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pasta_async.lang.document import Node
    from pasta_async.training.synthetic import Example
    from pasta_async.training.tokenizer import Codec

__all__ = ["forced_parallel_mains", "parallel_chain"]


def parallel_chain(example: Example, count_tokens: Callable[[str], int]) -> Document:
    """A chain written as if its steps were independent: each step, and the result, is a promise."""
    (_, first), *steps = re.findall(r"(\W*)([^.]+\.)", example.document.text)
    nodes: list[Node] = [Text(first)]
    for number, (space, step) in enumerate(steps, start=1):
        topic = "result" if number == len(steps) else example.names[number - 1]
        estimate = 10 * max(1, -(-count_tokens(step) // 10))
        nodes += [Text(space), Promise(topic, estimate, Chunk((Text(step),)))]
    return Document(tuple(nodes))


def forced_parallel_mains(codec: Codec, examples: Sequence[Example]) -> list[list[int]]:
    """What main would write for chains in parallel; the chunks are left to the model."""
    documents = [parallel_chain(example, codec.count) for example in examples]
    return [[*codec.segments(views(document)[0].target), codec.end] for document in documents]
