r"""IFEval: how often answers follow instructions that a program can check, parallel beside plain.

    python -m pasta_async.evals.ifeval --backend local:runs/smol/model --original local:runs/base \
        --prompts ifeval_prompts.jsonl --out results/ifeval

The prompts are a file that you name, with `prompt`, `instruction_id_list` and `kwargs`. `--original` is the
model before it was trained, or any other, whose plain answers are checked too.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pydantic import Field

from pasta_async import Client, Sampling
from pasta_async.cli.command import Command, CommandSettings, Count, command
from pasta_async.evals.answers import FORMS, answer_all, of_form
from pasta_async.evals.documents import digest
from pasta_async.evals.instructions import check, read_questions
from pasta_async.evals.records import environment, markdown_table, write_rows
from pasta_async.jobs import Journal
from pasta_async.training.statistics import estimate, format_estimate, ratio, share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.evals.answers import Answer, Form
    from pasta_async.evals.instructions import Question, Verdict

__all__ = ["IFEvalSettings", "accuracy", "difference", "main", "measure", "table"]

_MODES = ("strict", "loose")


class IFEvalSettings(CommandSettings):
    """What is answered, and by whom."""

    backend: str = Field(default="local:", description="as for pasta_async.generate")
    original: str = Field(default="", description="another backend, whose plain answers are checked too")
    prompts: Path = Field(description="JSON lines with `prompt`, `instruction_id_list` and `kwargs`")
    out: Path = Field(description="folder; a run that was interrupted goes on from what it has")
    first: Count | None = Field(default=None, description="only the first so many prompts, to try things")
    max_tokens: Count = Field(default=1280, description="of an answer, tags counted")
    together: Count = Field(default=16, description="answers at the same time")


async def measure(settings: IFEvalSettings) -> dict[str, Any]:
    """Have the prompts answered and the answers checked; the result, as it is written to `result.json`.

    Cancelling it cancels the answers under way; those that came are kept.

    Raises:
        PastaError: The prompts, a backend or the checker cannot be used.
    """
    questions = read_questions(settings.prompts)[: settings.first]
    answers = await _answers(settings, settings.backend, questions, "answers.jsonl", FORMS)
    methods = {form: of_form(answers, form) for form in FORMS}
    if settings.original:
        methods |= {
            "original": await _answers(
                settings, settings.original, questions, "original.jsonl", ("baseline",)
            )
        }
    verdicts = {
        name: [check(*pair) for pair in zip(questions, (one.text for one in found), strict=True)]
        for name, found in methods.items()
    }
    pairs = [("parallel", "baseline"), *([("baseline", "original")] if settings.original else [])]
    result = {
        "benchmark": "ifeval",
        **_identity(settings, settings.backend, questions),
        "original": settings.original or None,
        "methods": {name: accuracy(found) for name, found in verdicts.items()},
        "differences": {
            f"{one} - {other}": difference(verdicts[one], verdicts[other]) for one, other in pairs
        },
        "with_promises": sum(one.promises > 0 for one in methods["parallel"]),
        "environment": environment(),
    }
    (settings.out / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    rows = (
        {"prompt": place, "method": name, "instructions": questions[place].instruction_id_list}
        | verdict._asdict()
        for name, found in verdicts.items()
        for place, verdict in enumerate(found)
    )
    write_rows(settings.out / "checked.jsonl", rows)
    return result


def _identity(settings: IFEvalSettings, backend: str, questions: Sequence[Question]) -> dict[str, Any]:
    prompts = digest(question.prompt for question in questions)
    return {"backend": backend, "prompts": prompts, "max_tokens": settings.max_tokens}


async def _answers(
    settings: IFEvalSettings, backend: str, questions: Sequence[Question], name: str, forms: Sequence[Form]
) -> list[Answer]:
    async with Client(backend) as client:
        identity = _identity(settings, backend, questions) | {"model": (await client.connect()).name}
        with Journal(settings.out / name, identity) as journal:
            return await answer_all(
                client,
                [question.prompt for question in questions],
                journal,
                sampling=Sampling(max_tokens=settings.max_tokens),
                together=settings.together,
                forms=forms,
            )


def accuracy(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Of each mode, the prompts whose instructions are all followed, and the instructions that are.

    In percent with 95% intervals; for instructions over prompts, since those of one prompt go together.
    """
    found = {mode: [list[bool](getattr(one, mode)) for one in verdicts] for mode in _MODES}
    return {
        "prompts": {mode: share([all(one) for one in own]) for mode, own in found.items()},
        "instructions": {
            mode: ratio([sum(one) for one in own], [len(one) for one in own]) for mode, own in found.items()
        },
    }


def difference(verdicts: Sequence[Verdict], others: Sequence[Verdict]) -> dict[str, Any]:
    """How many points more the first follow than the others, prompt by prompt.

    Returns:
        Of each mode, at both levels, an estimate with its 95% interval and a `bound`: it is not less than
        that, one-sided, with 95% confidence.
    """
    levels: dict[str, Any] = {"prompts": {}, "instructions": {}}
    for mode in _MODES:
        pairs = [(getattr(a, mode), getattr(b, mode)) for a, b in zip(verdicts, others, strict=True)]
        each = fmean(len(one) for one, _ in pairs)  # instructions of a prompt
        points = {
            "prompts": [100.0 * (all(one) - all(other)) for one, other in pairs],
            "instructions": [100 * (sum(one) - sum(other)) / each for one, other in pairs],
        }
        for level, values in points.items():
            bound = estimate(values, fmean, confidence=0.9)["low"]
            levels[level][mode] = {**estimate(values, fmean), "bound": bound}
    return levels


def table(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The result as rows: what answered, and the differences with their one-sided bound."""
    columns = [(level, mode) for level in ("prompts", "instructions") for mode in _MODES]
    rows = [
        {"": name, **{f"{mode}, % of {level}": format_estimate(own[level][mode]) for level, mode in columns}}
        for name, own in result["methods"].items()
    ]
    return rows + [
        {
            "": name,
            **{
                f"{mode}, % of {level}": f"{format_estimate(own[level][mode], '+.1f')}, at least "
                f"{own[level][mode]['bound']:+.1f}"
                for level, mode in columns
            },
        }
        for name, own in result["differences"].items()
    ]


def _run(settings: IFEvalSettings) -> str:
    return markdown_table(table(asyncio.run(measure(settings))))


main: Command = command(IFEvalSettings, _run, "ifeval", __doc__, resumes=True)

if __name__ == "__main__":
    main()
