"""Measure one model: answers, grades, times."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pasta_async import Sampling
from pasta_async.clock import REAL_CLOCK
from pasta_async.errors import InvalidRequestError
from pasta_async.evals.answers import Answer, answer_all
from pasta_async.evals.engines import cold_client
from pasta_async.evals.frontier.figures import outcome, wall_clock
from pasta_async.evals.frontier.grading import compared, facts
from pasta_async.evals.prompts import digest, held_out, read_prompts
from pasta_async.evals.records import environment
from pasta_async.evals.timing import kept_runs, time_answers, warm_up
from pasta_async.jobs import Journal, progress
from pasta_async.training.score import ScoreSettings
from pasta_async.training.synthetic import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.evals.prompts import Prompt
    from pasta_async.evals.timing import Form, Run

__all__ = ["FrontierSettings", "measure"]

_WARM_UP_SEED = 1_000_000
"""Where the prompts come from that do not count: far from those that do."""


class FrontierSettings(BaseModel):
    """What is measured. Every field is a flag of the command line."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

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
    grades = await _grades(settings, prompts, answers, baseline)
    plain = baseline and (baseline.answers, await _grades(settings, prompts, baseline.answers, None))
    result = {**identity, "judge": settings.judge, "environment": where}
    result |= outcome(prompts, answers, grades, plain)
    if baseline is not None and settings.timed:
        runs = await _time(settings, prompts[: settings.timed], baseline.backend, sampling, identity)
        result["wall_clock"] = wall_clock(runs, answers, baseline.answers)
    (settings.out / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


async def _grades(
    settings: FrontierSettings,
    prompts: Sequence[Prompt],
    answers: Sequence[Answer],
    baseline: _Baseline | None,
) -> list[float]:
    if settings.judge == "task":
        return facts(prompts, answers)
    if baseline is None:  # as good as itself
        return [0.5] * len(answers)
    return await compared(settings.scoring(), prompts, answers, baseline.answers)


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
            f"{folder} cannot be compared with ({wrong}): measure it anew with equal flags"
        )
    return _Baseline(str(result["backend"]), answers)


async def _time(
    settings: FrontierSettings,
    prompts: Sequence[Prompt],
    baseline: str,
    sampling: Sampling,
    identity: dict[str, Any],
) -> list[Run]:
    """Both models' answers one at a time, in the order A B B A. Cancelling it closes both."""
    warm = held_out(FAMILIES, 1, first_seed=_WARM_UP_SEED)
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
