"""The command: answer, grade, time, write `result.json`, print a table."""

from __future__ import annotations

import asyncio
import json
import sys
from functools import partial
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

import pasta_async.evals.frontier as about
from pasta_async import Sampling
from pasta_async.clock import REAL_CLOCK
from pasta_async.errors import InvalidRequest, PastaError
from pasta_async.evals.answers import Answer, answer_all
from pasta_async.evals.engines import cold_client
from pasta_async.evals.frontier.figures import outcome, wall_clock
from pasta_async.evals.journal import Journal
from pasta_async.evals.progress import progress
from pasta_async.evals.prompts import digest, held_out
from pasta_async.evals.records import environment, markdown_table
from pasta_async.evals.statistics import told
from pasta_async.evals.timing import kept_runs, time_answers, warm_up
from pasta_async.training.synthetic import FAMILIES
from pasta_async.training.synthetic.scoring import grade
from pasta_async.training.trainer.settings import read_command_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.evals.prompts import Prompt
    from pasta_async.evals.timing import Form, Run

__all__ = ["FrontierSettings", "main", "measure", "table"]

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
    n: int = Field(default=50, ge=1, description="held-out prompts of each family")
    timed: int = Field(default=8, ge=0, description="of these, how many of each family are timed alone")
    passes: int = Field(default=1, ge=1, description="how often they are timed")
    families: tuple[str, ...] = Field(default=FAMILIES, description="kinds of prompts")
    seed: int = Field(default=0, description="the first seed of the held-out prompts")
    max_tokens: int = Field(default=1024, ge=1, description="of an answer, tags counted")
    together: int = Field(default=32, ge=1, description="answers at the same time, where nothing is timed")


def measure(settings: FrontierSettings) -> dict[str, Any]:
    """Measure one model; the result, as it is written to `result.json`.

    Raises:
        PastaError: The backend or the baseline's result cannot be used.
    """
    return asyncio.run(_measure(settings))


async def _measure(settings: FrontierSettings) -> dict[str, Any]:
    prompts = held_out(settings.families, settings.n, first_seed=settings.seed)
    sampling = Sampling(max_tokens=settings.max_tokens)
    asked = {"prompts": digest(prompt.text for prompt in prompts), "max_tokens": settings.max_tokens}
    baseline = None if settings.baseline is None else _read_baseline(settings.baseline, asked)
    form: Form = "baseline" if baseline is None else "parallel"
    identity = {"benchmark": "frontier", "backend": settings.backend, "form": form, **asked}
    where = environment()
    async with cold_client(settings.backend) as client:
        with Journal(settings.out / "answers.jsonl", identity) as journal:
            texts = [prompt.text for prompt in prompts]
            answers = await answer_all(
                client, texts, journal, sampling=sampling, together=settings.together, forms=[form]
            )
    found = outcome(prompts, answers, _grades(prompts, answers), baseline and _graded(prompts, baseline[1]))
    result = {**identity, "environment": where, **found}
    if baseline is not None and settings.timed:
        timed = prompts[: settings.timed * len(settings.families)]
        runs = await _time(settings, timed, baseline[0], sampling, identity)
        result["wall_clock"] = wall_clock(runs, answers, baseline[1])
    (settings.out / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


def _graded(prompts: Sequence[Prompt], answers: Sequence[Answer]) -> tuple[Sequence[Answer], list[float]]:
    return answers, _grades(prompts, answers)


def _grades(prompts: Sequence[Prompt], answers: Sequence[Answer]) -> list[float]:
    return [
        grade(prompt.example, answer.text) if prompt.example is not None else 0.0
        for prompt, answer in zip(prompts, answers, strict=True)
    ]


def _read_baseline(folder: Path, asked: dict[str, Any]) -> tuple[str, list[Answer]]:
    """The backend of the sequential model, and its answers.

    Raises:
        InvalidRequest: The folder has no result, or one for other prompts.
    """
    try:
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        lines = (folder / "answers.jsonl").read_text(encoding="utf-8").splitlines()
        differ = [name for name, value in asked.items() if result[name] != value]
        answers = sorted((Answer(**json.loads(line)) for line in lines[1:]), key=lambda one: one.prompt)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InvalidRequest(f"{folder} is no result of a sequential model: {error!r}") from error
    if differ or result["form"] != "baseline":
        wrong = ", ".join(differ) or "it is of a model that writes tags"
        raise InvalidRequest(f"{folder} cannot be compared with ({wrong}): measure it anew with equal flags")
    return str(result["backend"]), answers


async def _time(
    settings: FrontierSettings,
    prompts: Sequence[Prompt],
    baseline: str,
    sampling: Sampling,
    identity: dict[str, Any],
) -> list[Run]:
    """Both models' answers one at a time, in the order A B B A. Cancelling it closes both."""
    warm = held_out(settings.families, 1, first_seed=_WARM_UP_SEED)
    measured = {**identity, "benchmark": "frontier, timed", "baseline": baseline, "timed": len(prompts)}
    with Journal(settings.out / "timed.jsonl", measured) as journal:
        if len(kept_runs(journal)) == 2 * settings.passes * len(prompts):
            return kept_runs(journal)
        with progress(2 * settings.passes * len(prompts), "timed answers") as done:
            runs: list[Run] = []
            for number in range(settings.passes):
                async with cold_client(settings.backend) as client, cold_client(baseline) as plain:
                    timed = partial(time_answers, clock=REAL_CLOCK, number=number, sampling=sampling)
                    await warm_up(client, warm, sampling)
                    await warm_up(plain, warm, sampling)
                    runs += await timed(client, prompts, baseline=plain, journal=journal, done=done)
    return runs


def table(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The result as rows: each family, and all."""
    groups: dict[str, dict[str, Any]] = {**result["by_family"], "all": result["all"]}
    return [
        {
            "family": name,
            "prompts": figures["prompts"],
            "score %": told(figures["score"]),
            "right %": told(figures["right"]),
            "theoretical": told(figures.get("theoretical_speedup"), ".2f"),
            "length-matched": told(figures.get("length_matched_speedup"), ".2f"),
            "text tokens": figures["text_tokens"],
            "parallel %": f"{figures['parallel']['value']:.0f}",
            "synced %": f"{figures['synced']['value']:.0f}",
            "malformed %": f"{figures['malformed']['value']:.1f}",
        }
        for name, figures in groups.items()
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; what does not fit ends it with status 1 and the reason, Ctrl-C with 130."""
    settings = read_command_line(FrontierSettings, "pasta_async.evals.frontier", about.__doc__, arguments)
    try:
        result = measure(settings)
    except PastaError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        sys.exit(130)
    print(markdown_table(table(result)))
    if timed := result.get("wall_clock"):
        print(f"\nwall clock over {timed['prompts']} prompts: {told(timed['speedup'], '.2f')}")


if __name__ == "__main__":
    main()
