"""How much sooner an answer comes: baseline / parallel wall clock, beside the theoretical speed-up.

    python -m pasta_async.evals.speed --backend local: --n 20
    python -m pasta_async.evals.speed --backend http://127.0.0.1:30000 --n 5 --families describe
    python -m pasta_async.evals.speed --backend local:FOLDER --documents documents.jsonl --out speed.jsonl

One model answers every prompt in both forms: in parallel, and as the baseline, without tags. The order goes
A B B A over the prompts, the other way round in the next pass. Each pass begins with a cold prefix cache and
a few answers that do not count, so no answer finds its own text there.

With --documents the engine is made to write given answers (pasta_async.evals.forcing): real lengths and real
structure with any weights. With --out every run is kept as it comes, and the same command goes on where it
was broken off, from a cold cache again.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from statistics import fmean, geometric_mean
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from pasta_async import Sampling
from pasta_async.clock import REAL_CLOCK
from pasta_async.evals.commands import Command, Settings, command
from pasta_async.evals.documents import (
    WARM_UP_SEED,
    Prompt,
    digest,
    document_prompts,
    held_out,
    read_documents,
    read_prompts,
)
from pasta_async.evals.engines import cold_client
from pasta_async.evals.forcing import FORCED_SAMPLING
from pasta_async.evals.records import markdown_table, measurements, opened_journal
from pasta_async.evals.statistics import estimate, format_estimate, format_share
from pasta_async.jobs import progress
from pasta_async.training.synthetic import FAMILIES

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from pasta_async import Client, Generation
    from pasta_async.clock import Clock
    from pasta_async.jobs import Journal
    from pasta_async.lang import Document

__all__ = [
    "FORMS",
    "SAMPLING",
    "Comparison",
    "Form",
    "Run",
    "SpeedSettings",
    "compare",
    "main",
    "measure",
    "open_forms",
    "run",
    "summarise",
]

Form = Literal["parallel", "baseline"]
"""An answer in PASTA-LANG, or the same model's answer without tags."""

FORMS: tuple[Form, Form] = ("parallel", "baseline")

SAMPLING = Sampling(max_tokens=1024)
"""Greedy."""


@dataclass(frozen=True)
class Run:
    """One timed answer."""

    prompt: int
    """Its place in the list."""
    family: str
    form: Form
    number: int
    """The pass, from 0."""
    seconds: float
    """From the call to the finished answer."""
    first_token: float
    """Seconds until its first token."""
    tokens: int
    """Generated, tags counted."""
    critical_path: int
    cached_tokens: int
    """Context tokens that the prefix cache had, over all requests."""
    prefilled_tokens: int
    requests: int
    well_formed: bool
    """Whether it ended by itself, with nothing to complain about."""
    text: str


async def measure(
    opened: Callable[[], AbstractAsyncContextManager[Mapping[Form, Client]]],
    prompts: Sequence[Prompt],
    *,
    warm: Sequence[Prompt] = (),
    passes: int = 2,
    sampling: Sampling = SAMPLING,
    journal: Journal | None = None,
    clock: Clock = REAL_CLOCK,
) -> list[Run]:
    """Time every prompt in both forms, `passes` times, in the order A B B A; odd passes begin with B.

    Args:
        opened: Gives what answers in each form, with a cold prefix cache; called for each pass that is not
            in the journal.
        prompts: What is asked.
        warm: Prompts that are answered first, and not counted.
        passes: How often all of it is done.
        sampling: How tokens are chosen.
        journal: Keeps every run as it comes; those that it has already are not taken again.
        clock: Measures.

    Cancelling it cancels the answer under way and closes the clients.
    """
    found = {(run.number, run.prompt, run.form): run for run in (Run(**row) for row in measurements(journal))}
    order: list[tuple[int, int, Form]] = [
        (number, index, form)
        for number in range(passes)
        for index in range(len(prompts))
        for form in (FORMS if (number + index) % 2 == 0 else FORMS[::-1])
    ]
    with progress(len(order), "answers", done=len(found)) as done:
        for number in range(passes):
            due = [one for one in order if one[0] == number and one not in found]
            if not due:
                continue
            async with opened() as clients:
                for prompt in warm:
                    for form in FORMS:
                        await _answer(clients[form], prompt, form, sampling)
                for _, index, form in due:
                    began = clock.time()
                    answer = await _answer(clients[form], prompts[index], form, sampling)
                    run = _timed(index, prompts[index], form, number, clock.time() - began, answer)
                    found[number, index, form] = run
                    if journal:
                        journal.append(asdict(run))
                    done()
    return [found[one] for one in order]


@asynccontextmanager
async def open_forms(
    backend: str, *, baseline: str | None = None, documents: Mapping[str, Document] | None = None
) -> AsyncGenerator[Mapping[Form, Client]]:
    """Clients for both forms, with a cold prefix cache; `baseline` is another model that answers as one."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(cold_client(backend, documents))
        plain = client if baseline is None else await stack.enter_async_context(cold_client(baseline))
        yield {"parallel": client, "baseline": plain}


async def _answer(client: Client, prompt: Prompt, form: Form, sampling: Sampling) -> Generation:
    return await client.generate(prompt.text, sampling=sampling, baseline=form == "baseline")


def _timed(
    index: int, prompt: Prompt, form: Form, number: int, seconds: float, generation: Generation
) -> Run:
    usage = generation.usage
    return Run(
        prompt=index,
        family=prompt.family,
        form=form,
        number=number,
        seconds=seconds,
        first_token=generation.threads[0].first_token or generation.elapsed,
        tokens=usage.completion_tokens,
        critical_path=generation.critical_path,
        cached_tokens=usage.cached_tokens,
        prefilled_tokens=usage.prefilled_tokens,
        requests=usage.requests,
        well_formed=generation.finish_reason == "stop" and not generation.diagnostics,
        text=generation.text,
    )


@dataclass(frozen=True)
class Comparison:
    """The two forms of one prompt: geometric means over all passes."""

    prompt: int
    speedup: float
    """Baseline's seconds / parallel's seconds."""
    theoretical: float
    """Baseline's tokens / tokens on the critical path."""


def compare(runs: Iterable[Run]) -> list[Comparison]:
    """Put the two forms of each prompt side by side, in order of the prompts.

    Raises:
        ValueError: A form of a prompt is missing in some pass.
    """
    passes = defaultdict[int, dict[int, dict[str, Run]]](lambda: defaultdict(dict))
    for run in runs:
        passes[run.prompt][run.number][run.form] = run
    return [_compare([*passes[prompt].values()]) for prompt in sorted(passes)]


def _compare(pairs: Sequence[dict[str, Run]]) -> Comparison:
    if any(len(pair) < 2 for pair in pairs):
        raise ValueError("every prompt has to be answered in both forms in every pass")
    both = [(pair["baseline"], pair["parallel"]) for pair in pairs]
    return Comparison(
        prompt=pairs[0]["parallel"].prompt,
        speedup=geometric_mean([baseline.seconds / parallel.seconds for baseline, parallel in both]),
        theoretical=geometric_mean([baseline.tokens / parallel.critical_path for baseline, parallel in both]),
    )


def summarise(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """A row of figures for each family, and one over all; intervals are 95%, over prompts."""
    families = list(dict.fromkeys(run.family for run in runs))
    rows = [_row(family, [run for run in runs if run.family == family]) for family in families]
    return rows if len(families) == 1 else [*rows, _row("all", runs)]


def _row(name: str, runs: Sequence[Run]) -> dict[str, Any]:
    comparisons = compare(runs)
    parallel, baseline = ([run for run in runs if run.form == form] for form in FORMS)
    cached = sum(run.cached_tokens for run in parallel)
    return {
        "family": name,
        "prompts": len(comparisons),
        "speed-up": format_estimate(estimate([c.speedup for c in comparisons]), ".2f"),
        "theoretical": geometric_mean([c.theoretical for c in comparisons]),
        "realised": geometric_mean([c.speedup / c.theoretical for c in comparisons]),
        "baseline ms": 1000 * fmean(run.seconds for run in baseline),
        "parallel ms": 1000 * fmean(run.seconds for run in parallel),
        "first token ms, baseline": 1000 * fmean(run.first_token for run in baseline),
        "first token ms, parallel": 1000 * fmean(run.first_token for run in parallel),
        "tokens": fmean(run.tokens for run in baseline),
        "critical path": fmean(run.critical_path for run in parallel),
        "requests": fmean(run.requests for run in parallel),
        "malformed": format_share(sum(not run.well_formed for run in parallel), len(parallel)),
        "cached": format_share(cached, cached + sum(run.prefilled_tokens for run in parallel)),
    }


class SpeedSettings(Settings):
    """What is timed."""

    backend: str = Field(default="local:", description="as for pasta_async.generate")
    n: int = Field(default=20, ge=1, description="held-out prompts of each family")
    families: tuple[str, ...] = Field(default=FAMILIES, description="of the synthetic task")
    prompts: Path | None = Field(
        default=None, description="instead of these: a file, a prompt a line, or .jsonl with `instruction`"
    )
    documents: Path | None = Field(
        default=None, description="forced decoding: records with prompts and the answers to be written"
    )
    first: int | None = Field(default=None, ge=1, description="take so many of a file's prompts only")
    passes: int = Field(default=2, ge=1, description="how often all of it is done")
    out: Path | None = Field(
        default=None, description="file for the raw figures; one that was broken off is gone on with"
    )


def run(settings: SpeedSettings) -> str:
    """Measure, and keep the raw figures; the table. It runs an event loop of its own."""
    documents = read_documents(settings.documents, settings.first) if settings.documents else None
    prompts, warm = _prompts(settings, documents)
    measured = {
        "benchmark": "speed",
        "backend": settings.backend,
        "forced": documents is not None,
        "prompts": digest(prompt.text for prompt in prompts),
        "passes": settings.passes,
    }
    with opened_journal(settings.out, measured) as journal:
        work = measure(
            partial(open_forms, settings.backend, documents=documents),
            prompts,
            warm=warm,
            passes=settings.passes,
            sampling=FORCED_SAMPLING if documents else SAMPLING,
            journal=journal,
        )
        return markdown_table(summarise(asyncio.run(work)))


def _prompts(
    settings: SpeedSettings, documents: Mapping[str, Document] | None
) -> tuple[list[Prompt], list[Prompt]]:
    """What is measured, and what warms up."""
    if documents:
        prompts = document_prompts(documents)
        return prompts, prompts[:1]
    if settings.prompts:
        prompts = read_prompts(settings.prompts)[: settings.first]
    else:
        prompts = held_out(settings.families, settings.n)
    return prompts, held_out(settings.families, 1, first_seed=WARM_UP_SEED)


main: Command = command(SpeedSettings, run, "speed", __doc__, resumes=True)

if __name__ == "__main__":
    main()
