r"""Answers timed: one model writes every prompt's answer plainly and in parallel.

    python -m pasta_async.evals.speed --backend local:pasta-smol --prompts alpaca_eval.jsonl --sample 100 \
        --temperature 0.6 --max-tokens 500 --threads 1 --out speed.jsonl

One answer at a time is written, in the order A B B A over the prompts, from an empty prefix cache, behind one
prompt that is answered but not counted. Where both forms begin with the same tokens (a chat template may mark
the parallel one at its end), the form that comes second finds these in the cache. A model that was not
trained writes outlines in parallel: its plain answer, and the items of its lists side by side. Further passes
are further answers for `quality`, and find their prompts in the cache.

With --out every answer is kept as it comes, and the same command goes on where it was broken off.
`pasta_async.evals.quality --answers FILE` judges the answers. If that is all that they are for, --together
writes many at once, and nothing is timed. docs/evaluation.md says what the figures mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any, Self

from pydantic import Field, model_validator

from pasta_async import Client, Limits, Sampling
from pasta_async.cli.command import Command, Count, command
from pasta_async.evals.answers import (
    Answer,
    MeasureSettings,
    ask,
    cold_client,
    in_all_methods,
    of_method,
    read_prompts,
    take_turns,
)
from pasta_async.evals.report import grouped, markdown_table, transposed
from pasta_async.evals.statistics import Estimate, estimate, percentage
from pasta_async.lang import STYLE_CODES
from pasta_async.results import sequential_tokens
from pasta_async.training.jobs import Journal
from pasta_async.training.sample import answer_seed

SAME_ANSWER = "times sooner than the same answer in sequence"
WARM_UP = "Name two kinds of fruit, and say where each of them grows."


class SpeedSettings(MeasureSettings):
    """Settings of a measurement."""

    prompts: Path = Field(description="a prompt a line, or .jsonl with `instruction` or `prompt`")
    plain_only: bool = Field(default=False, description="no parallel answers; nothing is timed")
    passes: Count = Field(default=1, description="answers of each form to a prompt")
    temperature: float = Field(default=0.0, ge=0, description="0 is greedy")
    seed: int = Field(default=0, ge=0, description="every answer has its own, made of this one")
    max_tokens: Count = Field(default=1024, description="of an answer, tags counted")
    together: Count = Field(default=1, description="answers at the same time; with more nothing is timed")

    @property
    def is_timed(self) -> bool:
        """True if the answers tell of speed."""
        return self.together == 1 and not self.plain_only

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if not self.is_timed and self.out is None:
            raise ValueError("name a file with --out: nothing is timed, so the answers are all that there is")
        return self


async def measure(
    client: Client,
    prompts: Sequence[str],
    settings: SpeedSettings,
    journal: Journal | None = None,
) -> list[Answer]:
    """Have every prompt answered in both forms, or plainly alone; see `take_turns` and `ask`.

    Answers that are timed begin with one of each form that does not count. Cancelling it cancels the answers
    under way.
    """
    forms = ["baseline"] if settings.plain_only else ["baseline", "parallel"]
    seeded = settings.temperature > 0 and (await client.connect()).honours_seeds

    async def write(question: str, index: int, form: str, number: int) -> Answer:
        sampling = Sampling(
            max_tokens=settings.max_tokens,
            temperature=settings.temperature,
            seed=answer_seed(settings.seed, question, number) if seeded else None,
        )
        return await ask(client, Answer(index, form, number, question=question), sampling=sampling)

    async def warm_up() -> None:
        for form in forms:
            await write(WARM_UP, 0, form, 0)

    return await take_turns(
        lambda index, form, number: write(prompts[index], index, form, number),
        len(prompts),
        forms,
        passes=settings.passes,
        together=settings.together,
        journal=journal,
        warm_up=warm_up if settings.is_timed else None,
    )


def pairs(rows: Sequence[Answer], method: str, base: str) -> list[tuple[Answer, Answer]]:
    """Answers by two methods to the same prompt in the same pass, of those that both tell of speed.

    Both have tokens, and no limit ended one of them.
    """
    both = in_all_methods(rows, (method, base))
    return [
        (answer, other)
        for answer, other in zip(both[method], both[base], strict=True)
        if all(row.tokens and not row.ended_by_length for row in (answer, other))
    ]


def grouped_mean(values: Iterable[tuple[int, float]]) -> Estimate | None:
    """Geometric mean over groups, prompts for instance, of values, each with its group's number.

    A group has the geometric mean of its own values, a prompt that of its passes.
    """
    groups = grouped(values, lambda value: value[0]).values()
    means = [geometric_mean(value for _, value in group) for group in groups]
    return estimate(means) if means else None


def speedup(rows: Sequence[Answer], method: str, base: str = "baseline") -> Estimate | None:
    """Seconds of the base / seconds of the method, prompt by prompt; None where no pair can be compared."""
    return grouped_mean(
        (answer.prompt, other.seconds / answer.seconds) for answer, other in pairs(rows, method, base)
    )


def counted_speedup(rows: Sequence[Answer]) -> Estimate | None:
    """The theoretical speed-up: geometric mean over prompts of `sequential_tokens` / critical path."""
    return grouped_mean(
        (answer.prompt, sequential_tokens(answer.text_tokens, other.tokens) / answer.critical_path)
        for answer, other in pairs(rows, "parallel", "baseline")
    )


def describe_costs(rows: Sequence[Answer]) -> dict[str, Any]:
    """Mean costs of answers: seconds, tokens, requests, the use of the prefix cache, the waits of forks.

    Answers without tokens are left out: their prompts were too long. A mean over no answer is None.
    """
    rows = [row for row in rows if row.tokens]
    cached = sum(row.cached_tokens for row in rows)
    prefilled = sum(row.prefilled_tokens for row in rows)

    def mean(values: Sequence[float]) -> float | None:
        return fmean(values) if values else None

    return {
        "seconds": mean([row.seconds for row in rows]),
        "first token ms": mean([1000 * row.first_token for row in rows]),
        "tokens": mean([row.tokens for row in rows]),
        "critical path": mean([row.critical_path for row in rows]),
        "requests": mean([row.requests for row in rows]),
        "prefilled": mean([row.prefilled_tokens for row in rows]),
        "cached %": 100 * cached / (cached + prefilled) if cached + prefilled else None,
        "ms from a fork to its first token": mean(
            [1000 * seconds for row in rows for seconds in row.fork_seconds]
        ),
    }


def describe(rows: Sequence[Answer]) -> dict[str, Any]:
    """Figures of parallel answers beside the plain ones: estimates over prompts, means, and counts.

    Answers without tokens are counted alone: their prompts were too long.
    """
    plain, answers = (
        [row for row in of_method(rows, form) if row.tokens] for form in ("baseline", "parallel")
    )
    whole = [row for row in answers if not row.ended_by_length]
    # The pace of plain answers: seconds for a token. Short answers, which are mostly prefill, count little.
    paced = [row for row in plain if not row.ended_by_length]
    pace = sum(row.seconds for row in paced) / max(1, sum(row.critical_path for row in paced))
    plain_costs = describe_costs(plain)
    prompts = [row.prompt for row in answers]

    def ratio(value: Callable[[Answer], float], rows: Sequence[Answer] = whole) -> Estimate | None:
        return grouped_mean((row.prompt, value(row)) for row in rows)

    def token_ms(rows: Sequence[Answer]) -> Estimate | None:
        """Milliseconds for a token behind the first one, which waits for the prompt's prefill."""
        longer = [row for row in rows if row.critical_path > 1]
        return ratio(lambda row: 1000 * (row.seconds - row.first_token) / (row.critical_path - 1), longer)

    def answers_that(holds: Callable[[Answer], bool]) -> Estimate | None:
        return percentage([holds(row) for row in answers], clusters=prompts) if answers else None

    return {
        "prompts": len({*prompts}),
        "too long prompts": len({row.prompt for row in of_method(rows, "parallel") if not row.tokens}),
        SAME_ANSWER: ratio(lambda row: (row.text_tokens + 1) * pace / row.seconds) if pace else None,
        "times sooner than the plain answer": speedup(rows, "parallel"),
        "tokens of its text / critical path": ratio(lambda row: (row.text_tokens + 1) / row.critical_path),
        "tokens of the plain answer / critical path": grouped_mean(
            (row.prompt, other.tokens / row.critical_path)
            for row, other in pairs(rows, "parallel", "baseline")
        ),
        "ms a token of the critical path": token_ms(answers),
        "ms a token, plain": token_ms(plain),
        **describe_costs(answers),
        "seconds, plain": plain_costs["seconds"],
        "first token ms, plain": plain_costs["first token ms"],
        "answers with promises, %": answers_that(lambda row: row.promises > 0),
        "answers without a fault in their tags, %": answers_that(
            lambda row: STYLE_CODES.issuperset(row.diagnostics)
        ),
        "ended by length": sum(row.ended_by_length for row in answers),
        "ended by length, plain": sum(row.ended_by_length for row in plain),
    }


def summarise(rows: Sequence[Answer]) -> dict[str, dict[str, Any]]:
    """Figures of all prompts, and of those whose parallel answer has promises."""
    columns = {"parallel": describe(rows)}
    promised = {(row.prompt, row.number) for row in of_method(rows, "parallel") if row.promises}
    if with_promises := [row for row in rows if (row.prompt, row.number) in promised]:
        columns["parallel, with promises"] = describe(with_promises)
    return columns


async def _run(settings: SpeedSettings) -> str:
    prompts = read_prompts(settings.prompts, settings.sample)
    limits = Limits(client_threads=max(64, 4 * settings.together), timeout=None)
    async with (
        settings.journal("speed", prompts) as journal,
        cold_client(settings.backend, limits, **settings.backend_options) as client,
    ):
        rows = await measure(client, prompts, settings, journal)
    if not settings.is_timed:
        return f"{len(rows)} answers are written"
    return markdown_table(transposed(summarise(rows)))


main: Command = command(SpeedSettings, _run, "speed", __doc__, resumes=True)

if __name__ == "__main__":
    main()
