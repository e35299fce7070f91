"""The model of the tests: a Llama of 2.0 million parameters that writes PASTA-LANG about made-up facts."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pasta_async.lang import Document, parse
from pasta_async.training.data.corpus import read_records

PASTA_TINY: Path = Path(__file__).parent / "fixtures" / "pasta-tiny"
"""Its folder. Servers call the model by the folder's name, pasta-tiny."""

LOCAL_TINY: str = f"local:{PASTA_TINY}"
"""The embedded engine with this model, as `open_backend` and command lines name it."""

EXAMPLES: Path = PASTA_TINY / "examples.jsonl"
"""Records of prompts like those that the model was trained on, about unseen names, with the right answers."""


class Example(NamedTuple):
    """A prompt that the model can answer."""

    family: str
    """describe: independent descriptions; totals: sub-totals, a sync and the total; offers: prices and a
    comparison; chain: steps that need each other, without a promise; fair: text beside chunks."""
    prompt: str
    document: Document
    """The right answer, annotated."""


def examples(family: str | None = None) -> list[Example]:
    """The examples of a family, or all, in a fixed order: twelve of each family."""
    all_examples = [
        Example(record.id.partition("/")[0], record.prompt, parse(record.written))
        for record in read_records(EXAMPLES)
    ]
    return [example for example in all_examples if family in (None, example.family)]
