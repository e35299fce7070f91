"""How much sooner an answer comes: baseline / parallel wall clock, beside the theoretical speed-up.

    python -m pasta_async.evals.speed --backend local: --n 20
    python -m pasta_async.evals.speed --backend http://127.0.0.1:30000 --n 5 --families describe totals
    python -m pasta_async.evals.speed --backend local:FOLDER --documents documents.jsonl --out speed.jsonl

One model answers every prompt in both forms: in parallel, and as the baseline, without tags. The order goes
A B B A over the prompts (or groups of them, with --together), the other way round in the next pass. Each pass
begins with a cold prefix cache and a few answers that do not count, so no answer finds its own text there.

With --documents the engine is made to write given answers (pasta_async.evals.forcing): real lengths and real
structure with any weights. With --out every run is kept as it comes, and the same command goes on where it
was broken off, from a cold cache again.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from statistics import fmean
from time import process_time
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from pasta_async import Sampling
from pasta_async.cli.command import run_command
from pasta_async.clock import REAL_CLOCK
from pasta_async.evals.commands import Settings
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
from pasta_async.evals.statistics import estimate, format_estimate, format_share, geometric_mean
from pasta_async.jobs import progress
from pasta_async.training.synthetic import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from pasta_async import Client, Generation
    from pasta_async.clock import Clock
    from pasta_async.jobs import Journal
    from pasta_async.lang import Document

    Opened = Callable[[], AbstractAsyncContextManager[Client]]

__all__ = [
    "SAMPLING",
    "Comparison",
    "Form",
    "Run",
    "SpeedSettings",
    "compare",
    "kept_runs",
    "main",
    "measure",
    "summarise",
    "time_answers",
    "warm_up",
]

Form = Literal["parallel", "baseline"]
"""An answer in PASTA-LANG, or the same model's answer without tags."""

_ORDER: tuple[tuple[Form, Form], tuple[Form, Form]] = (("parallel", "baseline"), ("baseline", "parallel"))

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
    cpu_seconds: float
    """CPU time of this process meanwhile: the engine's too if it is embedded, else the client's alone."""
    tokens: int
    """Generated, tags counted."""
    critical_path: int
    cached_tokens: int
    """Context tokens that the prefix cache had, over all requests."""
    prefilled_tokens: int
    requests: int
    well_formed: bool
    """Whether it ended by itself, with nothing to complain about."""
    right: bool | None
    text: str


async def measure(
    opened: Opened,
    prompts: Sequence[Prompt],
    *,
    warm: Sequence[Prompt] = (),
    passes: int = 2,
    together: int = 1,
    sampling: Sampling = SAMPLING,
    journal: Journal | None = None,
    clock: Clock = REAL_CLOCK,
) -> list[Run]:
    """Time every prompt in both forms, `passes` times.

    Args:
        opened: Gives a client whose prefix cache is cold; called for each pass.
        prompts: What is asked.
        warm: Prompts that are answered first, and not counted.
        passes: How often all of it is done.
        together: Prompts that are answered at the same time.
        sampling: How tokens are chosen.
        journal: Keeps every run as it comes; those that it has already are not taken again.
        clock: Measures.

    Cancelling it cancels the answers under way and closes the client.
    """
    runs = list[Run]()
    with progress(2 * passes * len(prompts), "answers") as done:
        for number in range(passes):
            async with opened() as client:
                await warm_up(client, warm, sampling)
                runs += await time_answers(
                    client,
                    prompts,
                    clock=clock,
                    number=number,
                    together=together,
                    sampling=sampling,
                    journal=journal,
                    done=done,
                )
    return runs


async def time_answers(
    client: Client,
    prompts: Sequence[Prompt],
    *,
    baseline: Client | None = None,
    clock: Clock,
    number: int = 0,
    together: int = 1,
    sampling: Sampling = SAMPLING,
    journal: Journal | None = None,
    done: Callable[[], None] = lambda: None,
) -> list[Run]:
    """One pass: every prompt in both forms, in the order A B B A; odd passes begin with B.

    Args:
        client: What answers.
        prompts: What is asked.
        baseline: What answers as the baseline, if that is another model.
        clock: Measures.
        number: The pass.
        together: Prompts that are answered at the same time, all in the same form.
        sampling: As the client takes it.
        journal: Keeps the runs; those of this pass that it has are not taken again.
        done: Called after each answer.

    Cancelling it cancels the answers under way.
    """

    async def timed(index: int, form: Form) -> Run:
        began, cpu = clock.time(), process_time()
        answering = baseline if baseline is not None and form == "baseline" else client
        generation = await _answer(answering, prompts[index], form, sampling)
        seconds = (clock.time() - began, process_time() - cpu)
        done()
        return _timed(index, prompts[index], form, number, seconds, generation)

    known = {(run.prompt, run.form): run for run in kept_runs(journal) if run.number == number}
    runs = list[Run]()
    for turn, start in enumerate(range(0, len(prompts), together)):
        group = range(start, min(start + together, len(prompts)))
        for form in _ORDER[(turn + number) % 2]:
            if all((index, form) in known for index in group):
                runs += [known[index, form] for index in group]
                for _ in group:
                    done()
                continue
            async with asyncio.TaskGroup() as tasks:
                answers = [tasks.create_task(timed(index, form)) for index in group]
            runs += [answer.result() for answer in answers]
            if journal:
                for answer in answers:
                    journal.append(asdict(answer.result()))
    return runs


def kept_runs(journal: Journal | None) -> list[Run]:
    """The runs in a journal; beside them it tells where they were taken."""
    return [Run(**row) for row in measurements(journal)]


async def warm_up(client: Client, prompts: Sequence[Prompt], sampling: Sampling = SAMPLING) -> None:
    """Answer some prompts in both forms, untimed. Cancelling it cancels the answer under way."""
    for prompt in prompts:
        for form in _ORDER[0]:
            await _answer(client, prompt, form, sampling)


async def _answer(client: Client, prompt: Prompt, form: Form, sampling: Sampling) -> Generation:
    return await client.generate(prompt.text, sampling=sampling, baseline=form == "baseline")


def _timed(
    index: int,
    prompt: Prompt,
    form: Form,
    number: int,
    seconds: tuple[float, float],
    generation: Generation,
) -> Run:
    usage = generation.usage
    return Run(
        prompt=index,
        family=prompt.family,
        form=form,
        number=number,
        seconds=seconds[0],
        first_token=generation.threads[0].first_token or generation.elapsed,
        cpu_seconds=seconds[1],
        tokens=usage.completion_tokens,
        critical_path=generation.critical_path,
        cached_tokens=usage.cached_tokens,
        prefilled_tokens=usage.prefilled_tokens,
        requests=usage.requests,
        well_formed=generation.finish_reason == "stop" and not generation.diagnostics,
        right=prompt.right(generation.text),
        text=generation.text,
    )


@dataclass(frozen=True)
class Comparison:
    """The two forms of one prompt, over all passes."""

    prompt: int
    family: str
    speedup: float
    """Baseline's seconds / parallel's seconds (geometric mean over the passes)."""
    theoretical: float
    """Baseline's tokens / tokens on the critical path."""


def compare(runs: Iterable[Run]) -> list[Comparison]:
    """Put the two forms of each prompt side by side, in order of the prompts.

    Raises:
        ValueError: A form of a prompt is missing in some pass.
    """
    pairs = defaultdict[tuple[int, int], dict[str, Run]](dict)
    for run in runs:
        pairs[run.prompt, run.number][run.form] = run
    if any(len(pair) < 2 for pair in pairs.values()):
        raise ValueError("every prompt has to be answered in both forms in every pass")
    prompts = sorted({prompt for prompt, _ in pairs})
    return [_compare([pair for (p, _), pair in pairs.items() if p == prompt]) for prompt in prompts]


def _compare(pairs: Sequence[dict[str, Run]]) -> Comparison:
    first = pairs[0]["parallel"]
    return Comparison(
        prompt=first.prompt,
        family=first.family,
        speedup=geometric_mean([pair["baseline"].seconds / pair["parallel"].seconds for pair in pairs]),
        theoretical=geometric_mean(
            [pair["baseline"].tokens / pair["parallel"].critical_path for pair in pairs]
        ),
    )


def summarise(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """A row of figures for each family, and one over all; intervals are 95%, over prompts."""
    families = list(dict.fromkeys(run.family for run in runs))
    rows = [_row(family, [run for run in runs if run.family == family]) for family in families]
    return rows if len(families) == 1 else [*rows, _row("all", runs)]


def _row(name: str, runs: Sequence[Run]) -> dict[str, Any]:
    comparisons = compare(runs)
    parallel, baseline = ([run for run in runs if run.form == form] for form in _ORDER[0])
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
        "step CPU ms, baseline": _step(baseline),
        "step CPU ms, parallel": _step(parallel),
        "tokens": fmean(run.tokens for run in baseline),
        "critical path": fmean(run.critical_path for run in parallel),
        "requests": fmean(run.requests for run in parallel),
        "malformed": format_share(sum(not run.well_formed for run in parallel), len(parallel)),
        "cached": format_share(cached, cached + sum(run.prefilled_tokens for run in parallel)),
        "right, parallel": _right(parallel),
        "right, baseline": _right(baseline),
    }


def _step(runs: Sequence[Run]) -> float:
    """CPU milliseconds of this process for a token of the critical path."""
    return 1000 * sum(run.cpu_seconds for run in runs) / sum(run.critical_path for run in runs)


def _right(runs: Sequence[Run]) -> str:
    known = [run.right for run in runs if run.right is not None]
    return format_share(sum(known), len(known))


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
    together: int = Field(default=1, ge=1, description="prompts that are answered at a time")
    out: Path | None = Field(
        default=None, description="file for the raw figures; one that was broken off is gone on with"
    )


def _run(settings: SpeedSettings) -> None:
    documents = read_documents(settings.documents, settings.first) if settings.documents else None
    prompts, warm = _prompts(settings, documents)
    measured = {
        "benchmark": "speed",
        "backend": settings.backend,
        "forced": documents is not None,
        "prompts": digest(prompt.text for prompt in prompts),
        "passes": settings.passes,
        "together": settings.together,
    }
    with opened_journal(settings.out, measured) as journal:
        work = measure(
            partial(cold_client, settings.backend, documents),
            prompts,
            warm=warm,
            passes=settings.passes,
            together=settings.together,
            sampling=FORCED_SAMPLING if documents else SAMPLING,
            journal=journal,
        )
        runs = asyncio.run(work)
    print(markdown_table(summarise(runs)))


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


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table, keep the raw figures."""
    run_command(SpeedSettings, _run, program="speed", description=__doc__, arguments=arguments, resumes=True)


if __name__ == "__main__":
    main()
