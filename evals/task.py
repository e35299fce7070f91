"""How often answers are right: the synthetic task's own program decides, for both forms of each prompt.

    python -m pasta_async.evals.task --backend local: --n 50 --out results/task

The prompts are held out: unseen names and unseen templates in turn. The score is exact, so this measure of
quality needs no judge; it says nothing about any other kind of prompt.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pasta_async import Client, Sampling
from pasta_async.cli.command import ending
from pasta_async.evals.answers import answer_all, of_form, theoretical
from pasta_async.evals.command import count
from pasta_async.evals.prompts import held_out
from pasta_async.evals.records import environment, markdown_table
from pasta_async.evals.statistics import estimate, share, told
from pasta_async.jobs import Journal
from pasta_async.training.synthetic import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.evals.answers import Answer
    from pasta_async.evals.prompts import Prompt

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
            "right, parallel %": told(figures["right"]["parallel"]),
            "right, baseline %": told(figures["right"]["baseline"]),
            "difference, points": told(figures["difference"]),
            "theoretical speed-up": told(figures["theoretical_speedup"], ".2f"),
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


async def _run(options: argparse.Namespace) -> dict[str, Any]:
    prompts = held_out(options.families, options.n, first_seed=options.seed)
    identity = {
        "backend": options.backend,
        "families": options.families,
        "n": options.n,
        "seed": options.seed,
        "max_tokens": options.max_tokens,
    }
    where = environment()
    async with Client(options.backend) as client:
        identity["model"] = (await client.connect()).name
        with Journal(options.out / "answers.jsonl", identity) as journal:
            answers = await answer_all(
                client,
                [prompt.text for prompt in prompts],
                journal,
                sampling=Sampling(max_tokens=options.max_tokens),
                together=options.together,
            )
    result = {"benchmark": "task", **identity, "environment": where, **outcome(prompts, answers)}
    (options.out / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Answer, score, write `result.json`, print a table."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="task", description=__doc__, formatter_class=form)
    add = parser.add_argument
    add("--backend", default="local:", help="as for pasta_async.generate")
    add("--n", type=count, default=50, help="prompts of each family")
    add("--families", nargs="*", choices=FAMILIES, default=list(FAMILIES))
    add("--seed", type=int, default=0, help="the first seed of the held-out prompts")
    add("--out", type=Path, required=True, help="folder; a run that was interrupted goes on from what it has")
    add("--max-tokens", type=count, default=1024, help="of an answer, tags counted")
    add("--together", type=count, default=4, help="answers at the same time")
    options = parser.parse_args(arguments)
    with ending(resumes=True):
        result = asyncio.run(_run(options))
    print(markdown_table(table(result)))


if __name__ == "__main__":
    main()
