r"""Quality of answers: plain and parallel ones, and another model's, judged and compared prompt by prompt.

    python -m pasta_async.evals.quality --backend local:pasta-smol --original local:BASE --prompts p.jsonl \
        --temperature 0.6 --max-tokens 500 --together 64 --likelihood BASE --judge runs/judge --out smol
    python -m pasta_async.evals.quality --backend local: --prompts ifeval.jsonl --ifeval ifeval.jsonl --out i
    python -m pasta_async.evals.quality --answers speed.jsonl --out results/speed
    python -m pasta_async.evals.quality --backend http://127.0.0.1:30000 --prompts alpaca_eval.jsonl \
        --judge https://api.example.com/v1 --judge-model NAME --out results/alpaca

Prompts are answered plainly and in parallel, and plainly by another model (--original), unless --answers
names a file of answers. Measured are faults that a program finds (`pasta_async.training.faults`) and, where
they are asked for, bits a token under a model (--likelihood), IFEval's instructions (--ifeval), and a judge's
verdicts (--judge: a folder of `evals.judge`, an endpoint, or package.module:name). OUT/alpaca has the answers
as AlpacaEval's own command reads them. The same command goes on where it was broken off.

Differences are taken prompt by prompt; "at least" is a one-sided bound: with 95% confidence it is not less.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import combinations, compress
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from pasta_async import Client, Limits, Sampling
from pasta_async.cli.command import Command, Count, command
from pasta_async.errors import BackendError, InvalidRequestError
from pasta_async.evals.answers import (
    FORMS,
    Answer,
    Drawn,
    Form,
    answer_all,
    digest,
    read_answers,
    read_prompts,
)
from pasta_async.evals.ifeval import check_answers
from pasta_async.evals.report import cell, grouped, markdown_table, transposed, write_result
from pasta_async.evals.speed import counted_speedup
from pasta_async.evals.statistics import Estimate, estimate, gain, of_known, share
from pasta_async.jobs import Journal, progress
from pasta_async.lang import parse
from pasta_async.training.endpoint import EndpointSettings, collect
from pasta_async.training.faults import OF_ANSWERS, OF_PROMISES, count_faults, soundness
from pasta_async.training.identity import model_digest, weights_of
from pasta_async.training.samples import Plain, SampledPrompt
from pasta_async.training.score import JudgeSettings, open_judge

Forms = dict[str, list[Answer]]
"""Answers by form, each in the same order of passes and prompts."""
Figures = dict[str, list[dict[str, float | None]]]
"""The figures of each answer by form and name; None where an answer has none."""

SPEED = "theoretical speed-up"
"""Name of a result: the gain on an engine whose steps all take the same time."""

_ORDER = ("parallel", "baseline", "original")


class QualitySettings(EndpointSettings):
    """Settings of a measurement."""

    answers: Path | None = Field(default=None, description="file of answers; without it they are written")
    backend: str = Field(default="", description="what answers, as for pasta_async.generate")
    original: str = Field(default="", description="another backend, which answers plainly too")
    prompts: Path | None = Field(default=None, description="a prompt a line, or .jsonl with `instruction`")
    sample: Drawn = None
    max_tokens: Count = Field(default=1024, description="of an answer, tags counted")
    temperature: float = Field(default=0.0, ge=0, description="of the sampler (0: greedy)")
    seed: int = Field(default=0, ge=0, description="of the draws: every answer has its own, made of this one")
    passes: Count = Field(default=1, description="answers to each prompt, of other draws, in each form")
    together: Count = Field(default=16, description="answers at the same time")
    likelihood: Path | None = Field(default=None, description="folder of a model: bits a token of answers")
    ifeval: Path | None = Field(default=None, description="IFEval's file: instructions that are followed")
    judge: str = Field(
        default="", description="folder of a trained judge, https://host/v1, package.module:name"
    )
    judge_model: str = Field(default="", description="name of the model at the endpoint")
    out: Path = Field(description="folder of the result; an interrupted run goes on from what it has")

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if (self.answers is None) != bool(self.backend and self.prompts):
            raise ValueError("name a file with --answers, or --backend and --prompts to have them written")
        if self.passes > 1 and not self.temperature:
            raise ValueError("greedy answers are all alike: --passes needs a --temperature")
        return self


async def write_answers(settings: QualitySettings) -> Path:
    """Have the prompts answered, by the other backend first, then in both forms; the file of answers.

    Cancelling it cancels the answers under way; those that came are kept.

    Raises:
        PastaError: The prompts or a backend cannot be used, or the file has other answers.
    """
    assert settings.prompts is not None
    prompts = read_prompts(settings.prompts, settings.sample)
    due: list[tuple[str, Form]] = [(settings.backend, form) for form in FORMS]
    if settings.original:
        due.insert(0, (settings.original, "original"))
    options = {"backend", "original", "max_tokens", "temperature", "seed", "passes"}
    identity = {
        "benchmark": "quality",
        **settings.model_dump(include=options),
        "weights": [
            await weights_of(backend) for backend in (settings.backend, settings.original) if backend
        ],
        "prompts": digest(prompts),
        "count": len(prompts),
        "forms": [form for _, form in due],
    }
    sampling = Sampling(max_tokens=settings.max_tokens, temperature=settings.temperature, seed=settings.seed)
    limits = Limits(client_threads=4 * settings.together, timeout=None)
    path = settings.out / "answers.jsonl"
    with Journal(path, identity) as journal:
        for backend, form in due:
            async with Client(backend, limits=limits) as client:
                await answer_all(
                    client,
                    prompts,
                    journal,
                    sampling=sampling,
                    together=settings.together,
                    forms=(form,),
                    passes=settings.passes,
                )
    return path


def read_forms(path: Path) -> tuple[dict[str, Any], Forms]:
    """First line of a file of answers, and its answers of each pass.

    Raises:
        InvalidRequestError: It cannot be read, or a form or the answer to a prompt is missing.
    """
    identity, answers = read_answers(path)
    forms = grouped(answers, lambda answer: answer.method)
    forms = {form: forms[form] for form in _ORDER if form in forms}
    # Every form must have the same prompts and passes, as many as the file's first line says.
    orders = {tuple((answer.prompt, answer.number) for answer in answers) for answers in forms.values()}
    order = next(iter(orders))
    prompts = {prompt for prompt, _ in order}
    passes = {number for _, number in order}
    count = identity.get("count", len(prompts)) * identity.get("passes", len(passes))
    complete = len(orders) == 1 and len(order) == count
    if not complete or not {"baseline", *identity.get("forms", ())} <= forms.keys():
        raise InvalidRequestError(f"{path} is not whole: give the command that made it again, and it goes on")
    return identity, forms


def compared(forms: Forms, figures: Figures) -> dict[str, Any]:
    """Estimates of figures and of their differences, with 95% intervals over prompts.

    Returns:
        `methods`: by form and name an estimate; where all values are 0 or 100 their share, with Wilson's
        interval. `differences`: the same for `parallel - baseline` and so on, each with its `bound`, and for
        `where promised`, the prompts whose parallel answer has promises. None where no answer has a value.
    """
    prompts = [answer.prompt for answer in forms["baseline"]]
    promised = [answer.promises > 0 for answer in forms.get("parallel", ())]
    names = [*figures["baseline"][0]]
    # By form and name, the values of all answers in order; None where an answer has none.
    values = {form: {name: [row[name] for row in rows] for name in names} for form, rows in figures.items()}
    methods = {
        form: {name: of_known(_level, values[form][name], prompts) for name in names} for form in forms
    }
    differences: dict[str, Any] = {}
    for first, second in combinations(forms, 2):
        pairs = {name: _differences(values[first][name], values[second][name]) for name in names}
        differences[f"{first} - {second}"] = {
            name: of_known(gain, changes, prompts) for name, changes in pairs.items()
        }
        if (first, second) == ("parallel", "baseline") and any(promised):
            there = [*compress(prompts, promised)]
            differences["where promised"] = {
                name: of_known(gain, [*compress(changes, promised)], there) for name, changes in pairs.items()
            }
    return {"methods": methods, "differences": differences}


def _differences(ours: Sequence[float | None], theirs: Sequence[float | None]) -> list[float | None]:
    pairs = zip(ours, theirs, strict=True)
    return [None if mine is None or other is None else mine - other for mine, other in pairs]


def _level(values: Sequence[float], *, clusters: Sequence[int]) -> Estimate:
    if {*values} <= {0, 100}:
        return share([value == 100 for value in values], clusters=clusters)
    return estimate(values, "arithmetic", clusters=clusters)


def counted(answers: Sequence[Answer]) -> list[dict[str, float | None]]:
    """Faults of each answer (100 or 0 for each, and for any of them), its soundness, and its length."""
    rows: list[dict[str, float | None]] = []
    for answer in answers:
        document = parse(answer.written)
        faults = count_faults(document, answer.question, well_formed=answer.well_formed, cut=answer.cut)
        percents = {name: _percent(getattr(faults, name) > 0) for name in (*OF_ANSWERS, *OF_PROMISES)}
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


def _asked(plain: Answer) -> SampledPrompt:
    """The prompt of a plain answer, as judges take it."""
    return SampledPrompt(
        id=str(plain.prompt),
        messages=({"role": "user", "content": plain.question},),
        samples=(),
        baseline=Plain(text=plain.text, tokens=plain.tokens),
    )


async def likelihoods(model: Path, out: Path, forms: Forms) -> Figures:
    """Bits a token of the visible text behind the plain prompt; None without text, or if it is too long.

    After a cancellation the computation under way ends by itself, unused.
    """
    from pasta_async.training.likelihood import LanguageModel, LikelihoodJudge

    figures: Figures = {form: [] for form in forms}
    identity = {"judge": "likelihood", "model": model_digest(model)}
    with Journal(out / "bits.jsonl", identity) as journal:
        judge = LikelihoodJudge(LanguageModel(model), journal)
        with progress(len(forms["baseline"]), "likelihoods") as advance:
            for index, plain in enumerate(forms["baseline"]):
                texts = {form: answers[index].text for form, answers in forms.items()}
                bits = await judge.figures(_asked(plain), texts.values())
                for form, text in texts.items():
                    figures[form].append({"bits a token": bits[text]})
                advance()
    return figures


async def verdicts(settings: QualitySettings, forms: Forms) -> Figures:
    """A judge's verdict on each answer, in percent; mostly the chance that it beats the plain answer.

    At most `in_flight` answers are judged at the same time; cancelling it ends their requests. An answer that
    the judge refuses has None, and the reason is told on stderr.

    Raises:
        PastaError: The judge cannot be used, or judges none of the answers.
    """
    named = {"judge": settings.judge, "judge_model": settings.judge_model}
    if (folder := Path(settings.judge)).is_dir():
        named = {"judge": "pasta_async.evals.judge:TrainedJudge", "judge_model": str(folder)}
    fields = {name: getattr(settings, name) for name in EndpointSettings.model_fields}
    figures: Figures = {}
    async with AsyncExitStack() as stack:
        opened = JudgeSettings.model_validate({**fields, **named})
        judge = await open_judge(opened, settings.out / "judge.journal.jsonl", stack)
        for form, answers in forms.items():

            async def grade(index: int, answers: Sequence[Answer] = answers) -> float:
                return 100 * await judge.verdict(_asked(forms["baseline"][index]), answers[index].text)

            grades, failures = await collect(range(len(answers)), grade, settings.in_flight)
            if failures:
                first = next(iter(failures.values()))
                reason = f"{len(failures)} of {len(answers)} answers have no verdict: {first}"
                if not grades:
                    raise BackendError(reason)
                print(reason, file=sys.stderr)
            figures[form] = [{"judge, %": grades.get(index)} for index in range(len(answers))]
    return figures


async def measure(settings: QualitySettings) -> dict[str, Any]:
    """Write the answers if need be, and measure them; the result, as it is written to `result.json`.

    Cancelling it cancels what is under way; what came is kept.

    Raises:
        PastaError: Something that was named cannot be used.
    """
    # 1. The answers, from a file or written now.
    path = settings.answers or await write_answers(settings)
    identity, forms = read_forms(path)
    result: dict[str, Any] = {"benchmark": "quality", "answers": {"backend": str(path), **identity}}
    # 2. The figures that were asked for, and the counted ones: together a row for each answer.
    parts: list[Figures] = []
    if settings.judge:
        parts.append(await verdicts(settings, forms))
    if settings.ifeval:
        parts.append(check_answers(settings.ifeval, settings.out, forms))
    if settings.likelihood:
        parts.append(await likelihoods(settings.likelihood, settings.out, forms))
    parts.append({form: counted(answers) for form, answers in forms.items()})
    figures: Figures = {form: [{} for _ in answers] for form, answers in forms.items()}
    for part in parts:
        for form, rows in part.items():
            for row, more in zip(figures[form], rows, strict=True):
                row.update(more)
    # 3. Estimates of the figures, how many answers lack each, and the speed-ups.
    result |= compared(forms, figures)
    result["missing"] = {
        form: {name: sum(row[name] is None for row in rows) for name in rows[0]}
        for form, rows in figures.items()
    }
    for base in ("baseline", "original"):
        if "parallel" in forms and base in forms:
            name = SPEED if base == "baseline" else f"{SPEED} to {base}"
            result[name] = counted_speedup(forms["parallel"], forms[base])
    write_result(settings.out, result)
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


def tables(result: dict[str, Any]) -> str:
    """The result as text: a column for each form and difference, and the speed-ups."""
    table = markdown_table(transposed({**result["methods"], **result["differences"]}))
    speedups = [f"{name}: {cell(result[name])}" for name in result if name.startswith(SPEED)]
    return "\n\n".join([table, *speedups])


async def _run(settings: QualitySettings) -> str:
    return tables(await measure(settings))


main: Command = command(QualitySettings, _run, "quality", __doc__, resumes=True)

if __name__ == "__main__":
    main()
