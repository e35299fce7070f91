"""Faults of answers, counted by a program: how many answers, and how many of their promises, have each.

    python -m pasta_async.evals.faults results/alpaca/answers.jsonl

`pasta_async.training.faults` says what is counted. The file is one that a benchmark wrote answers to.
"""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pydantic import Field

from pasta_async.cli.command import Command, CommandSettings, command
from pasta_async.evals.answers import read_answers
from pasta_async.evals.records import environment, markdown_table
from pasta_async.lang import parse
from pasta_async.training.faults import OF_ANSWERS, OF_PROMISES, Faults, count_faults, soundness
from pasta_async.training.statistics import estimate, format_estimate, ratio, share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.evals.answers import Answer

__all__ = ["FaultSettings", "figures", "main", "table"]


class FaultSettings(CommandSettings):
    """What is looked at."""

    answers: Path = Field(description="file of answers")
    out: Path | None = Field(default=None, description="file for the result, JSON")


def figures(answers: Sequence[Answer]) -> dict[str, Any]:
    """The faults of some answers: shares in percent with 95% intervals.

    Returns:
        Of each fault the share of the `answers` that have it and, if promises have it, that of the
        `promises`; the share of answers with `any`, and the mean `soundness` in percent.
    """
    found = [count_faults(parse(one.written), well_formed=one.well_formed, cut=one.cut) for one in answers]
    promises = [one.promises for one in found]
    faults: dict[str, Any] = {
        name: {"answers": share([getattr(one, name) > 0 for one in found])}
        for name in (*OF_ANSWERS, *OF_PROMISES)
    }
    for name in OF_PROMISES:
        faults[name]["promises"] = ratio([getattr(one, name) for one in found], promises)
    return {
        "prompts": len(found),
        "promises": sum(promises),
        "faults": faults,
        "any": share([one != Faults(promises=one.promises) for one in found]),
        "soundness": estimate([100 * soundness(one) for one in found], fmean),
    }


def table(methods: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The figures of each method as rows: a fault, and the shares that have it; the mean soundness last."""
    shares = {
        method: {**own["faults"], **{name: {"answers": own[name]} for name in ("any", "soundness")}}
        for method, own in methods.items()
    }
    columns = [
        (method, part)
        for method, own in methods.items()
        for part in ("answers", "promises")
        if part == "answers" or own["promises"]
    ]
    return [
        {"": name, **{f"{m}, % of {part}": format_estimate(shares[m][name].get(part)) for m, part in columns}}
        for name in (*OF_ANSWERS, *OF_PROMISES, "any", "soundness")
    ]


def _count(settings: FaultSettings) -> str:
    identity, answers = read_answers(settings.answers)
    methods = {
        method: figures([one for one in answers if one.method == method])
        for method in dict.fromkeys(one.method for one in answers)
    }
    if settings.out:
        result = {
            "benchmark": "faults",
            "answers": identity,
            "methods": methods,
            "environment": environment(),
        }
        settings.out.parent.mkdir(parents=True, exist_ok=True)
        settings.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return markdown_table(table(methods))


main: Command = command(FaultSettings, _count, "faults", __doc__, positional=("answers",))

if __name__ == "__main__":
    main()
