"""Documents that break the rules, to measure what the rules are worth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pasta_async.lang.views import views
from pasta_async.training.synthetic.records import parallel_chain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.training.synthetic import Example
    from pasta_async.training.tokenizer import Codec

__all__ = ["forced_parallel_mains"]


def forced_parallel_mains(codec: Codec, examples: Sequence[Example]) -> list[list[int]]:
    """What main would write for chains in parallel; the chunks are left to the model."""
    documents = [parallel_chain(example, codec.count) for example in examples]
    return [[*codec.segments(views(document)[0].target), codec.end] for document in documents]
