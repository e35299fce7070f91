"""Two ways to start a promise's thread, on a real server: what each of them costs.

    python -m pasta_async.evals.costs forks --backend http://127.0.0.1:30000 --n 10
    python -m pasta_async.evals.costs forks --backend http://127.0.0.1:30000 --documents documents.jsonl

SGLang puts decoded KV into its prefix cache when a request ends. So a thread forked while main decodes on
(`stream`) computes again what main decoded since its request began. To end main's request at each promise
and send it again (`cut`) saves that, for a round trip more and a pause of main. The counts are the server's
own and do not depend on its hardware; the times do. Each answer begins with an empty prefix cache. With
--documents the answers are written under force (pasta_async.evals.forcing).
"""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import pairwise
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from pasta_async.clock import REAL_CLOCK
from pasta_async.evals.commands import Command, Settings, command
from pasta_async.evals.documents import WARM_UP_SEED, Prompt, document_prompts, held_out, read_documents
from pasta_async.evals.engines import cold_client, empty_prefix_cache
from pasta_async.evals.forcing import FORCED_SAMPLING
from pasta_async.evals.records import environment, markdown_table, write_rows
from pasta_async.evals.speed import SAMPLING
from pasta_async.evals.statistics import estimate, format_estimate, format_share
from pasta_async.jobs import progress
from pasta_async.training.synthetic import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pasta_async import Client, Generation, Sampling
    from pasta_async.clock import Clock

__all__ = ["main", "measure", "summarise"]

MODES: tuple[Literal["stream"], Literal["cut"]] = ("stream", "cut")


async def measure(
    client: Client,
    prompts: Sequence[Prompt],
    *,
    passes: int = 1,
    sampling: Sampling = SAMPLING,
    empty: Callable[[], Awaitable[None]],
    clock: Clock = REAL_CLOCK,
) -> list[dict[str, Any]]:
    """Answer every prompt in both modes, in the order A B B A; the counts of each answer.

    Args:
        client: What answers.
        prompts: What is asked.
        passes: How often all of it is done.
        sampling: As the client takes it.
        empty: Empties the prefix cache; called before each answer.
        clock: Measures.

    Cancelling it cancels the answer under way.
    """
    rows = list[dict[str, Any]]()
    with progress(2 * passes * len(prompts), "answers") as done:
        for number in range(passes):
            for index, prompt in enumerate(prompts):
                for mode in MODES if (number + index) % 2 == 0 else MODES[::-1]:
                    await empty()
                    began = clock.time()
                    generation = await client.generate(prompt.text, sampling=sampling, fork=mode)
                    seconds = clock.time() - began
                    rows.append({"prompt": index, "mode": mode, "seconds": seconds, **_counts(generation)})
                    done()
    return rows


def _counts(generation: Generation) -> dict[str, Any]:
    main, *threads = generation.threads
    forks = [thread.requests[0] for thread in threads]
    joins = [  # main's requests behind a sync; one behind a cut has nothing new in its context
        then
        for before, then in pairwise(main.requests)
        if then.prompt_tokens > before.prompt_tokens + before.completion_tokens
    ]
    waits = [thread.first_token - thread.opened for thread in threads if thread.first_token is not None]
    return {
        "promises": len(threads),
        **generation.usage.model_dump(),
        "fork_tokens": sum(one.prompt_tokens for one in forks),
        "fork_cached": sum(one.cached_tokens or 0 for one in forks),
        "join_tokens": sum(one.prompt_tokens for one in joins),
        "join_cached": sum(one.cached_tokens or 0 for one in joins),
        "first_token": fmean(waits) if waits else 0.0,
        "written": generation.document.format(),
    }


def summarise(answers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each mode: means of the answers with promises, and seconds over those of `stream`."""
    forked = [answer for answer in answers if answer["promises"]]
    return [_row(mode, forked) for mode in MODES]


def _row(mode: str, answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    own = [answer for answer in answers if answer["mode"] == mode]

    def mean(name: str) -> float:
        return fmean(answer[name] for answer in own)

    return {
        "mode": mode,
        "answers": len(own),
        "promises": mean("promises"),
        "round trips": mean("requests"),
        "prefilled tokens": mean("prefilled_tokens"),
        "cached tokens": mean("cached_tokens"),
        "cached at forks": format_share(mean("fork_cached"), mean("fork_tokens")),
        "cached at joins": format_share(mean("join_cached"), mean("join_tokens")),
        "ms to a thread's first token": 1000 * mean("first_token"),
        "seconds": mean("seconds"),
        "seconds / stream": format_estimate(estimate(_ratios(answers, mode)), ".3f"),
    }


def _ratios(answers: Sequence[dict[str, Any]], mode: str) -> list[float]:
    """Seconds in a mode over seconds in `stream`, for each prompt."""

    def seconds(prompt: int, mode: str) -> float:
        return fmean(one["seconds"] for one in answers if (one["prompt"], one["mode"]) == (prompt, mode))

    prompts = sorted({answer["prompt"] for answer in answers})
    return [seconds(prompt, mode) / seconds(prompt, "stream") for prompt in prompts]


class ForkSettings(Settings):
    """What is answered in both modes."""

    backend: str = Field(description="URL of an SGLang server")
    n: int = Field(default=10, ge=1, description="prompts of each family")
    families: tuple[str, ...] = Field(default=FAMILIES, description="of the synthetic task")
    documents: Path | None = Field(default=None, description="instead: forced decoding of these answers")
    first: int | None = Field(default=None, ge=1, description="take so many of the documents only")
    passes: int = Field(default=1, ge=1, description="how often all of it is done")
    out: Path | None = Field(default=None, description="file for the raw figures, as JSON lines")


async def _measure(settings: ForkSettings) -> list[dict[str, Any]]:
    documents = read_documents(settings.documents, settings.first) if settings.documents else None
    prompts = document_prompts(documents) if documents else held_out(settings.families, settings.n)
    warm = prompts if documents else held_out(["describe"], 2, first_seed=WARM_UP_SEED)
    sampling = FORCED_SAMPLING if documents else SAMPLING
    async with cold_client(settings.backend, documents) as client:
        for prompt in warm[:2]:
            await client.generate(prompt.text, sampling=sampling)
        empty = partial(empty_prefix_cache, settings.backend)
        return await measure(client, prompts, passes=settings.passes, sampling=sampling, empty=empty)


def _run(settings: ForkSettings) -> None:
    where = environment()
    answers = asyncio.run(_measure(settings))
    print(markdown_table(summarise(answers)))
    if settings.out:
        write_rows(settings.out, [{"backend": settings.backend, **where}, *answers])


main: Command = command(ForkSettings, _run, "costs forks", __doc__)
