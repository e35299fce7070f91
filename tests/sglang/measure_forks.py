"""What the plug-in saves: real servers on a CPU, with and without it, in one run.

    pasta-async export pasta-smol MODEL
    python tests/sglang/measure_forks.py MODEL OUT.jsonl \\
        --documents annotated.jsonl --sample 100 --prompts prompts.jsonl

Three tables: given answers (forced, also in sequence), answers of the model's own, and steps of requests that
nobody forks from. All ways take turns at each answer, each with an empty prefix cache. The same command goes
on with a run that was broken off; `--tables` prints what there is by then. CPU seconds are those of the
server's processes: on a machine that does other things too they say more than the clock.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, aclosing
from itertools import zip_longest
from pathlib import Path
from statistics import fmean, geometric_mean, median
from typing import Any, NamedTuple

import psutil
from pydantic import Field
from real_server import RealServer, running_server

from pasta_async import Backend, Client, Generation, Sampling
from pasta_async.backends import WrappingBackend
from pasta_async.backends.sglang import SGLangBackend
from pasta_async.cli.command import Command, CommandSettings, Count, command
from pasta_async.evals.documents import digest, read_documents, read_prompts
from pasta_async.evals.forcing import FORCED_LIMITS, FORCED_SAMPLING, ForcedBackend
from pasta_async.evals.records import markdown_table, measurements, opened_journal
from pasta_async.jobs import Journal, progress
from pasta_async.lang import Document
from pasta_async.protocol import DecodeRequest, Piece
from pasta_async.training.statistics import estimate, format_estimate
from pasta_async_sglang import VARIABLE

Row = dict[str, Any]

PLUGIN = {"stock": "0", "plug-in": "1"}
"""The servers, and the value of the plug-in's variable."""

WAYS = {
    "sequential": "stock",
    "stock": "stock",
    "plug-in": "plug-in",
}
"""How answers are written, and the server."""

STEPS = 64
"""Tokens of a request whose steps are timed."""

FLAGS = ("--max-total-tokens", "16384")


class Server(NamedTuple):
    """A running server."""

    url: str
    model: Path
    process: int
    """Its first one."""

    def cpu_seconds(self) -> float:
        """Of all its processes, up to now."""
        first = psutil.Process(self.process)
        times = [one.cpu_times() for one in (first, *first.children(recursive=True))]
        return sum(one.user + one.system for one in times)


class JoinTimer(WrappingBackend):
    """Another backend; times how long main's requests wait for their first token."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.waits: list[float] = []
        """Seconds of each of main's requests, in order."""

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        """As the inner backend does."""
        began, waiting = time.perf_counter(), not request.thread and request.max_tokens > 0
        async with aclosing(self.inner.decode(request)) as pieces:
            async for piece in pieces:
                if waiting and piece.ids:
                    self.waits.append(time.perf_counter() - began)
                    waiting = False
                yield piece


class Writer(NamedTuple):
    """One way to have an answer written."""

    server: Server
    client: Client
    timer: JoinTimer
    plain: bool
    sampling: Sampling

    async def write(self, prompt: str) -> Row:
        """Have it written with an empty prefix cache."""
        await asyncio.to_thread(RealServer(self.server.url, self.server.model).flush)
        began = self.server.cpu_seconds()
        self.timer.waits.clear()
        answer = await self.client.generate(
            prompt, sampling=self.sampling, baseline=self.plain, parallel="always"
        )
        return {**figures(answer, self.timer.waits), "cpu": self.server.cpu_seconds() - began}


def figures(answer: Generation, waits: Sequence[float]) -> Row:
    """What is kept of an answer; `waits` are those of main's requests."""
    opened = [one for one in answer.threads[1:] if one.first_token is not None]
    behind = answer.threads[0].requests[1:]  # main's, behind joins
    return {
        "seconds": answer.elapsed,
        "tokens": answer.usage.completion_tokens,
        "critical_path": answer.critical_path,
        "requests": answer.usage.requests,
        "prefilled": answer.usage.prefilled_tokens,
        "cached": answer.usage.cached_tokens,
        "fork_waits": [(one.first_token or 0) - one.opened for one in opened],
        "join_waits": [*waits[1:]],
        "joined": sum(one.prompt_tokens - (one.cached_tokens or 0) for one in behind),
    }


class Settings(CommandSettings):
    """What is measured."""

    model: Path = Field(description="a model folder: pasta-async export pasta-smol FOLDER")
    out: Path = Field(description="file for the raw figures")
    documents: Path | None = Field(default=None, description="given answers (records, JSON lines)")
    sample: Count | None = Field(default=None, description="so many of them, of every kind")
    prompts: Path | None = Field(default=None, description="prompts that the model answers itself")
    asked: Count = Field(default=20, description="so many of them, of every kind")
    max_tokens: Count = Field(default=128, description="of an answer of the model's own")
    rounds: int = Field(default=20, ge=0, description="of timing steps without forks")
    tables: bool = Field(default=False, description="measure nothing, print what was found by now")


def tasks(settings: Settings) -> tuple[list[tuple[str, Any]], dict[str, Document]]:
    """What is measured, each kind in random order and the kinds in turn; and the given answers."""
    documents = read_documents(settings.documents, settings.sample) if settings.documents else {}
    prompts = read_prompts(settings.prompts, settings.asked) if settings.prompts else []
    own = [prompt.text for prompt in prompts]
    kinds = {"own": own, "steps": [*range(settings.rounds)], "given": [*documents]}
    for items in kinds.values():
        random.Random(0).shuffle(items)
    turns = zip_longest(*([(kind, one) for one in items] for kind, items in kinds.items()))
    return [task for turn in turns for task in turn if task is not None], documents


async def measure(settings: Settings, servers: Mapping[str, Server], journal: Journal) -> None:
    """Everything that is not in the journal."""
    todo, documents = tasks(settings)
    known = {(row["kind"], row["of"]) for row in measurements(journal)}
    async with AsyncExitStack() as stack:
        writers = {
            kind: {
                name: await _writer(stack, name, servers, settings, given)
                for name in WAYS
                if given or name != "sequential"
            }
            for kind, given in (("given", documents), ("own", {}))
        }
        await _measured("steps", 0, servers, writers)  # to warm up
        with progress(len(todo), "answers and rounds", done=len(known)) as done:
            for kind, of in todo:
                if (kind, of) in known:
                    continue
                journal.append({"kind": kind, "of": of, "found": await _measured(kind, of, servers, writers)})
                done()


async def _measured(
    kind: str, of: Any, servers: Mapping[str, Server], writers: Mapping[str, Mapping[str, Writer]]
) -> dict[str, Any]:
    """One answer in each way, or one round of steps on each server, in another order each time."""
    names = [*(servers if kind == "steps" else writers[kind])]
    random.Random(str(of)).shuffle(names)
    if kind == "steps":
        return {name: await _step(servers[name]) for name in names}
    return {name: await writers[kind][name].write(of) for name in names}


async def _writer(
    stack: AsyncExitStack,
    name: str,
    servers: Mapping[str, Server],
    settings: Settings,
    documents: Mapping[str, Document],
) -> Writer:
    server = WAYS[name]
    backend = SGLangBackend(servers[server].url, tokenizer=settings.model)
    stack.push_async_callback(backend.aclose)
    timer = JoinTimer(backend)
    if documents:
        client, sampling = Client(ForcedBackend(timer, documents), limits=FORCED_LIMITS), FORCED_SAMPLING
    else:
        client, sampling = Client(timer), Sampling(max_tokens=settings.max_tokens)
    await stack.enter_async_context(client)
    # What it learns of the model, and of the chat template, counts for no answer.
    await client.generate(next(iter(documents), "Hi"), sampling=Sampling(max_tokens=2), baseline=True)
    return Writer(servers[server], client, timer, name == "sequential", sampling)


async def _step(server: Server) -> float:
    """Milliseconds of CPU time for a step of one request."""
    ids = random.Random(0).choices(range(100, 200), k=64)
    extra = {"sampling_params": {"ignore_eos": True}}
    backend = SGLangBackend(server.url)
    await backend.connect()
    began = server.cpu_seconds()
    async for _ in backend.decode(DecodeRequest("steps", 0, tuple(ids), STEPS, Sampling(), extra=extra)):
        pass
    taken = server.cpu_seconds() - began
    await backend.aclose()
    return 1000 * taken / STEPS


# Tables -----------------------------------------------------------------------------------------------------


def answers_table(rows: Sequence[Row]) -> list[Row]:
    """A row for each way: means of an answer, medians of waits, ratios with 95% intervals."""
    return [_way(name, rows) for name in WAYS if rows and name in rows[0]]


def _way(name: str, rows: Sequence[Row]) -> Row:
    found = [row[name] for row in rows]
    prefilled, cached = (fmean(row[field] for row in found) for field in ("prefilled", "cached"))
    fork_waits, join_waits = (
        [wait for row in found for wait in row[field]] for field in ("fork_waits", "join_waits")
    )
    against = "sequential" if "sequential" in rows[0] else "stock"
    speedup = [row[against]["seconds"] / row[name]["seconds"] for row in rows]
    table = {
        "": name,
        "answers": len(found),
        "requests": round(fmean(row["requests"] for row in found), 1),
        "prefilled": round(prefilled),
        "cached": f"{cached / (cached + prefilled):.0%}",
        "prefilled at joins": round(fmean(row["joined"] for row in found)),
        "thread's first token ms": round(1000 * median(fork_waits)) if fork_waits else None,
        "main's next token ms": round(1000 * median(join_waits)) if join_waits else None,
        "seconds": round(fmean(row["seconds"] for row in found), 2),
        "CPU s": round(fmean(row["cpu"] for row in found), 2),
        f"speed-up over {against}": format_estimate(estimate(speedup), ".2f"),
    }
    if against == "sequential":
        theory = [row[against]["tokens"] / row[name]["critical_path"] for row in rows]
        table["theoretical"] = round(geometric_mean(theory), 2)
        table["realised / theoretical"] = round(geometric_mean(speedup) / geometric_mean(theory), 3)
    return table


def steps_table(rows: Sequence[Row]) -> list[Row]:
    """Milliseconds of CPU time for a step, and its ratio to the stock server's, round by round."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for name, taken in row.items():
            found[name].append(taken)
    return [
        {
            "": name,
            "rounds": len(taken),
            "step ms": f"{median(taken):.2f}",
            "of stock": format_estimate(
                estimate([a / b for a, b in zip(taken, found["stock"], strict=True)]), ".4f"
            ),
        }
        for name, taken in found.items()
    ]


def run(settings: Settings) -> str:
    """Measure what is not measured yet; the tables."""
    paths = [path for path in (settings.documents, settings.prompts) if path]
    given = {
        "benchmark": "forks on SGLang",
        **settings.model_dump(include={"sample", "asked", "max_tokens"}),
        "of": digest(path.read_text("utf-8") for path in paths),
    }
    with opened_journal(settings.out, given) as journal, tempfile.TemporaryDirectory() as folder:
        assert journal is not None
        if not settings.tables:
            with ExitStack() as stack:
                servers: dict[str, Server] = {}
                for name, value in PLUGIN.items():
                    os.environ[VARIABLE] = value
                    served = running_server(settings.model, Path(folder) / name, *FLAGS)
                    url, process = stack.enter_context(served)
                    servers[name] = Server(url, settings.model, process)
                asyncio.run(measure(settings, servers, journal))
        return tables(journal)


def tables(journal: Journal) -> str:
    """What was found by now."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in measurements(journal):
        found[row["kind"]].append(row["found"])
    shown = (answers_table(found["given"]), answers_table(found["own"]), steps_table(found["steps"]))
    return "\n\n".join(markdown_table(table) for table in shown if table)


main: Command = command(Settings, run, "measure_forks", __doc__, positional=("model", "out"), resumes=True)

if __name__ == "__main__":
    main()
