"""What the plug-in saves, and joins sent ahead: given answers on real servers on a CPU, in one run.

    python tests/sglang/measure_forks.py MODEL documents.jsonl [--first 100] [--passes 2]

starts SGLang with and without the plug-in and has each answer written by both in turns, with the plug-in also
with joins sent ahead, each time with an empty prefix cache. Means for an answer. CPU time is that of the
server's processes: on a machine that does other things too it says more than the clock.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
from collections import defaultdict
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from statistics import fmean, geometric_mean, median
from typing import TYPE_CHECKING, NamedTuple

import psutil
from real_server import RealServer, running_server

from pasta_async import Client, Sampling
from pasta_async.backends.sglang import SGLangBackend
from pasta_async.evals.documents import read_documents
from pasta_async.evals.forcing import FORCED_LIMITS, FORCED_SAMPLING, ForcedBackend
from pasta_async.evals.records import markdown_table
from pasta_async.jobs import progress
from pasta_async.protocol import DecodeRequest
from pasta_async_sglang import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from pasta_async import Generation
    from pasta_async.lang import Document

Answers = list[tuple["Generation", float]]
"""Answers, each with the server's seconds of CPU time."""

WAYS = {"stock": ("0", False), "plug-in": ("1", False), "plug-in, joins ahead": ("1", True)}
"""The variable's value, and whether joins are sent ahead."""


STEPS = 128
"""Tokens of a request whose steps are timed."""


class Server(NamedTuple):
    """A running server."""

    url: str
    model: Path
    group: int
    """Its first process."""

    def flush(self) -> None:
        """Empty the prefix cache."""
        RealServer(self.url, self.model).flush()


async def measure(
    servers: Mapping[str, Server], documents: Mapping[str, Document], passes: int
) -> dict[str, Answers]:
    """Every answer in each way, `passes` times; the first once before. Also `baseline`s, of stock."""
    found: dict[str, Answers] = defaultdict(list)
    prompts, names = [*documents], [*WAYS, "baseline"]
    async with AsyncExitStack() as stack:
        clients: dict[str, Client] = {}
        for name in names:
            value, ahead = WAYS.get(name, WAYS["stock"])
            backend = SGLangBackend(servers[value].url, prefill_ahead=ahead)
            client = Client(ForcedBackend(backend, documents), limits=FORCED_LIMITS)
            clients[name] = await stack.enter_async_context(client)
            await client.generate(prompts[0], sampling=FORCED_SAMPLING)
        with progress(passes * len(prompts), "answers") as done:
            for number in range(passes):
                for index, prompt in enumerate(prompts):
                    turn = (number + index) % len(names)
                    for name in (*names[turn:], *names[:turn]):
                        server = servers[WAYS.get(name, WAYS["stock"])[0]]
                        await asyncio.to_thread(server.flush)
                        began = cpu_seconds(server.group)
                        answer = await clients[name].generate(
                            prompt, sampling=FORCED_SAMPLING, baseline=name == "baseline"
                        )
                        found[name].append((answer, cpu_seconds(server.group) - began))
                    done()
    return found


def cpu_seconds(group: int) -> float:
    """Of a server's processes, up to now."""
    server = psutil.Process(group)
    times = [one.cpu_times() for one in (server, *server.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def row(name: str, found: Mapping[str, Answers]) -> dict[str, Any]:
    answers, stock, plain = ([one for one, _ in found[key]] for key in (name, "stock", "baseline"))
    cpu, plain_cpu = ([seconds for _, seconds in found[key]] for key in (name, "baseline"))
    after = [one.threads[0].requests[1:] for one in answers]  # main's, behind joins
    waits = [
        thread.first_token - thread.opened
        for answer in answers
        for thread in answer.threads[1:]
        if thread.first_token is not None
    ]
    cached, new = (
        fmean(getattr(answer.usage, field) for answer in answers)
        for field in ("cached_tokens", "prefilled_tokens")
    )
    speedup = [one.elapsed / own.elapsed for one, own in zip(plain, answers, strict=True)]
    theoretical = [
        one.usage.completion_tokens / own.critical_path for one, own in zip(plain, answers, strict=True)
    ]
    return {
        "": name,
        "answers": len(answers),
        "requests": round(fmean(answer.usage.requests for answer in answers), 1),
        "prefilled": round(new),
        "cached": f"{cached / (cached + new):.0%}",
        "thread's first token ms": round(1000 * median(waits)) if waits else None,
        "seconds": round(fmean(answer.elapsed for answer in answers), 2),
        "speed-up over stock": round(
            geometric_mean(one.elapsed / own.elapsed for one, own in zip(stock, answers, strict=True)), 3
        ),
        "prefilled behind joins": round(
            fmean(sum(sent.prompt_tokens - (sent.cached_tokens or 0) for sent in one) for one in after)
        ),
        "CPU s": round(fmean(cpu), 2),
        "CPU s in sequence": round(fmean(plain_cpu), 2),
        "theoretical": round(geometric_mean(theoretical), 2),
        "realised / theoretical": round(geometric_mean(speedup) / geometric_mean(theoretical), 3),
    }


async def steps(servers: Mapping[str, Server]) -> list[dict[str, Any]]:
    """What a decode step without forks costs: milliseconds of CPU time, the least of some rounds."""
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for turn in range(8):
        for value, name in (("0", "stock"), ("1", "plug-in"))[:: -1 if turn % 2 else 1]:
            backend = SGLangBackend(servers[value].url)
            for count in (1, 4):
                ids = [random.Random(f"{turn} {k}").choices(range(100, 200), k=64) for k in range(count)]
                began = cpu_seconds(servers[value].group)
                await asyncio.gather(*(_decode(backend, one) for one in ids))
                found[name, count].append(1000 * (cpu_seconds(servers[value].group) - began) / STEPS)
            await backend.aclose()
    return [
        {"": name, "at once": count, "step ms": [*map("{:.2f}".format, sorted(taken)[:3])]}
        for (name, count), taken in found.items()
    ]


async def _decode(backend: SGLangBackend, ids: list[int]) -> None:
    extra = {"sampling_params": {"ignore_eos": True}}
    async for _ in backend.decode(
        DecodeRequest(f"step {ids[:9]}", 0, tuple(ids), STEPS, Sampling(), extra=extra)
    ):
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("documents", type=Path)
    parser.add_argument("--first", type=int, default=100)
    parser.add_argument("--passes", type=int, default=1)
    options = parser.parse_args()
    documents = read_documents(options.documents, options.first)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        servers: dict[str, Server] = {}
        for value in ("0", "1"):
            os.environ[VARIABLE] = value
            url, group = stack.enter_context(running_server(options.model, Path(folder) / value))
            servers[value] = Server(url, options.model, group)
        found = asyncio.run(measure(servers, documents, options.passes))
        print(markdown_table([row(name, found) for name in WAYS]))
        print(markdown_table(asyncio.run(steps(servers))))


if __name__ == "__main__":
    main()
