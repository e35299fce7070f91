"""The card of the model that ships, written from what is measured here.

    python -m pasta_async.evals.card runs/pasta-tiny --model round2/lambda4

Measured are a model of the recipe's run and its base model, in both forms on held-out prompts of every
family, unseen names and unseen templates apart; and two ablations. The text is `training/recipes/card.md`.
To measure a model without writing its card, `pasta_async.evals.frontier` asks the same prompts.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pydantic import Field

from pasta_async import Client, InvalidRequestError, Sampling
from pasta_async.backends import WrappingBackend, open_backend
from pasta_async.cli.command import Command, CommandSettings, command
from pasta_async.evals.answers import FORMS, answer_all
from pasta_async.evals.documents import digest, held_out
from pasta_async.evals.records import markdown_table
from pasta_async.evals.statistics import share
from pasta_async.jobs import Journal
from pasta_async.training.packing import without_chunks
from pasta_async.training.recipe import PACKAGED
from pasta_async.training.synthetic import FAMILIES, sample

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from pasta_async import Backend
    from pasta_async.evals.answers import Form
    from pasta_async.evals.documents import Prompt
    from pasta_async.protocol import DecodeRequest, Piece

__all__ = ["CardSettings", "HiddenChunks", "answered", "card", "main", "table"]

_CHOSEN_FROM = 50
"""Prompts of each family that the recipe compares its models on; they are among those asked here."""

Rows = list[dict[str, Any]]


class CardSettings(CommandSettings):
    """Which model the card is of."""

    run: Path = Field(description="folder of the recipe's run")
    model: str = Field(description="the step of the run that made the model: round2/lambda4")
    prompts: int = Field(default=1000, ge=1, description="of each family, half of them with unseen names")


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


async def answered(
    backend: Backend,
    prompts: Sequence[Prompt],
    journal: Path,
    *,
    forms: Sequence[Form] = FORMS,
    **labels: str,
) -> Rows:
    """A row for each answer, greedy, with what is known of it; the backend is closed.

    Args:
        backend: What answers.
        prompts: Of the synthetic task.
        journal: Keeps the answers.
        forms: One form alone, if not both.
        labels: Further cells of the rows, or others than usual.

    Raises what `answer_all` does. Cancelling it cancels the answers under way.
    """
    texts = [prompt.text for prompt in prompts]
    async with Client(backend) as client:
        identity = {"model": (await client.connect()).name, "prompts": digest(texts)}
        with Journal(journal, identity) as kept:
            sampling = Sampling(max_tokens=1024)
            found = await answer_all(client, texts, kept, sampling=sampling, together=64, forms=forms)
    return [
        {
            "family": prompt.family,
            "held out": prompt.example and prompt.example.split,
            "form": one.method,
            "right": prompt.right(one.text) is True,
            "well-formed": one.well_formed,
            "promises": one.promises,
            "tokens": one.tokens,
            "critical path": one.critical_path,
            **labels,
        }
        for one in found
        for prompt in [prompts[one.prompt]]
    ]


def table(found: Rows, by: Sequence[str], lengths: Sequence[str] = ("tokens", "critical path")) -> str:
    """Answers as a Markdown table: a row for each value of the columns `by`, with means of `lengths`."""
    groups: dict[tuple[str, ...], Rows] = {}
    for row in found:
        groups.setdefault(tuple(row[name] for name in by), []).append(row)
    rows: Rows = []
    for names, own in groups.items():
        right = share([row["right"] for row in own])
        figures = {
            "prompts": str(len(own)),
            "right": f"{right['value']:.1f}%",
            "95% interval": f"{right['low']:.1f}% to {right['high']:.1f}%",
            "well-formed": f"{100 * fmean(row['well-formed'] for row in own):.1f}%",
            **{name: f"{fmean(row[name] for row in own):.1f}" for name in lengths},
        }
        rows.append({**dict(zip(by, names, strict=True)), **figures})
    return markdown_table(rows)


def card(run: Path, step: str, found: Rows, broken: Rows) -> str:
    """The card, in Markdown.

    Args:
        run: Folder of the run.
        step: Of it, the one that made the model.
        found: Answers of the model ("shipped") and of its base ("base alone") in both forms.
        broken: Answers of the copy that was trained with the rules broken.
    """
    lines = (run / "base/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    updates = [json.loads(line) for line in lines]
    config = json.loads((run / step / "model/config.json").read_text(encoding="utf-8"))
    shipped = [row for row in found if row["model"] == "shipped"]
    both = [{**row, "held out": "both"} for row in found]
    columns = ("family", "held out", "form")
    parts = {
        "step": step,
        "updates": updates[-1]["step"],
        "tokens": round(sum(update["tokens"] for update in updates)),
        "vocabulary": config["vocab_size"],
        "context": config["max_position_embeddings"],
        "examples": "".join(map(_example, FAMILIES)),
        "prompts": len(shipped) // len({tuple(row[name] for name in columns) for row in shipped}),
        "chosen": len(FAMILIES) * _CHOSEN_FROM,
        "overall": table([*found, *both], ("model", "held out", "form"), ()),
        "rows": table(shipped, columns),
        "speedups": ", ".join(
            _speedup(name, shipped) for name in dict.fromkeys(r["family"] for r in shipped)
        ),
        "ablations": table(broken, columns),
    }
    return (PACKAGED / "card.md").read_text(encoding="utf-8").format(**parts)


def _example(family: str) -> str:
    drawn = (sample(family, seed, "names").prompt for seed in range(100))
    short = next(text for text in drawn if "\n" not in text and len(text) < 260)
    return f"- *{family}*: {short}\n"


def _speedup(family: str, found: Rows) -> str:
    lengths = {"baseline": 0, "parallel": 0}
    for row in found:
        lengths[row["form"]] += (row["family"] == family) * row["critical path"]
    return f"{family} {lengths['baseline'] / lengths['parallel']:.2f}"


async def _measured(run: Path, step: str, count: int) -> str:
    """The card. The copy for the ablations learns the broken rules first, so as not to fail for novelty."""
    from pasta_async.training.pretrain import train_with_broken_rules

    folder, kept, prompts = run / step / "model", run / "card", held_out(FAMILIES, count)
    found: Rows = []
    for name, model in {"shipped": folder, "base alone": run / "base/model"}.items():
        backend = open_backend(f"local:{model}")
        found += await answered(backend, prompts, kept / f"{name}.jsonl", model=name)
    train_with_broken_rules(folder, kept / "broken")
    broken: Rows = []
    for form, family in {"chunks hidden": "totals", "chain in parallel": "chain"}.items():
        backend = open_backend(f"local:{kept / 'broken/model'}")
        backend = HiddenChunks(backend) if form == "chunks hidden" else backend
        own = [p for p in prompts if p.family == family and p.example and p.example.split == "names"]
        broken += await answered(backend, own, kept / f"{form}.jsonl", forms=["parallel"], form=form)
    return card(run, step, found, broken)


def _write(settings: CardSettings) -> str:
    folder = settings.run / settings.model / "model"
    if not folder.is_dir() or not (settings.run / "base/model").is_dir():
        raise InvalidRequestError(f"{settings.run} is no run that made {settings.model} from its own base")
    text = asyncio.run(_measured(settings.run, settings.model, settings.prompts))
    (folder / "README.md").write_text(text, encoding="utf-8")
    return text


main: Command = command(CardSettings, _write, "card", __doc__, positional=("run",))

if __name__ == "__main__":
    main()
