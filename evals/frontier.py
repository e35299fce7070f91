"""A model as one point of speed and quality, against sequential answers.

    python -m pasta_async.evals.frontier --backend local:pasta-tiny --out results/tiny
    python -m pasta_async.evals.frontier --backend local:BASELINE/model --sequential --out results/baseline
    python -m pasta_async.evals.frontier --backend local:MODEL --baseline results/baseline --out results/model

The first command compares a model with its own sequential answers. The others compare it with those of a
model that was trained on the same data without tags: the second measures that one, the third the model.
Measured are theoretical and length-matched speed-up, how good the answers are, how long, and how many of them
are parallel. `pasta_async.training.run` gives the last two; `pasta_async.evals.speed` measures wall clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, Self

from pydantic import Field, model_validator

from pasta_async import Sampling
from pasta_async.cli.command import Command, Count, command
from pasta_async.errors import InvalidRequestError
from pasta_async.evals.answers import (
    FORMS,
    Answer,
    Form,
    answer_all,
    comparable,
    of_form,
    read_answers,
    theoretical,
)
from pasta_async.evals.documents import AskedSettings, Prompt, digest
from pasta_async.evals.engines import cold_client
from pasta_async.evals.judge import JOURNAL, grade_answers
from pasta_async.evals.records import grouped, markdown_table, read_json, write_result
from pasta_async.jobs import Journal
from pasta_async.lang import Sync, parse
from pasta_async.training.identity import weights_of
from pasta_async.training.score import JudgeSettings, open_judge
from pasta_async.training.statistics import estimate, format_estimate, gain, of_known, share

_SAMPLING = {"max_tokens", "temperature", "repetition_penalty", "seed"}


class FrontierSettings(AskedSettings, JudgeSettings):
    """What is measured."""

    backend: str = Field(default="local:pasta-tiny", description="what answers, as for pasta_async.generate")
    baseline: Path | None = Field(default=None, description="a sequential model's folder; default: itself")
    sequential: bool = Field(default=False, description="a model without tags, to compare others with")
    out: Path = Field(description="folder; a run that was interrupted goes on from what it has")
    n: Count = Field(default=50, description="held-out prompts of each family of the synthetic task")
    seed: int = Field(default=0, ge=0, description="the first seed of the held-out prompts; of the sampler")
    max_tokens: Count = Field(default=1024, description="of an answer, tags counted")
    temperature: float = Field(default=0.0, ge=0, description="of the sampler (0: greedy)")
    repetition_penalty: float | None = Field(default=None, gt=0, le=2, description="default: the model's own")
    together: Count = Field(default=32, description="answers at the same time")

    @model_validator(mode="after")
    def _checked_prompts(self) -> Self:
        if self.judge == "task" and self.prompts is not None:
            raise ValueError("the synthetic task's program judges its own prompts only: name a --judge")
        if self.sequential and self.baseline is not None:
            raise ValueError("a sequential model is the baseline: it has none")
        return self


async def measure(settings: FrontierSettings) -> dict[str, Any]:
    """Measure one model; the result, as it is written to `result.json`.

    Cancelling it cancels the answers under way; those that came are kept.

    Raises:
        PastaError: The backend, the judge or the baseline's result cannot be used.
    """
    prompts, sampling = settings.asked(settings.seed), settings.model_dump(include=_SAMPLING)
    asked = {"prompts": digest(prompt.text for prompt in prompts), **sampling}
    plain = _read_baseline(settings.baseline, asked) if settings.baseline else []
    forms: Sequence[Form] = ("baseline",) if settings.sequential else ("parallel",) if plain else FORMS
    identity = {
        "benchmark": "frontier",
        "backend": settings.backend,
        "weights": await weights_of(settings.backend),
        "forms": list(forms),
        **asked,
    }
    async with AsyncExitStack() as stack:
        # Before anything is answered: a judge that cannot be used is told at once.
        judge = await open_judge(settings, settings.out / JOURNAL, stack)
        async with cold_client(settings.backend) as client:
            with Journal(settings.out / "answers.jsonl", identity) as journal:
                answers = await answer_all(
                    *(client, prompts, journal),
                    sampling=Sampling(**sampling),
                    together=settings.together,
                    forms=forms,
                )
        plain = plain or of_form(answers, "baseline")
        ids = [one.id for one in prompts]
        grade = partial(grade_answers, judge, plain=plain, ids=ids, in_flight=settings.in_flight)
        plain_grades = await grade(plain)
        result: dict[str, Any] = {**identity, "judge": settings.judge}
        if settings.sequential:
            result |= outcome(prompts, plain, plain_grades)
        else:
            answers = of_form(answers, "parallel")
            result |= outcome(prompts, answers, await grade(answers), (plain, plain_grades))
    write_result(settings.out, result)
    return result


def _read_baseline(folder: Path, asked: dict[str, Any]) -> list[Answer]:
    """The sequential model's answers, refused if they are to other prompts, or of another kind."""
    result = read_json(folder / "result.json", "the result of a sequential model")
    _, answers = read_answers(folder / "answers.jsonl")
    wanted = {"benchmark": "frontier", "forms": ["baseline"], **asked}
    if differ := [name for name, value in wanted.items() if result.get(name) != value]:
        raise InvalidRequestError(
            f"{folder} cannot be compared with, for its {', '.join(differ)}: measure a sequential model with "
            "equal options"
        )
    return answers


class _Graded(NamedTuple):
    """An answer with its grade, and the sequential answer with its own; None: the judge refused it."""

    prompt: Prompt
    answer: Answer
    grade: float | None
    plain: Answer | None = None
    plain_grade: float | None = None


def outcome(
    prompts: Sequence[Prompt],
    answers: Sequence[Answer],
    grades: Sequence[float | None],
    baseline: tuple[Sequence[Answer], Sequence[float | None]] | None = None,
) -> dict[str, Any]:
    """The figures of a model: of all prompts, of each family, and both for what was unseen in a prompt.

    There is an answer with its grade (from 0 to 1; None where it is not judged) for each prompt. The baseline
    is sequential answers and their grades; None if these are sequential themselves.
    """
    rows = [_Graded(*one) for one in zip(prompts, answers, grades, *(baseline or ()), strict=True)]
    splits = grouped(rows, lambda one: one.prompt.example and f"unseen {one.prompt.example.split}")
    return {**_families(rows), "by_split": {name: _families(own) for name, own in splits.items() if name}}


def _families(rows: Sequence[_Graded]) -> dict[str, Any]:
    families = grouped(rows, lambda one: one.prompt.family).items()
    return {"all": _compared(rows), "by_family": {name: _compared(own) for name, own in families if name}}


def _compared(rows: Sequence[_Graded]) -> dict[str, Any]:
    clusters, answers = [one.prompt.cluster for one in rows], [one.answer for one in rows]
    plain = [one.plain for one in rows if one.plain]
    own = _figures(answers, [one.grade for one in rows], clusters)
    if not plain:
        return own
    matched = [
        one.whole_text_tokens / one.critical_path if comparable(one, other) else None
        for one, other in zip(answers, plain, strict=True)
    ]
    differences = [
        None if one.grade is None or one.plain_grade is None else 100 * (one.grade - one.plain_grade)
        for one in rows
    ]
    return {
        **own,
        "theoretical_speedup": theoretical(answers, plain, clusters),
        "length_matched_speedup": of_known(estimate, matched, clusters),
        "difference": of_known(gain, differences, clusters),
        "baseline": _figures(plain, [one.plain_grade for one in rows], clusters),
    }


def _figures(
    answers: Sequence[Answer], grades: Sequence[float | None], clusters: Sequence[str]
) -> dict[str, Any]:
    """What can be said of answers by themselves. Shares and grades in percent."""
    scores = [None if grade is None else 100 * grade for grade in grades]
    right = [None if grade is None else grade == 1 for grade in grades]
    synced = [any(isinstance(node, Sync) for node in parse(one.written).nodes) for one in answers]
    return {
        "prompts": len(answers),
        "unjudged": sum(grade is None for grade in grades),
        "score": of_known(partial(estimate, mean="arithmetic"), scores, clusters),
        "right": of_known(share, right, clusters),
        "text_tokens": fmean(one.text_tokens for one in answers),
        "tokens": fmean(one.tokens for one in answers),
        "critical_path": fmean(one.critical_path for one in answers),
        "promises": fmean(one.promises for one in answers),
        "parallel": share([one.promises > 0 for one in answers], clusters=clusters),
        "synced": share(synced, clusters=clusters),
        "malformed": share([not one.well_formed for one in answers], clusters=clusters),
        "cut_by_length": share([one.ended_by_length for one in answers], clusters=clusters),
    }


def row(label: str, own: dict[str, Any]) -> dict[str, Any]:
    """Figures of some answers as the row of a table."""
    return {
        "": label,
        "prompts": own["prompts"],
        "score %": format_estimate(own["score"]),
        "to the baseline": format_estimate(own.get("difference"), "+.1f"),
        "right %": format_estimate(own["right"]),
        "theoretical speed-up": format_estimate(own.get("theoretical_speedup"), ".2f"),
        "length-matched": format_estimate(own.get("length_matched_speedup"), ".2f"),
        "text tokens": own["text_tokens"],
        **{f"{name} %": own[name]["value"] for name in ("parallel", "synced", "malformed")},
        "cut by length %": own["cut_by_length"]["value"],
    }


def table(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The result as rows: each family, what was unseen, and all; the baseline below."""
    splits = {name: own["all"] for name, own in result["by_split"].items()}
    groups = {**result["by_family"], **splits, "all": result["all"]}
    rows = [row(name, own) for name, own in groups.items()]
    plain = {name: own["baseline"] for name, own in groups.items() if "baseline" in own}
    return [*rows, *(row(f"{name}, baseline", own) for name, own in plain.items())]


async def _run(settings: FrontierSettings) -> str:
    return markdown_table(table(await measure(settings)))


main: Command = command(FrontierSettings, _run, "frontier", __doc__, resumes=True)

if __name__ == "__main__":
    main()
