"""The card of the model that ships, written from what is measured here.

    python -m pasta_async.evals.card runs/pasta-tiny --model round2/lambda4

`evals.frontier` measures a model of the recipe's run and its base model, and two ablations on a copy that
was trained with the rules broken, so that it does not fail for their novelty alone. Results are kept in
RUN/card; the card's text is `training/recipes/card.md`.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from typing import TYPE_CHECKING, Any

import jinja2
from pydantic import Field

from pasta_async.cli.command import Command, CommandSettings, command
from pasta_async.errors import InvalidRequestError
from pasta_async.evals.frontier import FrontierSettings, measure
from pasta_async.training.recipe import PACKAGED
from pasta_async.training.sample import weights_digest
from pasta_async.training.synthetic import FAMILIES, sample

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CardSettings", "card", "main"]

_CHOSEN_FROM = 50
"""Prompts of each family that the recipe compares its models on; they are among those asked here."""


class CardSettings(CommandSettings):
    """Which model the card is of."""

    run: Path = Field(description="folder of the recipe's run")
    model: str = Field(description="the step of the run that made the model: round2/lambda4")
    prompts: int = Field(default=1000, ge=1, description="of each family, half of them with unseen names")


def card(run: Path, step: str, results: Mapping[str, Any]) -> str:
    """The card, in Markdown.

    Args:
        run: Folder of the run.
        step: Of it, the one that made the model.
        results: Of `evals.frontier`: "shipped", "base alone", "chunks hidden", "chain in parallel".
    """
    examples: dict[str, str] = {}
    for family in FAMILIES:
        drawn = (sample(family, seed, "names").prompt for seed in range(100))
        examples[family] = next(text for text in drawn if "\n" not in text and len(text) < 260)
    metrics = (run / "base/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    updates = [json.loads(line) for line in metrics]
    template = (PACKAGED / "card.md").read_text(encoding="utf-8")
    return jinja2.Template(template, trim_blocks=True, keep_trailing_newline=True).render(
        step=step,
        updates=len(updates),
        tokens=sum(int(update["tokens"]) for update in updates),
        config=json.loads((run / step / "model/config.json").read_text(encoding="utf-8")),
        examples=examples,
        chosen=len(FAMILIES) * _CHOSEN_FROM,
        results=results,
    )


async def _results(run: Path, step: str, kept: Path, count: int) -> dict[str, Any]:
    asked: dict[str, tuple[Path, dict[str, Any]]] = {
        "shipped": (run / step, {}),
        "base alone": (run / "base", {}),
        "chunks hidden": (kept / "broken", {"families": ["totals"], "hide_chunks": True}),
        "chain in parallel": (kept / "broken", {"families": ["chain"]}),
    }
    results: dict[str, Any] = {}
    for name, (folder, options) in asked.items():
        given = {
            "backend": f"local:{folder / 'model'}",
            "out": kept / name,
            "n": count,
            "timed": 0,
            **options,
        }
        results[name] = await measure(FrontierSettings.model_validate(given))
    return results


def _write(settings: CardSettings) -> str:
    from pasta_async.training.pretrain import train_with_broken_rules  # needs torch

    run, step = settings.run, settings.model
    if not (run / step / "model").is_dir() or not (run / "base/model").is_dir():
        raise InvalidRequestError(f"{run} is no run that made {step} from a base of its own")
    kept = run / "card" / weights_digest(f"local:{run / step / 'model'}")  # another model has other results
    train_with_broken_rules(run / step / "model", kept / "broken")
    text = card(run, step, asyncio.run(_results(run, step, kept, settings.prompts)))
    (run / step / "model/README.md").write_text(text, encoding="utf-8")
    return text


main: Command = command(CardSettings, _write, "card", __doc__, positional=("run",))

if __name__ == "__main__":
    main()
