"""How much sooner an answer comes: baseline / parallel wall clock, beside the theoretical speed-up.

    python -m pasta_async.evals.speed --backend local:pasta-tiny --n 20
    python -m pasta_async.evals.speed --backend local:pasta-smol --prompts alpaca_eval.jsonl --passes 1 \
        --temperature 0.6 --max-tokens 500 --threads 1 --out speed.jsonl

One model answers every prompt in both forms, one answer at a time: in parallel, and as the baseline, without
tags. The order goes A B B A over the prompts, the other way round in the next pass. Each pass begins with an
empty prefix cache and a few answers that do not count. Where both forms begin with the same tokens (a chat
template may mark the parallel one at its end), the form that comes second finds these in the cache.

Answers that a limit ended are counted, and are in no speed-up. With --brief the baseline is also asked to be
brief, the simplest way to an earlier end; whether that answer is as good is not measured here. With
--llama-cpp, llama.cpp writes each plain answer once more, one token after another, with the same weights,
behind all others.

With --out every answer is kept as it comes, the same command goes on where it was broken off (with an empty
cache again), and the figures are written beside it, to FILE.figures.json. `pasta_async.evals.faults` reads
the answers too. What a model would gain that wrote given answers is measured by `methods`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

from pydantic import Field

from pasta_async import Client, Sampling
from pasta_async.cli.command import Command, Count, command
from pasta_async.evals.answers import (
    FORMS,
    Answer,
    Answering,
    ask,
    describe_costs,
    describe_speedup,
    of_form,
    take_turns,
)
from pasta_async.evals.documents import WARM_UP_SEED, AskedSettings, Prompt, RawFigures, digest, held_out
from pasta_async.evals.engines import cold_client
from pasta_async.evals.overview import overview, overview_table
from pasta_async.evals.peers import LlamaCppSettings, RemoteEngine, open_llama_cpp
from pasta_async.evals.records import (
    environment,
    grouped,
    markdown_table,
    measurements,
    opened_journal,
)
from pasta_async.jobs import Journal, write_json
from pasta_async.training.identity import weights_of
from pasta_async.training.statistics import format_share

BRIEF = "brief"


class SpeedSettings(AskedSettings, LlamaCppSettings):
    """What is timed."""

    backend: str = Field(default="local:pasta-tiny", description="as for pasta_async.generate")
    passes: Count = Field(default=2, description="how often all of it is done")
    temperature: float = Field(default=0.0, ge=0, description="0 is greedy")
    seed: int = Field(default=0, ge=0, description="of the first pass; each further one has the next")
    max_tokens: Count = Field(default=1024, description="of an answer, tags counted")
    dtype: str | None = Field(default=None, description="local: float32, int8, ...; see `open_backend`")
    brief: bool = Field(default=False, description="also plain answers to prompts that say: Be brief.")
    out: RawFigures = None

    def sampling(self, number: int) -> Sampling:
        """Of the answers in a pass."""
        return Sampling(max_tokens=self.max_tokens, temperature=self.temperature, seed=self.seed + number)


async def measure(
    opened: Callable[[], AbstractAsyncContextManager[Client]],
    prompts: Sequence[Prompt],
    settings: SpeedSettings,
    *,
    warm: Sequence[Prompt] = (),
    peer: RemoteEngine | None = None,
    journal: Journal | None = None,
) -> list[Answer]:
    """Time every prompt in both forms, and what else the settings ask for; see `take_turns` and `ask`.

    Prompts of `warm` are answered first in each pass, on the client that `opened` gives, and not counted; a
    `peer` writes each plain answer again. Cancelling it cancels the answer under way and closes the client.
    """
    rows = (Answer(**row) for row in measurements(journal))
    plain = {(row.prompt, row.number): row for row in rows if row.method == "baseline"}

    @asynccontextmanager
    async def warmed_up() -> AsyncGenerator[Answering]:
        async with opened() as client:

            async def answer(index: int, method: str, number: int) -> Answer:
                prompt = prompts[index]
                if peer and method == peer.name:
                    return await _write_again(peer, client, prompt, plain[index, number])
                text = f"{prompt.text}\n\nBe brief." if method == BRIEF else prompt.text
                row = Answer(index, method, number, family=prompt.family, question=text)
                row = await ask(client, text, row, sampling=settings.sampling(number))
                if method == "baseline":
                    plain[index, number] = row
                return row

            for prompt in warm:
                for form in FORMS:
                    await ask(client, prompt.text, Answer(0, form), sampling=settings.sampling(0))
            yield answer

    methods, last = [*FORMS, *([BRIEF] if settings.brief else [])], [peer.name] if peer else []
    passes = settings.passes
    return await take_turns(warmed_up, len(prompts), methods, last=last, passes=passes, journal=journal)


async def _write_again(peer: RemoteEngine, client: Client, prompt: Prompt, plain: Answer) -> Answer:
    """Have an engine write a plain answer that another one gave, token by token."""
    if not plain.tokens:  # its prompt is too long
        return replace(plain, method=peer.name)
    ids = await client.backend.encode_chat([{"role": "user", "content": prompt.text}], {"pasta": False})
    text = await client.backend.encode(plain.text)
    seconds = await asyncio.to_thread(peer.call, "write", ids, text)
    tokens = len(text) + 1  # the last step gives what ends the answer
    return replace(
        plain,
        method=peer.name,
        seconds=seconds,
        first_token=0.0,
        tokens=tokens,
        critical_path=tokens,
        cached_tokens=0,
        prefilled_tokens=len(ids),
    )


def summarise(rows: Sequence[Answer]) -> list[dict[str, Any]]:
    """A row of figures for each family, and one over all; intervals are 95%, over prompts."""
    table = [_row(name, own) for name, own in grouped(rows, lambda row: row.family).items()]
    return table if len(table) == 1 else [*table, _row("all", rows)]


def _row(name: str, rows: Sequence[Answer]) -> dict[str, Any]:
    plain, parallel = (of_form(rows, form) for form in FORMS)
    return {
        "family": name,
        **describe_speedup(rows),
        "baseline s": fmean(row.seconds for row in plain),
        "baseline, first token ms": 1000 * fmean(row.first_token for row in plain),
        "baseline tokens": fmean(row.tokens for row in plain),
        **describe_costs(parallel),
        "malformed": format_share(sum(not row.well_formed for row in parallel), len(parallel)),
    }


def _run(settings: SpeedSettings) -> str:
    prompts = settings.asked()
    elsewhere = {"prompts", "sample", "n", "families", "brief", "llama_cpp", "out"}
    measured = {
        "benchmark": "speed",
        "prompts": digest(prompt.text for prompt in prompts),
        **settings.model_dump(exclude=elsewhere),
        "weights": asyncio.run(weights_of(settings.backend)),
        "llama_cpp": settings.llama_cpp is not None,
        **({"brief": True} if settings.brief else {}),
    }
    options = settings.options_of(settings.backend)
    if settings.dtype:
        options["dtype"] = settings.dtype
    with opened_journal(settings.out, measured) as journal, open_llama_cpp(settings) as peer:
        work = measure(
            partial(cold_client, settings.backend, **options),
            prompts,
            settings,
            warm=held_out(settings.families, 1, first_seed=WARM_UP_SEED),
            peer=peer,
            journal=journal,
        )
        rows = asyncio.run(work)
    found = overview(rows)
    if settings.out:
        content = {**measured, "environment": environment(), "figures": found}
        write_json(settings.out.with_suffix(".figures.json"), content)
    return "\n\n".join(map(markdown_table, (summarise(rows), overview_table(found))))


main: Command = command(SpeedSettings, _run, "speed", __doc__, resumes=True)

if __name__ == "__main__":
    main()
