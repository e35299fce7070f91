"""Evaluate a model on held-out prompts: `python -m pasta_async.training.evaluate local:MODEL`.

Greedy answers through the public client, both forms, every family; unseen names and unseen templates apart.
Prints a table in Markdown.
"""

# scipy has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field
from scipy.stats import binomtest

from pasta_async import Client, Sampling
from pasta_async.backends import WrappingBackend
from pasta_async.cli.command import run_command
from pasta_async.jobs import for_each, progress
from pasta_async.training.packing import without_chunks
from pasta_async.training.synthetic import FAMILIES, sample, score

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from pasta_async.protocol import DecodeRequest, Piece
    from pasta_async.results import Generation
    from pasta_async.training.synthetic import Example, Split

__all__ = ["EvaluateSettings", "Form", "HiddenChunks", "Row", "evaluate", "main", "table", "wilson"]

Form = Literal["parallel", "baseline", "chunks hidden", "chain in parallel"]

_SAMPLING = Sampling(max_tokens=1024)
_TOGETHER = 64
"""Answers at the same time."""


class EvaluateSettings(BaseModel):
    """What to evaluate. Every field is an option of the command line."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    backend: str = Field(default="local:", description="what answers, as for pasta_async.generate")
    prompts: int = Field(default=500, ge=1, description="of each family, split and form")
    splits: tuple[Literal["names", "templates"], ...] = Field(
        default=("names", "templates"), description="what is held out"
    )
    families: tuple[str, ...] = Field(default=FAMILIES, description="of the synthetic task")
    json_file: Path | None = Field(default=None, description="write the figures here, for training.card")
    show_wrong: int = Field(default=0, ge=0, description="print so many wrong answers of each row")


@dataclass(frozen=True, slots=True)
class Row:
    """Results of one form on one family and split."""

    family: str
    split: Split
    form: Form
    prompts: int
    right: int
    well_formed: int
    critical: int
    """Tokens on the critical path, summed."""
    generated: int
    """Tokens generated, summed."""
    promises: int


class HiddenChunks(WrappingBackend):
    """An ablation: main goes on behind a sync without seeing what the chunks say."""

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        """As the inner backend, main's context without its chunks. Cancelling it ends the inner request."""
        tags = (await self.connect()).tags
        if request.thread == 0 and tags is not None:
            ids = without_chunks(request.ids, tags.open_async, tags.close_async)
            request = replace(request, ids=ids)
        async with aclosing(self.inner.decode(request)) as pieces:
            async for piece in pieces:
                yield piece


async def evaluate(
    client: Client, family: str, split: Split, form: Form, count: int, first_seed: int = 0
) -> tuple[Row, list[tuple[Example, str]]]:
    """Answer `count` prompts of one family in one form.

    Returns:
        The figures, and the examples that were answered wrongly with their answers.

    Raises what `Client.generate` raises. Cancelling it cancels the answers under way.
    """
    if form == "chunks hidden":
        client = Client(HiddenChunks(client.backend), limits=client.limits)
    examples = [sample(family, first_seed + number, split) for number in range(count)]
    answers: dict[int, Generation] = {}

    async def answer(number: int) -> None:
        prompt, baseline = examples[number].prompt, form == "baseline"
        answers[number] = await client.generate(prompt, sampling=_SAMPLING, baseline=baseline)

    await for_each(range(count), answer, _TOGETHER)
    found = [answers[number] for number in range(count)]
    pairs = list(zip(examples, (one.text for one in found), strict=True))
    wrong = [(example, text) for example, text in pairs if not score(example, text)]
    formed = sum(one.finish_reason == "stop" and not one.diagnostics for one in found)
    critical = sum(one.critical_path for one in found)
    tokens = sum(one.usage.completion_tokens for one in found)
    promises = sum(len(one.threads) - 1 for one in found)
    row = Row(family, split, form, count, count - len(wrong), formed, critical, tokens, promises)
    return row, wrong


def wilson(right: int, count: int) -> tuple[float, float]:
    """Wilson's 95% interval of a share."""
    low, high = binomtest(right, count).proportion_ci(method="wilson")
    return float(low), float(high)


def table(rows: Sequence[Row]) -> str:
    """The results as a Markdown table."""
    head = "family held_out form prompts right 95%_interval well-formed tokens critical_path".split()
    lines = [f"| {' | '.join(head)} |".replace("_", " "), "|---" * len(head) + "|"]
    for row in rows:
        low, high = wilson(row.right, row.prompts)
        lines.append(
            f"| {row.family} | {row.split} | {row.form} | {row.prompts} | {row.right / row.prompts:.1%} "
            f"| {low:.1%} to {high:.1%} | {row.well_formed / row.prompts:.1%} "
            f"| {row.generated / row.prompts:.1f} | {row.critical / row.prompts:.1f} |"
        )
    return "\n".join(lines)


async def _evaluate_all(settings: EvaluateSettings) -> list[Row]:
    rows: list[Row] = []
    forms: tuple[Form, ...] = ("parallel", "baseline")
    wanted = [*product(settings.families, settings.splits, forms)]
    with progress(len(wanted), "evaluation") as advance:
        async with Client(settings.backend) as client:
            for family, split, form in wanted:
                row, wrong = await evaluate(client, family, split, form, settings.prompts)
                rows.append(row)
                advance()
                for example, text in wrong[: settings.show_wrong]:
                    print(f"PROMPT {example.prompt}\nANSWER {text}\nRIGHT  {example.document.text}\n")
    return rows


def run(settings: EvaluateSettings) -> None:
    """Evaluate, print the table, write the figures.

    Raises:
        PastaError: The model cannot be used.
    """
    rows = asyncio.run(_evaluate_all(settings))
    print(table(rows))
    if settings.json_file:
        settings.json_file.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    run_command(
        EvaluateSettings,
        run,
        program="pasta_async.training.evaluate",
        description=__doc__,
        positional=("backend",),
        arguments=arguments,
    )


if __name__ == "__main__":
    main()
