r"""Answers timed: one model writes every prompt's answer in parallel and plainly.

    python -m pasta_async.evals.speed --backend http://127.0.0.1:30000 --prompts prompts.txt --out speed.jsonl
    python -m pasta_async.evals.speed --backend local:pasta-smol --prompts alpaca_eval.jsonl --sample 100 \
        --passes 1 --temperature 0.6 --max-tokens 500 --threads 1 --out speed.jsonl

One answer at a time is written. The order goes A B B A over the prompts, the other way round in the next
pass. Each pass begins with an empty prefix cache and one prompt that is answered but not counted. Where both
forms begin with the same tokens (a chat template may mark the parallel one at its end), the form that comes
second finds these in the cache.

The first figure is "times sooner than the same answer in sequence": the parallel answer's own text at the
pace of the plain answers, over the time that it took. So an answer is not sooner for being short. An answer
that a limit ended has no speed-up. `methods --llama-cpp` compares given answers with llama.cpp's.

With --out every answer is kept as it comes, and the same command goes on where it was broken off.
`pasta_async.evals.quality --answers FILE` judges the answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from pydantic import Field

from pasta_async import Client, Sampling
from pasta_async.backends import BackendOptions
from pasta_async.backends.options import DType
from pasta_async.cli.command import Command, CommandSettings, Count, command
from pasta_async.evals.answers import (
    FORMS,
    Answer,
    Answering,
    Drawn,
    RawRows,
    ask,
    cold_client,
    digest,
    of_method,
    read_prompts,
    take_turns,
)
from pasta_async.evals.report import (
    grouped,
    markdown_table,
    opened_journal,
    transposed,
)
from pasta_async.evals.statistics import Estimate, estimate, share
from pasta_async.jobs import Journal
from pasta_async.lang import STYLE_CODES
from pasta_async.results import sequential_tokens
from pasta_async.training.identity import weights_of

SAME_ANSWER = "times sooner than the same answer in sequence"
WARM_UP = "Name two kinds of fruit, and say where each of them grows."


class SpeedSettings(CommandSettings):
    """Settings of a measurement."""

    backend: str = Field(description="as for pasta_async.generate")
    prompts: Path = Field(description="a prompt a line, or .jsonl with `instruction` or `prompt`")
    sample: Drawn = None
    passes: Count = Field(default=2, description="number of times that all of it is done")
    temperature: float = Field(default=0.0, ge=0, description="0 is greedy")
    seed: int = Field(default=0, ge=0, description="of the first pass; each further one has the next")
    max_tokens: Count = Field(default=1024, description="of an answer, tags counted")
    dtype: DType | None = Field(default=None, description="local: float32, int8, ...; see `open_backend`")
    threads: int | None = Field(default=None, ge=1, description="local: CPU threads; default: all")
    out: RawRows = None

    def sampling(self, number: int) -> Sampling:
        """Sampling of the answers in a pass, which has a seed of its own."""
        return Sampling(max_tokens=self.max_tokens, temperature=self.temperature, seed=self.seed + number)


async def measure(
    opened: Callable[[], AbstractAsyncContextManager[Client]],
    prompts: Sequence[str],
    settings: SpeedSettings,
    *,
    warm: Sequence[str] = (),
    journal: Journal | None = None,
) -> list[Answer]:
    """Time every prompt in both forms; see `take_turns` and `ask`.

    Prompts of `warm` are answered first in each pass, on the client that `opened` gives, and not counted.
    Cancelling it cancels the answer under way and closes the client.
    """

    @asynccontextmanager
    async def warmed_up() -> AsyncGenerator[Answering]:
        async with opened() as client:

            async def answer(index: int, method: str, number: int) -> Answer:
                row = Answer(index, method, number, question=prompts[index])
                return await ask(client, row, sampling=settings.sampling(number))

            for prompt, form in product(warm, FORMS):
                await ask(client, Answer(0, form, question=prompt), sampling=settings.sampling(0))
            yield answer

    return await take_turns(warmed_up, len(prompts), FORMS, passes=settings.passes, journal=journal)


def pairs(rows: Sequence[Answer], method: str, base: str) -> list[tuple[Answer, Answer]]:
    """Answers by two methods to the same prompt in the same pass, without those of which a limit ended one.

    Raises:
        ValueError: One of them is missing somewhere.
    """
    ours = {(row.prompt, row.number): row for row in of_method(rows, method)}
    theirs = {(row.prompt, row.number): row for row in of_method(rows, base)}
    if ours.keys() != theirs.keys():
        raise ValueError(f"{method} and {base} have to be measured at every prompt in every pass")
    both = ((ours[key], theirs[key]) for key in sorted(ours))
    return [pair for pair in both if comparable(*pair)]


def comparable(answer: Answer, other: Answer) -> bool:
    """True if two answers tell of speed: both have tokens and ended by themselves."""
    return all(one.tokens and not one.ended_by_length for one in (answer, other))


def mean_by_prompt(values: Iterable[tuple[int, float]]) -> Estimate | None:
    """Geometric mean over prompts of values, each with its prompt; a prompt has the mean of its passes."""
    by_prompt = grouped(values, lambda value: value[0])
    means = [geometric_mean(value for _, value in pairs_of_prompt) for pairs_of_prompt in by_prompt.values()]
    return estimate(means) if means else None


def speedup(rows: Sequence[Answer], method: str = "parallel", base: str = "baseline") -> Estimate | None:
    """Seconds of the base / seconds of the method, prompt by prompt; None where no pair can be compared."""
    return mean_by_prompt(
        (answer.prompt, other.seconds / answer.seconds) for answer, other in pairs(rows, method, base)
    )


def counted_speedup(answers: Sequence[Answer], plain: Sequence[Answer]) -> Estimate | None:
    """The theoretical speed-up: geometric mean over prompts of `sequential_tokens` / critical path.

    Both have the same order. Pairs of which a limit ended one answer are left out.
    """
    return mean_by_prompt(
        (answer.prompt, sequential_tokens(answer.text_tokens, other.tokens) / answer.critical_path)
        for answer, other in zip(answers, plain, strict=True)
        if comparable(answer, other)
    )


def describe_costs(rows: Sequence[Answer]) -> dict[str, Any]:
    """Mean costs of answers: seconds, tokens, requests, and the use of the prefix cache."""
    cached = fmean(row.cached_tokens for row in rows)
    prefilled = fmean(row.prefilled_tokens for row in rows)
    return {
        "seconds": fmean(row.seconds for row in rows),
        "first token ms": 1000 * fmean(row.first_token for row in rows),
        "tokens": fmean(row.tokens for row in rows),
        "critical path": fmean(row.critical_path for row in rows),
        "requests": fmean(row.requests for row in rows),
        "prefilled": prefilled,
        "cached %": 100 * cached / max(1, cached + prefilled),
    }


def describe(rows: Sequence[Answer]) -> dict[str, Any]:
    """Figures of some prompts by name: estimates with intervals over prompts, means, and counts as text."""
    plain = of_method(rows, "baseline")
    parallel = of_method(rows, "parallel")
    whole = [row for row in parallel if row.tokens and not row.ended_by_length]
    # The pace of plain answers: seconds for a token. Short answers, which are mostly prefill, count little.
    pace = sum(row.seconds for row in plain) / max(1, sum(row.critical_path for row in plain))
    prompts = [row.prompt for row in parallel]

    def ratio(value: Callable[[Answer], float], answers: Sequence[Answer] = whole) -> Estimate | None:
        return mean_by_prompt((row.prompt, value(row)) for row in answers if row.critical_path)

    def token_ms(row: Answer) -> float:
        return 1000 * row.seconds / row.critical_path

    figures: dict[str, Any] = {
        "prompts": len({*prompts}),
        SAME_ANSWER: ratio(lambda row: (row.text_tokens + 1) * pace / row.seconds) if pace else None,
        "times sooner than the plain answer": speedup(rows),
        "tokens of its text / critical path": ratio(lambda row: (row.text_tokens + 1) / row.critical_path),
        "tokens of the plain answer / critical path": mean_by_prompt(
            (row.prompt, other.tokens / row.critical_path)
            for row, other in pairs(rows, "parallel", "baseline")
        ),
        "ms a token of the critical path": ratio(token_ms, parallel),
        "ms a token, plain": ratio(token_ms, plain),
    }
    figures |= describe_costs(parallel)
    figures["seconds, plain"] = fmean(row.seconds for row in plain)
    figures["first token ms, plain"] = 1000 * fmean(row.first_token for row in plain)
    figures["answers with promises, %"] = share([row.promises > 0 for row in parallel], clusters=prompts)
    figures["answers without a fault in their tags, %"] = share(
        [STYLE_CODES.issuperset(row.diagnostics) for row in parallel], clusters=prompts
    )
    figures["ended by length"] = sum(row.ended_by_length for row in parallel)
    figures["ended by length, plain"] = sum(row.ended_by_length for row in plain)
    return figures


def summarise(rows: Sequence[Answer]) -> dict[str, dict[str, Any]]:
    """Figures of all prompts, and of those whose parallel answer has promises."""
    promised = {(row.prompt, row.number) for row in of_method(rows, "parallel") if row.promises}
    groups = {"all prompts": list(rows)}
    if with_promises := [row for row in rows if (row.prompt, row.number) in promised]:
        groups["with promises"] = with_promises
    return {name: describe(answers) for name, answers in groups.items()}


def _run(settings: SpeedSettings) -> str:
    prompts = read_prompts(settings.prompts, settings.sample)
    measured = {
        "benchmark": "speed",
        **settings.model_dump(exclude={"prompts", "sample", "out"}),
        "prompts": digest(prompts),
        "weights": asyncio.run(weights_of(settings.backend)),
    }
    options = BackendOptions()
    if settings.dtype:
        options["dtype"] = settings.dtype
    if settings.threads:
        options["threads"] = settings.threads
    with opened_journal(settings.out, measured) as journal:
        opened = partial(cold_client, settings.backend, **options)
        rows = asyncio.run(measure(opened, prompts, settings, warm=[WARM_UP], journal=journal))
    return markdown_table(transposed(summarise(rows)))


main: Command = command(SpeedSettings, _run, "speed", __doc__, resumes=True)

if __name__ == "__main__":
    main()
