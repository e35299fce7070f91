"""A model as one point of speed and quality, against another one that writes no tags.

    python -m pasta_async.evals.frontier --backend local:BASELINE/model --out results/baseline
    python -m pasta_async.evals.frontier --backend local:MODEL --baseline results/baseline --out results/model

The first command measures the sequential baseline: a model that was trained on the same data without tags.
The second measures a model against its answers: theoretical and length-matched speed-up and wall clock, how
good the answers are, how long, and how many of them are parallel. `pasta_async.training.run` gives both.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from pydantic import Field, model_validator

from pasta_async import Sampling
from pasta_async.cli.command import run_command
from pasta_async.clock import REAL_CLOCK
from pasta_async.errors import InvalidRequestError
from pasta_async.evals.answers import Answer, answer_all
from pasta_async.evals.commands import Settings
from pasta_async.evals.documents import WARM_UP_SEED, digest, held_out, read_prompts
from pasta_async.evals.engines import cold_client
from pasta_async.evals.records import environment, markdown_table
from pasta_async.evals.speed import kept_runs, time_answers, warm_up
from pasta_async.evals.statistics import estimate, format_estimate, geometric_mean, share
from pasta_async.jobs import Journal, for_each, progress
from pasta_async.lang import Sync, parse
from pasta_async.training.preference.samples import Plain, SampledPrompt
from pasta_async.training.score import ScoreSettings, open_judge
from pasta_async.training.synthetic import FAMILIES, grade

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pasta_async.evals.documents import Prompt
    from pasta_async.evals.speed import Form, Run

__all__ = ["FrontierSettings", "main", "measure", "outcome", "table"]


class FrontierSettings(Settings):
    """What is measured."""

    backend: str = Field(default="local:", description="what answers, as for pasta_async.generate")
    baseline: Path | None = Field(
        default=None, description="folder of the sequential model's result; without it, this is that model"
    )
    out: Path = Field(description="folder; a run that was interrupted goes on from what it has")
    n: int = Field(default=50, ge=1, description="held-out prompts of each family of the synthetic task")
    families: tuple[str, ...] = Field(default=FAMILIES, description="of the synthetic task")
    seed: int = Field(default=0, description="the first seed of the held-out prompts")
    prompts: Path | None = Field(
        default=None, description="instead of these, a file: a line each, or .jsonl with `instruction`"
    )
    first: int | None = Field(default=None, ge=1, description="so many of the file's prompts only")
    timed: int = Field(default=40, ge=0, description="the first so many prompts are timed, alone")
    passes: int = Field(default=1, ge=1, description="how often they are timed")
    max_tokens: int = Field(default=1024, ge=1, description="of an answer, tags counted")
    together: int = Field(default=32, ge=1, description="answers at the same time, where nothing is timed")
    judge: str = Field(default="task", description="who says how good answers are, as for training.score")
    judge_model: str = Field(default="", description="name of the model at the judge's endpoint")
    key_variable: str = Field(default="OPENAI_API_KEY", description="environment variable with its key")
    in_flight: int = Field(default=32, ge=1, description="requests to the judge at a time")

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if self.judge == "task" and self.prompts is not None:
            raise ValueError("the synthetic task's program judges its own prompts only: name a --judge")
        self.scoring()
        return self

    def scoring(self) -> ScoreSettings:
        """The judge's settings; its replies are kept in OUT."""
        return ScoreSettings(
            samples=self.out / "answers.jsonl",
            out=self.out / "judge.jsonl",
            judge=self.judge,
            judge_model=self.judge_model,
            key_variable=self.key_variable,
            in_flight=self.in_flight,
        )

    def asked(self) -> list[Prompt]:
        """What is asked.

        Raises:
            InvalidRequestError: The file of prompts cannot be read.
        """
        if self.prompts is not None:
            return read_prompts(self.prompts)[: self.first]
        return held_out(self.families, self.n, first_seed=self.seed)


class _Baseline(NamedTuple):
    backend: str
    answers: list[Answer]


async def measure(settings: FrontierSettings) -> dict[str, Any]:
    """Measure one model; the result, as it is written to `result.json`.

    Cancelling it cancels the answers under way; those that came are kept.

    Raises:
        PastaError: The backend, the judge or the baseline's result cannot be used.
    """
    prompts = settings.asked()
    sampling = Sampling(max_tokens=settings.max_tokens)
    asked = {"prompts": digest(prompt.text for prompt in prompts), "max_tokens": settings.max_tokens}
    baseline = None if settings.baseline is None else _read_baseline(settings.baseline, asked)
    form: Form = "baseline" if baseline is None else "parallel"
    identity = {"benchmark": "frontier", "backend": settings.backend, "form": form, **asked}
    where = environment()
    texts = [prompt.text for prompt in prompts]
    async with cold_client(settings.backend) as client:
        with Journal(settings.out / "answers.jsonl", identity) as journal:
            answers = await answer_all(
                client, texts, journal, sampling=sampling, together=settings.together, forms=[form]
            )
    grades = await _grade_all(settings, prompts, answers, baseline)
    plain = baseline and (baseline.answers, await _grade_all(settings, prompts, baseline.answers, None))
    result = {**identity, "judge": settings.judge, "environment": where}
    result |= outcome(prompts, answers, grades, plain)
    if baseline is not None and settings.timed:
        runs = await _time_all(settings, prompts[: settings.timed], baseline.backend, sampling, identity)
        result["wall_clock"] = _wall_clock(runs, answers, baseline.answers)
    (settings.out / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


async def _grade_all(
    settings: FrontierSettings,
    prompts: Sequence[Prompt],
    answers: Sequence[Answer],
    baseline: _Baseline | None,
) -> list[float]:
    if settings.judge == "task":
        pairs = zip(prompts, answers, strict=True)
        return [grade(prompt.example, one.text) for prompt, one in pairs if prompt.example is not None]
    if baseline is None:  # as good as itself
        return [0.5] * len(answers)
    return await _compare_by_judge(settings.scoring(), prompts, answers, baseline.answers)


def _read_baseline(folder: Path, asked: dict[str, Any]) -> _Baseline:
    """The sequential model: its backend, and its answers.

    Raises:
        InvalidRequestError: The folder has no result, or one for other prompts.
    """
    try:
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        lines = (folder / "answers.jsonl").read_text(encoding="utf-8").splitlines()
        differ = [name for name, value in asked.items() if result[name] != value]
        answers = sorted((Answer(**json.loads(line)) for line in lines[1:]), key=lambda one: one.prompt)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InvalidRequestError(f"{folder} is no result of a sequential model: {error!r}") from error
    if differ or result["form"] != "baseline":
        wrong = f"other {', '.join(differ)}" if differ else "it is of a model that writes tags"
        raise InvalidRequestError(
            f"{folder} cannot be compared with ({wrong}): measure it anew with equal options"
        )
    return _Baseline(str(result["backend"]), answers)


async def _time_all(
    settings: FrontierSettings,
    prompts: Sequence[Prompt],
    baseline: str,
    sampling: Sampling,
    identity: dict[str, Any],
) -> list[Run]:
    """Both models' answers one at a time, in the order A B B A. Cancelling it closes both."""
    warm = held_out(FAMILIES, 1, first_seed=WARM_UP_SEED)
    measured = {**identity, "benchmark": "frontier, timed", "baseline": baseline, "timed": len(prompts)}
    with Journal(settings.out / "timed.jsonl", measured) as journal:
        if len(known := kept_runs(journal)) == 2 * settings.passes * len(prompts):
            return known
        runs: list[Run] = []
        with progress(2 * settings.passes * len(prompts), "timed answers") as done:
            for number in range(settings.passes):
                async with cold_client(settings.backend) as client, cold_client(baseline) as plain:
                    timed = partial(time_answers, clock=REAL_CLOCK, number=number, sampling=sampling)
                    await warm_up(client, warm, sampling)
                    await warm_up(plain, warm, sampling)
                    runs += await timed(client, prompts, baseline=plain, journal=journal, done=done)
    return runs


async def _compare_by_judge(
    settings: ScoreSettings,
    prompts: Sequence[Prompt],
    answers: Sequence[Answer],
    baseline: Sequence[Answer],
) -> list[float]:
    """How sure the judge is that each answer is better than the baseline's: 0.5 for one as good.

    Its replies are kept beside `settings.out`, and not asked for again.
    """
    grades = [0.5] * len(prompts)

    async def grade_one(place: int) -> None:
        plain = baseline[place]
        asked = SampledPrompt(
            id=str(place),
            messages=({"role": "user", "content": prompts[place].text},),
            samples=(),
            baseline=Plain(text=plain.text, tokens=plain.tokens),
        )
        grades[place] = await judge.quality(asked, answers[place].text)

    async with AsyncExitStack() as stack:
        judge = await open_judge(settings, stack)
        await for_each(range(len(prompts)), grade_one, settings.in_flight)
    return grades


def outcome(
    prompts: Sequence[Prompt],
    answers: Sequence[Answer],
    grades: Sequence[float],
    baseline: tuple[Sequence[Answer], Sequence[float]] | None = None,
) -> dict[str, Any]:
    """The figures of a model, for all prompts and for each family.

    Args:
        prompts: What was asked.
        answers: One for each prompt.
        grades: How good each of them is, from 0 to 1.
        baseline: Answers and grades of the sequential model; None: these are the sequential model's own.
    """
    families = list(dict.fromkeys(prompt.family for prompt in prompts))

    def figures(wanted: Callable[[Prompt], bool]) -> dict[str, Any]:
        places = [place for place, prompt in enumerate(prompts) if wanted(prompt)]
        own = _own([answers[i] for i in places], [grades[i] for i in places])
        if baseline is None:
            return own
        plain, plain_grades = baseline
        difference = estimate([100 * (grades[i] - plain_grades[i]) for i in places], fmean)
        return {**own, **_compared([(answers[i], plain[i]) for i in places]), "difference": difference}

    return {
        "all": figures(lambda prompt: True),
        "by_family": {name: figures(lambda prompt, name=name: prompt.family == name) for name in families},
    }


def _own(answers: Sequence[Answer], grades: Sequence[float]) -> dict[str, Any]:
    """What can be said of a model's answers by themselves. Shares and grades in percent."""
    return {
        "prompts": len(answers),
        "score": estimate([100 * grade for grade in grades], fmean),
        "right": share([grade == 1 for grade in grades]),
        "text_tokens": fmean(one.text_tokens for one in answers),
        "tokens": fmean(one.tokens for one in answers),
        "critical_path": fmean(one.critical_path for one in answers),
        "promises": fmean(one.promises for one in answers),
        "parallel": share([one.promises > 0 for one in answers]),
        "synced": share([_syncs(one) for one in answers]),
        "malformed": share([not one.well_formed for one in answers]),
    }


def _compared(pairs: Sequence[tuple[Answer, Answer]]) -> dict[str, Any]:
    """Speed-ups over the baseline, by tokens: geometric means over the prompts."""
    return {
        "theoretical_speedup": estimate(
            [max(1, plain.tokens) / max(1, own.critical_path) for own, plain in pairs]
        ),
        # One more token ends the answer, as in what the baseline generated.
        "length_matched_speedup": estimate(
            [(own.text_tokens + 1) / max(1, own.critical_path) for own, _ in pairs]
        ),
    }


def _wall_clock(runs: Sequence[Run], answers: Sequence[Answer], baseline: Sequence[Answer]) -> dict[str, Any]:
    """The realised speed-ups of answers that were timed alone, over passes and prompts.

    Length-matched: the baseline's seconds, scaled to the length of the model's own text.
    """
    prompts = sorted({run.prompt for run in runs})
    seconds = {
        (prompt, form): geometric_mean([r.seconds for r in runs if (r.prompt, r.form) == (prompt, form)])
        for prompt in prompts
        for form in ("parallel", "baseline")
    }
    speedups = [seconds[prompt, "baseline"] / seconds[prompt, "parallel"] for prompt in prompts]
    lengths = [(answers[i].text_tokens + 1) / max(1, baseline[i].tokens) for i in prompts]
    return {
        "prompts": len(prompts),
        "speedup": estimate(speedups),
        "length_matched_speedup": estimate([s * length for s, length in zip(speedups, lengths, strict=True)]),
        "seconds": {
            form: fmean(seconds[prompt, form] for prompt in prompts) for form in ("parallel", "baseline")
        },
    }


def _syncs(answer: Answer) -> bool:
    return any(isinstance(node, Sync) for node in parse(answer.written).nodes)


def table(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The result as rows: each family, and all."""
    groups: dict[str, dict[str, Any]] = {**result["by_family"], "all": result["all"]}
    return [
        {
            "family": name,
            "prompts": figures["prompts"],
            "score %": format_estimate(figures["score"]),
            "right %": format_estimate(figures["right"]),
            "theoretical": format_estimate(figures.get("theoretical_speedup"), ".2f"),
            "length-matched": format_estimate(figures.get("length_matched_speedup"), ".2f"),
            "text tokens": figures["text_tokens"],
            "parallel %": f"{figures['parallel']['value']:.0f}",
            "synced %": f"{figures['synced']['value']:.0f}",
            "malformed %": f"{figures['malformed']['value']:.1f}",
        }
        for name, figures in groups.items()
    ]


def _run(settings: FrontierSettings) -> None:
    result = asyncio.run(measure(settings))
    print(markdown_table(table(result)))
    if timed := result.get("wall_clock"):
        print(f"\nwall clock over {timed['prompts']} prompts: {format_estimate(timed['speedup'], '.2f')}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write `result.json`, print a table."""
    run_command(
        FrontierSettings, _run, program="frontier", description=__doc__, arguments=arguments, resumes=True
    )
