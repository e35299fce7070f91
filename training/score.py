"""Score sampled answers for stage 2: `python -m pasta_async.training.score`.

Writes the theoretical speed-up and the quality of each sample. Their weight is chosen later, when a model is
trained, so that another one needs no new judgement. The judge is the synthetic task's program (`task`); or a
model behind an OpenAI-compatible endpoint that returns log-probabilities (`http://host:30000/v1`), whose
replies are kept in a journal, so that the same command resumes an interrupted run; or your own
(`package.module:name`, what makes a `pasta_async.training.preference.judges.Judge`).
"""

from __future__ import annotations

import asyncio
import importlib
import math
import re
from collections import Counter, defaultdict
from contextlib import AsyncExitStack
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from statistics import fmean, geometric_mean
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, Field, model_validator

from pasta_async.cli.command import run_command
from pasta_async.errors import BackendError, InvalidRequestError
from pasta_async.jobs import Journal, for_each, progress
from pasta_async.training.corpus.records import write_records
from pasta_async.training.endpoint import Endpoint, EndpointSettings, FailureBudget
from pasta_async.training.preference.judges import PairwiseJudge, TaskJudge
from pasta_async.training.preference.samples import Score, read_samples, value

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pasta_async.training.preference.judges import Judge
    from pasta_async.training.preference.samples import SampledPrompt

__all__ = ["WEIGHTS", "ScoreSettings", "Summary", "main", "open_judge", "score"]

WEIGHTS: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, math.inf)
"""The weights of quality that the paper trains with (section 4)."""

_OWN = re.compile(r"[\w.]+:\w+")


class ScoreSettings(EndpointSettings):
    """How to score. Every field is a flag of the command line."""

    samples: Path = Field(description="file of samples")
    out: Path = Field(description="file of scores, JSON lines; the judge's journal stands beside it")
    judge: str = Field(description="task; an endpoint, http://host:30000/v1; or package.module:name")
    judge_model: str = Field(default="", description="name of the model at the endpoint")

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if self.remote and not self.judge_model:
            raise ValueError("name the endpoint's model with --judge-model")
        if not self.remote and self.judge != "task" and not _OWN.fullmatch(self.judge):
            raise ValueError(
                f"--judge is task, http://host:30000/v1, or package.module:name, not {self.judge!r}"
            )
        return self

    @property
    def remote(self) -> bool:
        """Whether the judge is behind an endpoint."""
        return self.judge.startswith(("http://", "https://"))


class Summary(BaseModel):
    """The figures of a run."""

    prompts: int
    samples: int
    well_formed: float
    """Share of the samples."""
    scored: int
    """Samples with a score."""
    mean_quality: float
    geometric_mean_speedup: float
    """Theoretical, against the baseline's answer."""
    quality_spread: float
    """Best minus worst of a prompt, mean over the prompts."""
    speedup_spread: float
    ties: dict[str, int]
    """Prompts whose samples all have the same value, for each weight of quality: they teach nothing."""
    failures: dict[str, int]
    """Why answers have no score, and how many; the same command asks again."""
    requests: int = 0
    """Sent to the judge by this run, without the client's own retries."""
    resumed: int = 0
    """Replies that were in the journal already."""
    tokens: int = 0
    """Of these requests and their replies."""


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; see `run_command`, also for how it ends."""
    run_command(
        ScoreSettings,
        lambda settings: print(asyncio.run(score(settings)).model_dump_json(indent=1)),
        program="pasta_async.training.score",
        description=__doc__,
        arguments=argv,
        resumes=True,
    )


async def score(settings: ScoreSettings) -> Summary:
    """Score, and write the file of scores. Cancelling it loses only the requests under way.

    The same answer to a prompt is judged once. Samples that ended in an error have no score.

    Raises:
        PastaError: The samples or the judge cannot be used; replies that arrived are kept.
    """
    prompts = await asyncio.to_thread(read_samples, settings.samples)
    failures: Counter[str] = Counter()
    async with AsyncExitStack() as stack:
        judge = await open_judge(settings, stack)
        qualities = await _judged(judge, prompts, settings.in_flight, failures)
    scores = [
        Score(
            id=prompt.id,
            number=sample.number,
            speedup=prompt.baseline.tokens / sample.critical_path if sample.critical_path else 1.0,
            quality=qualities[prompt.id, sample.text],
        )
        for prompt in prompts
        for sample in prompt.samples
        if not sample.error and (prompt.id, sample.text) in qualities
    ]
    write_records(settings.out, scores)
    summary = _summary(prompts, scores, failures)
    if isinstance(judge, PairwiseJudge):
        costs = {"requests": judge.requests, "resumed": judge.resumed, "tokens": judge.tokens}
        summary = summary.model_copy(update=costs)
    return summary


async def _judged(
    judge: Judge, prompts: Sequence[SampledPrompt], in_flight: int, failures: Counter[str]
) -> dict[tuple[str, str], float]:
    """The quality of every different answer, by the prompt's id and the text."""
    qualities: dict[tuple[str, str], float] = {}
    different = {(p.id, s.text): p for p in prompts for s in p.samples if not s.error}
    budget = FailureBudget(proven=False)
    with progress(len(different), "answers") as advance:

        async def work(one: tuple[tuple[str, str], SampledPrompt]) -> None:
            (id_, text), prompt = one
            try:
                qualities[id_, text] = await judge.quality(prompt, text)
                budget.succeeded()
            except BackendError as error:
                budget.failed(error)
                failures[f"{type(error).__name__}: {error}"] += 1
            advance()

        await for_each(different.items(), work, in_flight)
    return qualities


async def open_judge(settings: ScoreSettings, stack: AsyncExitStack) -> Judge:
    """The judge that the settings name; what it opens is closed by the stack.

    Raises:
        InvalidRequestError: There is no such judge, or its journal beside `settings.out` is another one's.
    """
    if settings.judge == "task":
        return TaskJudge()
    if not settings.remote:
        return _own(settings.judge)
    path = settings.out.with_name(f"{settings.out.stem}.journal{settings.out.suffix}")
    identity = PairwiseJudge.journal_identity(settings.judge, settings.judge_model)
    journal = stack.enter_context(Journal(path, identity))
    fields = {"temperature": 0.0, "max_tokens": 1, "logprobs": True, "top_logprobs": 5}
    endpoint = Endpoint(settings.judge, settings.judge_model, settings, **fields)
    return PairwiseJudge(await stack.enter_async_context(endpoint), journal)


def _own(name: str) -> Judge:
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)()
    except (ImportError, AttributeError) as error:
        raise InvalidRequestError(f"--judge {name}: {error}") from error


def _summary(prompts: Sequence[SampledPrompt], scores: Sequence[Score], failures: Counter[str]) -> Summary:
    by_prompt: defaultdict[str, list[Score]] = defaultdict(list)
    for one in scores:
        by_prompt[one.id].append(one)

    def spreads(weight: float) -> list[float]:
        values = ([value(one, weight) for one in own] for own in by_prompt.values())
        return [max(own) - min(own) for own in values]

    samples = [sample for prompt in prompts for sample in prompt.samples]
    return Summary(
        prompts=len(prompts),
        samples=len(samples),
        well_formed=_mean(sample.well_formed for sample in samples),
        scored=len(scores),
        mean_quality=_mean(one.quality for one in scores),
        geometric_mean_speedup=geometric_mean([one.speedup for one in scores if one.speedup > 0] or [1.0]),
        quality_spread=_mean(spreads(math.inf)),
        speedup_spread=_mean(spreads(0.0)),
        ties={f"{weight:g}": spreads(weight).count(0.0) for weight in WEIGHTS},
        failures=dict(failures.most_common()),
    )


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return fmean(found) if found else 0.0


if __name__ == "__main__":
    main()
