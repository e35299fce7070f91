"""Measure a model of the synthetic task: `python -m pasta_async.training.evaluate local:MODEL`.

Greedy answers through the public client, both forms, every family; unseen names and unseen templates apart.
Prints tables in Markdown, and writes the model's card from them (`recipes/card.md` is its text).
"""

# scipy has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import asyncio
import json
import tempfile
from collections import defaultdict
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field
from scipy.stats import binomtest

from pasta_async import Client, InvalidRequestError, Sampling
from pasta_async.backends import WrappingBackend
from pasta_async.cli.command import run_command
from pasta_async.jobs import for_each, progress
from pasta_async.training.corpus.records import StrictModel
from pasta_async.training.packing import without_chunks
from pasta_async.training.recipe import PACKAGED
from pasta_async.training.synthetic import FAMILIES, sample, score

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from pasta_async.protocol import DecodeRequest, Piece
    from pasta_async.results import Generation
    from pasta_async.training.synthetic import Example, Split

__all__ = ["EvaluateSettings", "Form", "HiddenChunks", "Row", "card", "evaluate", "main", "table", "wilson"]

Form = Literal["parallel", "baseline", "chunks hidden", "chain in parallel"]

_SAMPLING = Sampling(max_tokens=1024)
_TOGETHER = 64
"""Answers at the same time."""

_CHOSEN_FROM = 50
"""Prompts of each family that the recipe compares its models on; they are among those drawn here."""


class EvaluateSettings(StrictModel):
    """What to measure. Every field is an option of the command line."""

    backend: str = Field(default="local:", description="what answers, as for pasta_async.generate")
    prompts: int = Field(default=500, ge=1, description="of each family, split and form")
    splits: tuple[Literal["names", "templates"], ...] = Field(
        default=("names", "templates"), description="what is held out"
    )
    families: tuple[str, ...] = Field(default=FAMILIES, description="of the synthetic task")
    json_file: Path | None = Field(default=None, description="write the figures here")
    show_wrong: int = Field(default=0, ge=0, description="print so many wrong answers of each row")
    card: Path | None = Field(
        default=None,
        description="folder of the recipe's run that made the model: measure its base model and two ablations"
        " too, and write the model's card",
    )


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


async def _both_forms(settings: EvaluateSettings) -> list[Row]:
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


async def _ablations(model: Path, prompts: int) -> list[Row]:
    """A copy that was trained with the rules broken: chunks of totals hidden, chains in parallel.

    A model that meets a broken rule for the first time would fail for that reason alone.
    """
    from pasta_async.training.pretrain import train_with_broken_rules

    with tempfile.TemporaryDirectory() as folder:
        train_with_broken_rules(model, Path(folder))
        async with Client(f"local:{folder}/model") as client:
            hidden, _ = await evaluate(client, "totals", "names", "chunks hidden", prompts)
            chains, _ = await evaluate(client, "chain", "names", "chain in parallel", prompts)
    return [hidden, chains]


def wilson(right: int, count: int) -> tuple[float, float]:
    """Wilson's 95% interval of a share."""
    low, high = binomtest(right, count).proportion_ci(method="wilson")
    return float(low), float(high)


def table(rows: Sequence[Row]) -> str:
    """The results as a Markdown table."""
    head = ["family", "held out", "form", "prompts", "right", "95% interval", "well-formed", "tokens"]
    cells = [
        [row.family, row.split, row.form, *_shares(row.prompts, row.right, row.well_formed)]
        + [f"{tokens / row.prompts:.1f}" for tokens in (row.generated, row.critical)]
        for row in rows
    ]
    return _markdown([*head, "critical path"], cells)


def _shares(prompts: int, right: int, formed: int) -> list[str]:
    low, high = wilson(right, prompts)
    return [str(prompts), f"{right / prompts:.1%}", f"{low:.1%} to {high:.1%}", f"{formed / prompts:.1%}"]


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def card(
    rows: Sequence[Row],
    base: Sequence[Row],
    ablations: Sequence[Row],
    step: str,
    trained: Mapping[str, int],
    config: Mapping[str, int],
) -> str:
    """The card, in Markdown.

    Args:
        rows: Of the model, both forms.
        base: The same of the base model alone.
        ablations: Of the copies that were trained with a rule broken.
        step: The step of the recipe that made the model.
        trained: Updates (`step`) and tokens of the base model's training.
        config: The model's.
    """
    text = (PACKAGED / "card.md").read_text(encoding="utf-8")
    return text.format(
        step=step,
        updates=trained["step"],
        tokens=trained["tokens"],
        vocabulary=config["vocab_size"],
        context=config["max_position_embeddings"],
        examples=_examples(),
        prompts=rows[0].prompts,
        chosen=len(FAMILIES) * _CHOSEN_FROM,
        overall=_overall({"shipped": rows, "base alone": base}),
        rows=table(rows),
        speedups=_speedups(rows),
        ablations=table(ablations),
    )


def _examples() -> str:
    quoted: list[str] = []
    for family in FAMILIES:
        drawn = (sample(family, seed, "names").prompt for seed in range(100))
        prompt = next(text for text in drawn if "\n" not in text and len(text) < 260)
        quoted.append(f"- *{family}*: {prompt}\n")
    return "".join(quoted)


def _overall(models: Mapping[str, Sequence[Row]]) -> str:
    sums: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for model, rows in models.items():
        for row in rows:
            for split in (row.split, "both"):
                total = sums[model, split, row.form]
                total[:] = (total[0] + row.prompts, total[1] + row.right, total[2] + row.well_formed)
    head = ["model", "held out", "form", "prompts", "right", "95% interval", "well-formed"]
    return _markdown(head, [[*names, *_shares(*counts)] for names, counts in sums.items()])


def _speedups(rows: Sequence[Row]) -> str:
    found: list[str] = []
    for family in dict.fromkeys(row.family for row in rows):
        baseline = sum(row.generated for row in rows if row.family == family and row.form == "baseline")
        critical = sum(row.critical for row in rows if row.family == family and row.form == "parallel")
        found.append(f"{family} {baseline / critical:.2f}")
    return ", ".join(found)


def run(settings: EvaluateSettings) -> None:
    """Measure, print the table, write the figures and the card.

    Raises:
        PastaError: The model cannot be used, or is none of the run that `card` names.
    """
    rows = asyncio.run(_both_forms(settings))
    print(table(rows))
    if settings.json_file:
        settings.json_file.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    if settings.card:
        _write_card(settings, settings.card, rows)


def _write_card(settings: EvaluateSettings, folder: Path, rows: Sequence[Row]) -> None:
    model = Path(settings.backend.removeprefix("local:"))
    if not model.is_relative_to(folder):
        raise InvalidRequestError(f"{settings.backend} is no local model below {folder}")
    base = asyncio.run(_both_forms(settings.model_copy(update={"backend": f"local:{folder / 'base/model'}"})))
    ablations = asyncio.run(_ablations(model, settings.prompts))
    lines = (folder / "base/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    trained = {"step": len(lines), "tokens": round(sum(json.loads(line)["tokens"] for line in lines))}
    config: dict[str, Any] = json.loads((model / "config.json").read_text(encoding="utf-8"))
    step = str(model.parent.relative_to(folder))
    text = card(rows, base, ablations, step, trained, config)
    (model / "README.md").write_text(text, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    program, positional = "pasta_async.training.evaluate", ("backend",)
    run_command(
        EvaluateSettings,
        run,
        program=program,
        description=__doc__,
        positional=positional,
        arguments=arguments,
    )


if __name__ == "__main__":
    main()
