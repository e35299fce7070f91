"""Write the card of a recipe's model: `python -m pasta_async.training.card RESULTS RUN STEP`.

The text is `recipes/card.md`; this fills in what was measured.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from pasta_async.cli.command import run_command
from pasta_async.training.evaluate import Row, table, wilson
from pasta_async.training.recipe import PACKAGED
from pasta_async.training.synthetic import FAMILIES, sample

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["CardSettings", "card", "main"]

_CHOSEN_FROM = 50
"""Prompts of each family that the recipe compares its models on; `evaluate` draws them too."""


class CardSettings(BaseModel):
    """What the card is made of. Every field is an option of the command line."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    results: Path = Field(description="what training.evaluate wrote with --json-file")
    run: Path = Field(description="folder of the recipe's run")
    step: str = Field(description="the step that made the model: round2/lambda4")
    base_results: Path = Field(description="the same of the base model, RUN/base")
    ablations: Path = Field(description="what training.ablate printed")


def card(
    rows: Sequence[Row],
    base: Sequence[Row],
    step: str,
    trained: Mapping[str, int],
    ablations: str,
    config: Mapping[str, int],
) -> str:
    """The card, in Markdown.

    Args:
        rows: What `evaluate` found.
        base: The same of the base model alone.
        step: The step of the recipe that made the model.
        trained: The last row of the base model's metrics.
        ablations: What `ablate` printed.
        config: The model's.
    """
    return (
        (PACKAGED / "card.md")
        .read_text(encoding="utf-8")
        .format(
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
            ablations=ablations.strip(),
        )
    )


def _examples() -> str:
    quoted: list[str] = []
    for family in FAMILIES:
        drawn = (sample(family, seed, "names").prompt for seed in range(100))
        prompt = next(text for text in drawn if "\n" not in text and len(text) < 260)
        quoted.append(f"- *{family}*: {prompt}\n")
    return "".join(quoted)


def _overall(models: Mapping[str, Iterable[Row]]) -> str:
    sums: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for model, rows in models.items():
        for row in rows:
            for split in (row.split, "both"):
                total = sums[model, split, row.form]
                total[:] = (total[0] + row.prompts, total[1] + row.right, total[2] + row.well_formed)
    lines = ["| model | held out | form | prompts | right | 95% interval | well-formed |", "|---" * 7 + "|"]
    for (model, split, form), (prompts, right, formed) in sums.items():
        low, high = wilson(right, prompts)
        lines.append(
            f"| {model} | {split} | {form} | {prompts} | {right / prompts:.1%} | {low:.1%} to {high:.1%} "
            f"| {formed / prompts:.1%} |"
        )
    return "\n".join(lines)


def _speedups(rows: Sequence[Row]) -> str:
    found: list[str] = []
    for family in dict.fromkeys(row.family for row in rows):
        baseline = sum(row.generated for row in rows if row.family == family and row.form == "baseline")
        critical = sum(row.critical for row in rows if row.family == family and row.form == "parallel")
        found.append(f"{family} {baseline / critical:.2f}")
    return ", ".join(found)


def run(settings: CardSettings) -> None:
    """Write the card into the model's folder."""
    model = settings.run / settings.step / "model"
    metrics = (settings.run / "base" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows, base = (_rows(file) for file in (settings.results, settings.base_results))
    config: dict[str, Any] = json.loads((model / "config.json").read_text(encoding="utf-8"))
    text = card(rows, base, settings.step, json.loads(metrics[-1]), settings.ablations.read_text(), config)
    (model / "README.md").write_text(text, encoding="utf-8")


def _rows(file: Path) -> list[Row]:
    return [Row(**row) for row in json.loads(file.read_text(encoding="utf-8"))]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    run_command(
        CardSettings,
        run,
        program="pasta_async.training.card",
        description=__doc__,
        positional=("results", "run", "step"),
        arguments=arguments,
    )


if __name__ == "__main__":
    main()
