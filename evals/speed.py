"""How much sooner an answer comes: baseline / parallel wall clock, beside the theoretical speed-up.

    python -m pasta_async.evals.speed --backend local:pasta-tiny --n 20
    python -m pasta_async.evals.speed --backend http://127.0.0.1:30000 --prompts prompts.txt --out speed.jsonl

One model answers every prompt in both forms: in parallel, and as the baseline, without tags. The order goes
A B B A over the prompts, the other way round in the next pass. Each pass begins with a cold prefix cache and
a few answers that do not count, so no answer finds its own text there. What a model would gain that wrote
given answers is measured by `methods`.

With --out every run is kept as it comes, and the same command goes on where it was broken off, from a cold
cache again.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pydantic import Field

from pasta_async import Sampling
from pasta_async.cli.command import Command, CommandSettings, command
from pasta_async.evals.answers import FORMS, Answer, compare, describe_costs, describe_speedup, take_turns
from pasta_async.evals.documents import WARM_UP_SEED, digest, held_out, read_prompts
from pasta_async.evals.engines import cold_client
from pasta_async.evals.records import markdown_table, opened_journal
from pasta_async.training.statistics import format_share
from pasta_async.training.synthetic import FAMILIES

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from pasta_async import Client
    from pasta_async.evals.answers import Form
    from pasta_async.evals.documents import Prompt
    from pasta_async.jobs import Journal

__all__ = ["SpeedSettings", "main", "measure", "open_forms", "summarise"]

GREEDY = Sampling(max_tokens=1024)


async def measure(
    opened: Callable[[], AbstractAsyncContextManager[Mapping[Form, Client]]],
    prompts: Sequence[Prompt],
    *,
    warm: Sequence[Prompt] = (),
    passes: int = 2,
    sampling: Sampling = GREEDY,
    journal: Journal | None = None,
) -> list[Answer]:
    """Time every prompt in both forms; see `take_turns`.

    Args:
        opened: Gives what answers in each form, with a cold prefix cache.
        prompts: What is asked.
        warm: Prompts that are answered first, and not counted.
        passes: How often all of it is done.
        sampling: How tokens are chosen.
        journal: Keeps every row as it comes.

    Cancelling it cancels the answer under way and closes the clients.
    """

    @asynccontextmanager
    async def warmed_up() -> AsyncGenerator[Callable[[int, Form, int], Awaitable[Answer]]]:
        async with opened() as clients:

            async def ask(prompt: Prompt, form: Form, index: int, number: int) -> Answer:
                plain = form == "baseline"
                found = await clients[form].generate(
                    prompt.text, sampling=sampling, baseline=plain, parallel="always"
                )
                return Answer.of(found, index, form, number, prompt.family)

            for prompt in warm:
                for form in FORMS:
                    await ask(prompt, form, 0, 0)
            yield lambda index, form, number: ask(prompts[index], form, index, number)

    return await take_turns(warmed_up, len(prompts), FORMS, passes=passes, journal=journal)


@asynccontextmanager
async def open_forms(backend: str, *, baseline: str | None = None) -> AsyncGenerator[Mapping[Form, Client]]:
    """Clients for both forms, with a cold prefix cache; `baseline` is another model that answers as one."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(cold_client(backend))
        plain = client if baseline is None else await stack.enter_async_context(cold_client(baseline))
        yield {"parallel": client, "baseline": plain}


def summarise(rows: Sequence[Answer]) -> list[dict[str, Any]]:
    """A row of figures for each family, and one over all; intervals are 95%, over prompts."""
    families = list(dict.fromkeys(row.family for row in rows))
    table = [_row(family, [row for row in rows if row.family == family]) for family in families]
    return table if len(families) == 1 else [*table, _row("all", rows)]


def _row(name: str, rows: Sequence[Answer]) -> dict[str, Any]:
    plain, parallel = ([row for row in rows if row.method == form] for form in FORMS)
    return {
        "family": name,
        **describe_speedup(compare(rows)),
        "baseline s": fmean(row.seconds for row in plain),
        "baseline, first token ms": 1000 * fmean(row.first_token for row in plain),
        "baseline tokens": fmean(row.tokens for row in plain),
        **describe_costs(parallel),
        "malformed": format_share(sum(not row.well_formed for row in parallel), len(parallel)),
    }


class SpeedSettings(CommandSettings):
    """What is timed."""

    backend: str = Field(default="local:pasta-tiny", description="as for pasta_async.generate")
    n: int = Field(default=20, ge=1, description="held-out prompts of each family")
    families: tuple[str, ...] = Field(default=FAMILIES, description="of the synthetic task")
    prompts: Path | None = Field(
        default=None, description="instead of these: a file, a prompt a line, or .jsonl with `instruction`"
    )
    first: int | None = Field(default=None, ge=1, description="take so many of a file's prompts only")
    passes: int = Field(default=2, ge=1, description="how often all of it is done")
    out: Path | None = Field(
        default=None, description="file for the raw figures; one that was broken off is gone on with"
    )


def _run(settings: SpeedSettings) -> str:
    given = settings.prompts and read_prompts(settings.prompts)[: settings.first]
    prompts = given or held_out(settings.families, settings.n)
    measured = {
        "benchmark": "speed",
        "backend": settings.backend,
        "prompts": digest(prompt.text for prompt in prompts),
        "passes": settings.passes,
    }
    with opened_journal(settings.out, measured) as journal:
        work = measure(
            partial(open_forms, settings.backend),
            prompts,
            warm=held_out(settings.families, 1, first_seed=WARM_UP_SEED),
            passes=settings.passes,
            journal=journal,
        )
        return markdown_table(summarise(asyncio.run(work)))


main: Command = command(SpeedSettings, _run, "speed", __doc__, resumes=True)

if __name__ == "__main__":
    main()
