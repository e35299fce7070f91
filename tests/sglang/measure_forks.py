"""What the plug-in saves, and joins sent ahead: given answers on real servers on a CPU, in one run.

    python tests/sglang/measure_forks.py MODEL documents.jsonl [--sample 100] [--passes 2]

starts SGLang with and without the plug-in and has each answer written by both in turns, with the plug-in also
with joins sent ahead, each time with an empty prefix cache. Means for an answer.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections import defaultdict
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from statistics import fmean, geometric_mean, median
from typing import TYPE_CHECKING

from real_server import RealServer, running_server

from pasta_async import Client
from pasta_async.backends.sglang import SGLangBackend
from pasta_async.evals.documents import read_documents
from pasta_async.evals.forcing import FORCED_LIMITS, FORCED_SAMPLING, ForcedBackend
from pasta_async.evals.records import markdown_table
from pasta_async.evals.simulator import take_samples
from pasta_async.jobs import progress
from pasta_async_sglang import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from pasta_async import Generation
    from pasta_async.lang import Document

WAYS = {"stock": ("0", False), "plug-in": ("1", False), "plug-in, joins ahead": ("1", True)}
"""The variable's value, and whether joins are sent ahead."""


async def measure(
    servers: Mapping[str, RealServer], documents: Mapping[str, Document], passes: int
) -> dict[str, list[Generation]]:
    """Every answer in each way, `passes` times; the first once before. Also `baseline`s, of stock."""
    found: dict[str, list[Generation]] = defaultdict(list)
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
                        await asyncio.to_thread(servers[WAYS.get(name, WAYS["stock"])[0]].flush)
                        answer = await clients[name].generate(
                            prompt, sampling=FORCED_SAMPLING, baseline=name == "baseline"
                        )
                        found[name].append(answer)
                    done()
    return found


def row(name: str, found: Mapping[str, Sequence[Generation]]) -> dict[str, Any]:
    answers, stock, plain = found[name], found["stock"], found["baseline"]
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
            geometric_mean(own.elapsed / one.elapsed for one, own in zip(stock, answers, strict=True)), 3
        ),
        "realised / theoretical": round(geometric_mean(speedup) / geometric_mean(theoretical), 3),
    }


async def steps(servers: Mapping[str, RealServer]) -> list[dict[str, Any]]:
    """Milliseconds of a decode step without forks."""
    rows: list[dict[str, Any]] = []
    for value, name in (("0", "stock"), ("1", "plug-in"), ("1", "plug-in"), ("0", "stock")):
        backend = SGLangBackend(servers[value].url)
        samples = await take_samples(backend, [(count, 256) for count in (1, 4)], rounds=5)
        rows += [{"": name, "at once": one.at_once, "step ms": round(1000 * one.step, 3)} for one in samples]
        await backend.aclose()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("documents", type=Path)
    parser.add_argument("--sample", type=int, default=100)
    parser.add_argument("--passes", type=int, default=1)
    options = parser.parse_args()
    documents = read_documents(options.documents, options.sample)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        servers: dict[str, RealServer] = {}
        for value in ("0", "1"):
            os.environ[VARIABLE] = value
            url, _ = stack.enter_context(running_server(options.model, Path(folder) / value))
            servers[value] = RealServer(url, options.model)
        found = asyncio.run(measure(servers, documents, options.passes))
        print(markdown_table([row(name, found) for name in WAYS]))
        print(markdown_table(asyncio.run(steps(servers))))


if __name__ == "__main__":
    main()
