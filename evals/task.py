"""How often answers are right: the synthetic task's own program decides, for both forms of each prompt.

    python -m pasta_async.evals.task --backend local: --n 50 --out results/task

The prompts are held out: unseen names and unseen templates in turn. The score is exact, so this measure of
quality needs no judge; it says nothing about any other kind of prompt.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pydantic import Field

from pasta_async import Client, Sampling
from pasta_async.cli.command import run_command
from pasta_async.evals.answers import answer_all, of_form, theoretical
from pasta_async.evals.commands import Settings
from pasta_async.evals.documents import held_out
from pasta_async.evals.records import environment, markdown_table
from pasta_async.evals.statistics import estimate, format_estimate, share
from pasta_async.jobs import Journal
from pasta_async.training.synthetic import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.evals.answers import Answer
    from pasta_async.evals.documents import Prompt

__all__ = ["main", "outcome", "table"]


def outcome(prompts: Sequence[Prompt], answers: Sequence[Answer]) -> dict[str, Any]:
    """Shares of right answers in percent with 95% intervals, for all prompts and for each family.

    Args:
        prompts: With their examples, which know what is right.
        answers: Both forms of each.
    """
    families = list(dict.fromkeys(prompt.family for prompt in prompts))
    return {
        "all": _figures(prompts, answers),
        "by_family": {
            name: _figures(prompts, [one for one in answers if prompts[one.prompt].family == name])
            for name in families
        },
    }


def table(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The result as rows: each family, and all."""
    groups: dict[str, dict[str, Any]] = {**result["by_family"], "all": result["all"]}
    return [
        {
            "family": name,
            "prompts": figures["prompts"],
            "right, parallel %": format_estimate(figures["right"]["parallel"]),
            "right, baseline %": format_estimate(figures["right"]["baseline"]),
            "difference, points": format_estimate(figures["difference"]),
            "theoretical speed-up": format_estimate(figures["theoretical_speedup"], ".2f"),
            "malformed": f"{figures['malformed']:.1%}",
        }
        for name, figures in groups.items()
    ]


def _figures(prompts: Sequence[Prompt], answers: Sequence[Answer]) -> dict[str, Any]:
    right = {
        form: [bool(prompts[one.prompt].right(one.text)) for one in of_form(answers, form)]
        for form in ("baseline", "parallel")
    }
    pairs = zip(right["parallel"], right["baseline"], strict=True)
    return {
        "prompts": len(right["parallel"]),
        "right": {form: share(verdicts) for form, verdicts in right.items()},
        "difference": estimate([100.0 * (forked - plain) for forked, plain in pairs], fmean),
        "theoretical_speedup": theoretical(answers),
        "malformed": fmean(not one.well_formed for one in of_form(answers, "parallel")),
    }


class TaskSettings(Settings):
    """What is asked, and of whom."""

    backend: str = Field(default="local:", description="as for pasta_async.generate")
    n: int = Field(default=50, ge=1, description="prompts of each family")
    families: tuple[str, ...] = Field(default=FAMILIES, description="of the synthetic task")
    seed: int = Field(default=0, description="the first seed of the held-out prompts")
    out: Path = Field(description="folder; a run that was interrupted goes on from what it has")
    max_tokens: int = Field(default=1024, ge=1, description="of an answer, tags counted")
    together: int = Field(default=4, ge=1, description="answers at the same time")


async def _measure(settings: TaskSettings) -> dict[str, Any]:
    prompts = held_out(settings.families, settings.n, first_seed=settings.seed)
    identity = settings.model_dump(mode="json", exclude={"out", "together"})
    where = environment()
    async with Client(settings.backend) as client:
        identity["model"] = (await client.connect()).name
        with Journal(settings.out / "answers.jsonl", identity) as journal:
            answers = await answer_all(
                client,
                [prompt.text for prompt in prompts],
                journal,
                sampling=Sampling(max_tokens=settings.max_tokens),
                together=settings.together,
            )
    result = {"benchmark": "task", **identity, "environment": where, **outcome(prompts, answers)}
    (settings.out / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


def _run(settings: TaskSettings) -> None:
    print(markdown_table(table(asyncio.run(_measure(settings)))))


def main(arguments: Sequence[str] | None = None) -> None:
    """Answer, score, write `result.json`, print a table."""
    run_command(TaskSettings, _run, program="task", description=__doc__, arguments=arguments, resumes=True)


if __name__ == "__main__":
    main()
