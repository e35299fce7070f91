"""Prompts and written documents to measure with."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, Field

from pasta_async.cli.command import CommandSettings, Count
from pasta_async.errors import InvalidRequestError
from pasta_async.lang import Document
from pasta_async.training.data.corpus import read_lines, read_records
from pasta_async.training.identity import weights_of
from pasta_async.training.synthetic import FAMILIES, Example, Split, sample
from pasta_async.training.views import rough_tokens, text_speedup

WARM_UP_SEED = 1_000_000
"""Where the held-out prompts come from that do not count: far from those that do."""

_SPLITS: tuple[Split, ...] = ("names", "templates")

Drawn = Annotated[int | None, Field(ge=1, description="draw so many of them, of every kind and every length")]
"""How many prompts or documents of a file a command takes; None: all. See `stratified`."""
RawFigures = Annotated[
    Path | None, Field(description="raw figures; an interrupted run goes on from what it has")
]


@dataclass(frozen=True)
class Prompt:
    """One prompt, and its example if it is one of the synthetic task."""

    text: str
    family: str
    example: Example | None = None

    @property
    def id(self) -> str:
        """Its name, by which the synthetic task's program knows what is right; else its text."""
        return self.example.id if self.example else self.text

    @property
    def cluster(self) -> str:
        """What it shares with others, so that they go together: an unseen template's frame, or nothing."""
        one = self.example
        return f"{one.family}/{one.frame}" if one and one.split == "templates" else self.id


def held_out(families: Sequence[str], count: int, *, first_seed: int = 0) -> list[Prompt]:
    """So many prompts of each family, unseen names and unseen templates in turn, the families mixed."""
    return [
        Prompt(example.prompt, family, example)
        for k in range(count)
        for family in families
        for example in [sample(family, first_seed + k // 2, _SPLITS[k % 2])]
    ]


class AskedSettings(CommandSettings):
    """Settings of a command that asks held-out prompts of the synthetic task, or those of a file."""

    n: Count = Field(default=20, description="held-out prompts of each family of the synthetic task")
    families: tuple[str, ...] = Field(default=FAMILIES, description="of the synthetic task")
    prompts: Path | None = Field(
        default=None, description="instead of these, a file: a line each, or .jsonl with `instruction`"
    )
    sample: Drawn = None

    def asked(self, first_seed: int = 0) -> list[Prompt]:
        """What is asked: see `held_out` and `read_prompts`."""
        if self.prompts is not None:
            return read_prompts(self.prompts, self.sample)
        return held_out(self.families, self.n, first_seed=first_seed)


def read_prompts(path: Path | str, sample: int | None = None) -> list[Prompt]:
    """The prompts of a text file, one in each line that is not empty, or a `stratified` sample of them.

    A file named .jsonl holds objects with an `instruction` (or `prompt`), and a `dataset` that figures are
    grouped by; one named .json a list of such objects (AlpacaEval's forms, and IFEval's).

    Raises:
        InvalidRequestError: There is none, or the file cannot be read.
    """
    if Path(path).suffix in (".json", ".jsonl"):
        prompts = [Prompt(row.instruction, row.dataset) for _, row in read_lines(path, _Question)]
    else:
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise InvalidRequestError(f"{path} cannot be read: {error}") from error
        prompts = [Prompt(line.strip(), "file") for line in lines if line.strip()]
    if not prompts:
        raise InvalidRequestError(f"{path} holds no prompt: write one in each line")
    places = stratified([(prompt.family, len(prompt.text)) for prompt in prompts], sample)
    return [prompts[place] for place in places]


class _Question(BaseModel):
    instruction: str = Field(validation_alias=AliasChoices("instruction", "prompt"))
    dataset: str = "file"


def stratified(keys: Sequence[tuple[Any, ...]], count: int | None) -> list[int]:
    """Places in `keys`, rising, drawn so that every kind has its share: the same each time.

    In the order of their keys, what matters most first, things are cut into `count` parts of one size, and of
    each part one is drawn; all, if `count` is None or there are no more.
    """
    draw, size = random.Random(0), len(keys)
    if count is None or count >= size:
        return [*range(size)]
    order = sorted(range(size), key=lambda place: keys[place])
    parts = ((k * size // count, (k + 1) * size // count) for k in range(count))
    return sorted(order[draw.randrange(start, end)] for start, end in parts)


def digest(texts: Iterable[str]) -> str:
    """24 hexadecimal digits that stand for some texts and their order."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:24]


def read_documents(path: Path | str, sample: int | None = None) -> dict[str, Document]:
    """Prompts and their written documents, from a file of records (`pasta_async.training.data.corpus.Record`).

    A sample is `stratified` by theoretical speed-up and length.

    Raises:
        InvalidRequestError: The file is unreadable, empty, or holds a prompt twice.
    """
    documents: dict[str, Document] = {}
    for record in read_records(path):
        if record.prompt in documents:
            raise InvalidRequestError(f"{path}: the prompt {record.prompt!r:.80} stands there twice")
        documents[record.prompt] = record.document
    if not documents:
        raise InvalidRequestError(f"{path} holds no record")
    if sample is None:
        return documents
    given = [*documents.items()]
    keys = [(round(4 * text_speedup(one, rough_tokens)), len(one.text)) for _, one in given]
    return dict(given[place] for place in stratified(keys, sample))


class ForcedSettings(CommandSettings):
    """Settings of a command that has given answers written on an engine, timed."""

    documents: Path = Field(description="records (JSON lines) with prompts and written answers")
    sample: Drawn = None
    backend: str = Field(
        description="local:FOLDER, sglang:FOLDER, an SGLang server's URL, or simulated:step=0.01"
    )
    out: RawFigures = None

    async def measured(self, benchmark: str, documents: Mapping[str, Document]) -> dict[str, Any]:
        """What identifies a measurement, in its journal. Raises, and is cancelled, as `weights_of`."""
        parts = (part for prompt, written in documents.items() for part in (prompt, written.format()))
        return {
            "benchmark": benchmark,
            "backend": self.backend,
            "weights": await weights_of(self.backend),
            "documents": digest(parts),
        }
