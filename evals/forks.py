"""Forks and joins of a trained model's own answers on a server: cached tokens, and waits.

    python -m pasta_async.evals.forks --backend vllm:http://127.0.0.1:8000 --prompts prompts.txt --sample 60
    python -m pasta_async.evals.forks --backend http://127.0.0.1:30000 --prompts prompts.txt --sample 60

One answer at a time is written. A fork is the first request of a promise's thread; it goes out while main
decodes on. `computed` are the tokens of its context that the cache did not have. A join is main's next
request behind a sync; its wait ends with main's next text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from pydantic import Field

from pasta_async import Client, Limits, Sampling
from pasta_async.cli.command import Command, CommandSettings, Count, command
from pasta_async.clock import REAL_CLOCK
from pasta_async.errors import InvalidRequestError
from pasta_async.evals.answers import Drawn, cold_client, read_prompts
from pasta_async.evals.report import markdown_table
from pasta_async.events import AnswerDone, SyncJoined, ThreadDelta
from pasta_async.jobs import progress
from pasta_async.results import RequestRecord


class ForkSettings(CommandSettings):
    """Settings of the measurement."""

    backend: str = Field(description="as for pasta_async.generate; of a model with tags")
    prompts: Path = Field(description="a prompt a line, or .jsonl with `instruction` or `prompt`")
    sample: Drawn = None
    max_tokens: Count = Field(default=300, description="of an answer, tags counted")


@dataclass
class Observed:
    """Requests and waits of all answers."""

    forks: list[RequestRecord] = field(default_factory=list[RequestRecord])
    joins: list[RequestRecord] = field(default_factory=list[RequestRecord])
    fork_seconds: list[float] = field(default_factory=list[float])
    """Seconds from a fork's request to its first token."""
    join_seconds: list[float] = field(default_factory=list[float])
    """Seconds from a join to main's next text."""


async def observe(client: Client, prompts: Sequence[str], max_tokens: int) -> Observed:
    """Answer the prompts, one after another. Cancelling it ends the answer under way."""
    observed = Observed()
    sampling = Sampling(max_tokens=max_tokens)
    with progress(len(prompts), "answers") as advance:
        for prompt in prompts:
            joined: float | None = None  # when main passed a sync whose next text has not come yet
            async with client.stream(
                prompt, sampling=sampling, parallel="always", limits=Limits(timeout=None)
            ) as stream:
                async for event in stream:
                    # Waits of joins are measured here; those of forks are in the record of the answer.
                    if isinstance(event, SyncJoined):
                        joined = REAL_CLOCK.time()
                    elif isinstance(event, ThreadDelta) and event.thread == 0 and joined is not None:
                        observed.join_seconds.append(REAL_CLOCK.time() - joined)
                        joined = None
                    elif isinstance(event, AnswerDone):
                        # Main's first request has the prompt, each later one is a join.
                        main, *others = event.generation.threads
                        observed.joins += main.requests[1:]
                        for thread in others:
                            observed.forks += thread.requests[:1]
                            if thread.started is not None and thread.first_token is not None:
                                observed.fork_seconds.append(thread.first_token - thread.started)
            advance()
    return observed


def summarise(observed: Observed) -> list[dict[str, Any]]:
    """A row for forks and one for joins: means of tokens, the median wait.

    Raises:
        InvalidRequestError: No answer had a promise, or the server does not tell what was cached.
    """
    # A request that was broken off does not always tell.
    forks = [request for request in observed.forks if request.cached_tokens is not None]
    joins = [request for request in observed.joins if request.cached_tokens is not None]
    if not forks:
        raise InvalidRequestError("no answer forked, or the server does not tell what it found in its cache")
    return [
        _row("fork", forks, observed.fork_seconds),
        _row("join", joins, observed.join_seconds),
    ]


def _row(name: str, requests: Sequence[RequestRecord], seconds: Sequence[float]) -> dict[str, Any]:
    computed = [request.prompt_tokens - (request.cached_tokens or 0) for request in requests]
    context = sum(request.prompt_tokens for request in requests)
    return {
        "": name,
        "requests": len(requests),
        "context, tokens": fmean(request.prompt_tokens for request in requests) if requests else None,
        "found in the cache, %": 100 * (1 - sum(computed) / context) if context else None,
        "computed, tokens": fmean(computed) if computed else None,
        "most computed": max(computed, default=None),
        "wait, ms": 1000 * median(seconds) if seconds else None,
    }


async def _run(settings: ForkSettings) -> str:
    prompts = read_prompts(settings.prompts, settings.sample)
    async with cold_client(settings.backend) as client:
        return markdown_table(summarise(await observe(client, prompts, settings.max_tokens)))


main: Command = command(ForkSettings, _run, "forks", __doc__)

if __name__ == "__main__":
    main()
