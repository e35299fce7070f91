"""Quality of answers: plain and parallel ones, and another model's, judged and compared prompt by prompt.

    python -m pasta_async.evals.quality --answers smol.jsonl --likelihood BASE --judge runs/judge --out smol

The answers are those that `evals.speed` wrote; --original adds the plain ones of another model to the same
prompts. OUT/alpaca has the answers as AlpacaEval's own command reads them. The same command goes on where it
was broken off. docs/evaluation.md has the figures, and what each of them does not see.

Differences are taken prompt by prompt; "at least" is a one-sided bound: with 95% confidence it is not less.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import combinations, compress
from pathlib import Path
from typing import Any

from pydantic import DirectoryPath, Field, model_validator

from pasta_async.cli.command import Command, command
from pasta_async.errors import BackendError, InvalidRequestError
from pasta_async.evals.answers import Answer, in_all_methods, of_method, read_answers
from pasta_async.evals.ifeval import check_answers
from pasta_async.evals.report import cell, environment, markdown_table, transposed
from pasta_async.evals.speed import counted_speedup
from pasta_async.evals.statistics import Estimate, estimate, mean_difference, percentage
from pasta_async.lang import parse
from pasta_async.model_folder import write_json
from pasta_async.progress import progress
from pasta_async.training.faults import OF_ANSWERS, OF_PROMISES, count_faults, soundness
from pasta_async.training.jobs import Journal, collect
from pasta_async.training.samples import Plain, SampledPrompt
from pasta_async.training.score import JudgeSettings, open_judge

Forms = dict[str, list[Answer]]
"""Answers by form, each in the same order of passes and prompts."""
Row = dict[str, float | None]
"""Figures of an answer; None where it has none."""
Figures = dict[str, list[Row]]
"""The figures of each answer by form."""

SPEED = "theoretical speed-up"
"""Name of a result: the gain on an engine whose steps all take the same time."""

_FORMS = ("parallel", "baseline", "original")  # in the order of the tables


class QualitySettings(JudgeSettings):
    """Settings of a measurement."""

    answers: Path = Field(description="file of answers that evals.speed wrote")
    original: Path | None = Field(default=None, description="the same of another model: its plain answers")
    likelihood: DirectoryPath | None = Field(
        default=None, description="folder of a model: bits a token of answers"
    )
    ifeval: Path | None = Field(default=None, description="IFEval's file: instructions that are followed")
    judge: str = Field(
        default="", description="folder of a trained judge, or as for pasta_async.training.score"
    )
    out: Path = Field(description="folder of the result; an interrupted run goes on from what it has")

    @model_validator(mode="before")
    @classmethod
    def _trained_judge(cls, given: dict[str, Any]) -> dict[str, Any]:
        if (folder := given.get("judge")) and Path(folder).is_dir():
            return {**given, "judge": "pasta_async.evals.judge:TrainedJudge", "judge_model": folder}
        return given


def read_forms(settings: QualitySettings) -> tuple[dict[str, Any], Forms]:
    """First line of the file of answers, and the answers to the prompts that every form has one to.

    Raises:
        InvalidRequestError: A file cannot be read, has no plain answers, or answers other prompts.
    """
    identity, answers = read_answers(settings.answers)
    if settings.original:
        _, others = read_answers(settings.original)
        answers += [replace(other, method="original") for other in of_method(others, "baseline")]
    written = {"baseline", *(answer.method for answer in answers)}
    forms = in_all_methods(answers, [form for form in _FORMS if form in written])
    for form, rows in forms.items():
        if [row.question for row in rows] != [row.question for row in forms["baseline"]]:
            raise InvalidRequestError(f"the answers of {form} are to other prompts than the plain ones")
    return identity, forms


def compared(forms: Forms, figures: Figures) -> dict[str, Any]:
    """Estimates of figures and of their differences, with 95% intervals over prompts: columns of a table.

    Returns:
        By form and name an estimate; where all values are 0 or 100 their share, with Wilson's interval. By
        `parallel - baseline` and so on the same of differences, each with its `bound`; and by `where parallel
        promises` for those prompts alone. None where no answer has a value.
    """
    prompts = [answer.prompt for answer in forms["baseline"]]
    columns = {form: _estimates(_level, rows, prompts) for form, rows in figures.items()}
    for first, second in combinations(forms, 2):
        changes = [
            {name: _difference(mine[name], theirs[name]) for name in mine}
            for mine, theirs in zip(figures[first], figures[second], strict=True)
        ]
        columns[f"{first} - {second}"] = _estimates(mean_difference, changes, prompts)
        promised = [answer.promises > 0 for answer in forms[first]]
        if second == "baseline" and any(promised):
            there = [*compress(changes, promised)], [*compress(prompts, promised)]
            columns[f"where {first} promises"] = _estimates(mean_difference, *there)
    return columns


def _estimates(
    figure: Callable[..., Estimate], rows: Sequence[Row], prompts: Sequence[int]
) -> dict[str, Any]:
    """A figure of each name over the rows that have it; None where none has."""
    estimates: dict[str, Any] = {}
    for name in rows[0]:
        known = [
            (value, prompt)
            for row, prompt in zip(rows, prompts, strict=True)
            if (value := row[name]) is not None
        ]
        clusters = [prompt for _, prompt in known]
        estimates[name] = figure([value for value, _ in known], clusters=clusters) if known else None
    return estimates


def _difference(mine: float | None, theirs: float | None) -> float | None:
    return None if mine is None or theirs is None else mine - theirs


def _level(values: Sequence[float], *, clusters: Sequence[int]) -> Estimate:
    if {*values} <= {0, 100}:
        return percentage([value == 100 for value in values], clusters=clusters)
    return estimate(values, "arithmetic", clusters=clusters)


def fault_figures(answers: Sequence[Answer]) -> list[dict[str, float | None]]:
    """Faults of each answer (100 or 0 for each, and for any of them), its soundness, and its length."""
    rows: list[dict[str, float | None]] = []
    for answer in answers:
        document = parse(answer.written)
        faults = count_faults(document, answer.question, well_formed=answer.well_formed, cut=answer.cut)
        # No form is known here that a prompt asks for.
        names = [name for name in (*OF_ANSWERS, *OF_PROMISES) if name != "formless"]
        percents = {name: _percent(faults.counts[name] > 0) for name in names}
        rows.append(
            {
                **percents,
                "any fault": max(percents.values()),
                "soundness": 100 * soundness(faults),
                "with promises, %": _percent(answer.promises > 0),
                "ended by length, %": _percent(answer.ended_by_length),
                "tokens of the text": float(answer.text_tokens),
            }
        )
    return rows


def _percent(holds: bool) -> float:
    return 100.0 if holds else 0.0


def _sampled_prompt(plain: Answer) -> SampledPrompt:
    """The prompt of a plain answer, as judges take it."""
    return SampledPrompt(
        id=str(plain.prompt),
        messages=({"role": "user", "content": plain.question},),
        samples=(),
        baseline=Plain(text=plain.text, tokens=plain.tokens),
    )


async def likelihoods(model: Path, settings: QualitySettings, forms: Forms) -> Figures:
    """Bits a token of the visible text behind the plain prompt; None without text, or if it is too long.

    After a cancellation the computation under way ends by itself, unused.
    """
    from pasta_async.training.likelihood import LanguageModel, LikelihoodJudge, read_by

    figures: Figures = {form: [] for form in forms}
    identity = {"judge": "likelihood", **read_by(model, settings.dtype)}
    with Journal(settings.out / "bits.jsonl", identity) as journal:
        judge = LikelihoodJudge(LanguageModel(model, settings.dtype), journal)
        with progress(len(forms["baseline"]), "likelihoods") as advance:
            for index, plain in enumerate(forms["baseline"]):
                texts = {form: answers[index].text for form, answers in forms.items()}
                bits = await judge.figures(_sampled_prompt(plain), texts.values())
                for form, text in texts.items():
                    figures[form].append({"bits a token": bits[text]})
                advance()
    return figures


async def verdicts(settings: QualitySettings, forms: Forms) -> Figures:
    """A judge's verdict on each answer, in percent; mostly the chance that it beats the plain answer.

    At most `together` answers are judged at the same time; cancelling it ends their requests. An answer that
    the judge refuses has None, and the reason is told on stderr.

    Raises:
        PastaError: The judge cannot be used, or judges none of the answers.
    """
    figures: Figures = {}
    async with AsyncExitStack() as stack:
        judge = await open_judge(settings, settings.out / "judge.journal.jsonl", stack)
        for form, answers in forms.items():

            async def grade(index: int, answers: Sequence[Answer] = answers) -> float:
                return 100 * await judge.quality(
                    _sampled_prompt(forms["baseline"][index]), answers[index].text
                )

            grades, failures = await collect(range(len(answers)), grade, settings.together)
            if failures:
                first = next(iter(failures.values()))
                reason = f"{len(failures)} of {len(answers)} answers have no verdict: {first}"
                if not grades:
                    raise BackendError(reason)
                print(reason, file=sys.stderr)
            figures[form] = [{"judge, %": grades.get(index)} for index in range(len(answers))]
    return figures


async def measure(settings: QualitySettings) -> dict[str, Any]:
    """Measure the answers; the result, as it is written to `result.json`.

    Cancelling it cancels what is under way; what came is kept.

    Raises:
        PastaError: Something that was named cannot be used.
    """
    identity, forms = read_forms(settings)
    # The figures that were asked for, and the counted ones: together a row for each answer.
    parts: list[Figures] = []
    if settings.ifeval:
        parts.append(check_answers(settings.ifeval, forms))
    if settings.judge:
        parts.append(await verdicts(settings, forms))
    if settings.likelihood:
        parts.append(await likelihoods(settings.likelihood, settings, forms))
    parts.append({form: fault_figures(answers) for form, answers in forms.items()})
    figures: Figures = {form: [{} for _ in answers] for form, answers in forms.items()}
    for part in parts:
        # A prompt counts if every form has its figure: a judge may refuse long answers, mostly of one form.
        for index, of_prompt in enumerate(zip(*part.values(), strict=True)):
            missing = {name for row in of_prompt for name, value in row.items() if value is None}
            for form, row in zip(part, of_prompt, strict=True):
                figures[form][index] |= {name: None if name in missing else row[name] for name in row}
    answers = [answer for rows in forms.values() for answer in rows]
    result = {
        "benchmark": "quality",
        "answers": {"file": str(settings.answers), "of each form": len(forms["baseline"]), **identity},
        "figures": compared(forms, figures),
        SPEED: counted_speedup(answers) if "parallel" in forms else None,
        "environment": environment(),
    }
    write_json(settings.out / "result.json", result)
    write_for_alpaca(settings.out / "alpaca", forms)
    return result


def write_for_alpaca(folder: Path, forms: Forms) -> None:
    """Write FORM.json with the answers of the first pass, as `alpaca_eval` reads its outputs."""
    folder.mkdir(parents=True, exist_ok=True)
    for form, answers in forms.items():
        outputs = [
            {"instruction": answer.question, "output": answer.text, "generator": form}
            for answer in answers
            if not answer.number
        ]
        text = json.dumps(outputs, ensure_ascii=False, indent=1)
        (folder / f"{form}.json").write_text(text, encoding="utf-8", errors="backslashreplace")


async def _run(settings: QualitySettings) -> str:
    result = await measure(settings)
    return f"{markdown_table(transposed(result['figures']))}\n\n{SPEED}: {cell(result[SPEED])}"


main: Command = command(QualitySettings, _run, "quality", __doc__, resumes=True)

if __name__ == "__main__":
    main()
