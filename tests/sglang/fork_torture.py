"""Random answers with forks of running requests, under a KV cache that is much too small for them.

    python tests/sglang/fork_torture.py --answers 1000 [--page-size 16] [--disable-overlap-schedule] ...

starts SGLang on the shipped model with strict checks of its memory, and further flags of its own, and prints
what happened; it fails where the server does.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pasta_async.backends.sglang import SGLangBackend
from pasta_async.options import Sampling
from pasta_async.protocol import DecodeRequest
from tests.pasta_tiny import PASTA_TINY, examples

STRICT = {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1", "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1"}
"""Have the scheduler compare free, cached and used slots at every step, and end where they do not add up."""

SMALL = {"max_total_tokens": 1000, "chunked_prefill_size": 128, "schedule_conservativeness": 0.1}
"""Slots for about five of these requests alone, in which more are begun than can end; longer prompts are
prefilled in pieces."""

LONGEST = 600
"""Tokens of a context at most."""

FORKED = 5
"""An id that a fork has behind its parent's."""


@dataclass
class Torture:
    """What is asked of a server, and what came of it.

    Attributes:
        seed: Of all that is random, but for when things arrive.
        at_once: Answers that decode at the same time.
        ranks: Data-parallel ranks; some forks are sent to another one than their parent's.
        found: Counts of what happened.
        whole: Greedy requests that came to their end: context and output.
    """

    backend: SGLangBackend
    seed: int = 0
    at_once: int = 12
    ranks: int = 1
    found: Counter[str] = field(default_factory=Counter[str])
    whole: dict[tuple[int, ...], tuple[int, ...]] = field(
        default_factory=dict[tuple[int, ...], tuple[int, ...]]
    )

    async def run(self, answers: int) -> None:
        """Play so many answers."""
        turns = asyncio.Semaphore(self.at_once)
        asked = [[{"role": "user", "content": example.prompt}] for example in examples()[:40]]
        prompts = [await self.backend.encode_chat(messages, {}) for messages in asked]

        async def one(number: int) -> None:
            async with turns:
                await _Answer(self, number, prompts).play()

        async with asyncio.TaskGroup() as group:
            for number in range(answers):
                group.create_task(one(number))

    async def alone(self, count: int) -> int:
        """Decode some of the whole requests again, one at a time; how many come out otherwise."""
        some = random.Random(self.seed).sample(sorted(self.whole), min(count, len(self.whole)))
        differ = 0
        for context in some:
            output = self.whole[context]
            again = await _decode(self.backend, _request("alone", 0, context, len(output), greedy=True))
            differ += tuple(again) != output
        return differ


class _Answer:
    """One answer: main, forks of it at random moments, some of them left early, and a join."""

    def __init__(self, torture: Torture, number: int, prompts: Sequence[list[int]]) -> None:
        self.torture, self.name = torture, f"answer {torture.seed} {number}"
        self.random = random.Random(self.name)
        self.prompt = self.random.choice(prompts)
        self.main: list[int] = []
        self.forks: list[asyncio.Task[list[int]]] = []

    async def play(self) -> None:
        found = self.torture.found
        async with asyncio.TaskGroup() as group:
            length = self.random.randint(20, 160)
            leaves = self.random.randint(5, length) if self.random.random() < 0.3 else None
            request = self._request(0, self.prompt, length)
            async with aclosing(self.torture.backend.decode(request)) as pieces:
                async for piece in pieces:
                    self.main += piece.ids
                    if self.random.random() < 0.04:
                        self.forks.append(group.create_task(self._fork(len(self.forks) + 1)))
                    if leaves and len(self.main) > leaves:
                        found["main left"] += 1
                        break
                else:
                    self._note(request, self.main)
        kept = [fork.result() for fork in self.forks]
        joined = [*self.prompt, *self.main, *(i for chunk in kept for i in chunk)]
        request = self._request(0, joined[:LONGEST], self.random.choice([0, 1, 30]))
        await _decode(self.torture.backend, request)
        found["answers"] += 1
        if found["answers"] % 100 == 0:
            print(f"{found['answers']} answers", file=sys.stderr)

    async def _fork(self, number: int) -> list[int]:
        found = self.torture.found
        request = self._request(number, [*self.prompt, *self.main, FORKED], self.random.randint(1, 80))
        if self.torture.ranks > 1 and self.random.random() < 0.2:
            rank = self.random.randrange(self.torture.ranks)
            request = replace(request, extra={**request.extra, "routed_dp_rank": rank})
        leaves = self.random.random() < 0.25
        ids: list[int] = []
        task = asyncio.create_task(_decode(self.torture.backend, request, into=ids, found=found))
        if leaves:
            await asyncio.sleep(self.random.random() * 0.3)
            task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        found["forks left" if task.cancelled() else "forks"] += 1
        if not task.cancelled():
            self._note(request, ids)
        return ids

    def _request(self, thread: int, context: Sequence[int], tokens: int) -> DecodeRequest:
        return _request(self.name, thread, context, tokens, greedy=self.random.random() < 0.5)

    def _note(self, request: DecodeRequest, ids: Sequence[int]) -> None:
        if not request.sampling.temperature:
            self.torture.whole[request.ids] = tuple(ids)


def _request(answer: str, thread: int, context: Sequence[int], tokens: int, *, greedy: bool) -> DecodeRequest:
    sampling = Sampling(temperature=0.0 if greedy else 2.0)
    # With `ignore_eos` SGLang would reserve room for all of it, and never take any back.
    extra: dict[str, Any] = {"sampling_params": {"min_new_tokens": tokens}}
    return DecodeRequest(answer, thread, tuple(context), tokens, sampling, extra=extra)


async def _decode(
    backend: SGLangBackend,
    request: DecodeRequest,
    into: list[int] | None = None,
    found: Counter[str] | None = None,
) -> list[int]:
    ids = [] if into is None else into
    async with aclosing(backend.decode(request)) as pieces:
        async for piece in pieces:
            ids += piece.ids
            if piece.finish_reason and found is not None and piece.cached_tokens is not None:
                found["tokens of forks' contexts"] += len(request.ids)
                found["computed of them"] += len(request.ids) - piece.cached_tokens
    return ids


async def _main(url: str, options: argparse.Namespace, ranks: int) -> None:
    backend = SGLangBackend(url)
    began = time.monotonic()
    torture = Torture(backend, options.seed, options.at_once, ranks)
    await torture.run(options.answers)
    seconds = time.monotonic() - began
    differ = await torture.alone(options.alone)
    print(f"{seconds:.0f} s, {dict(torture.found)}; of {options.alone} decoded again {differ} differ")
    await backend.aclose()


def main() -> None:
    from real_server import RealServer, running_server

    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("answers", 1000), ("seed", 0), ("at-once", 12), ("alone", 100)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options, flags = parser.parse_known_args()
    ranks = int(flags[flags.index("--dp-size") + 1]) if "--dp-size" in flags else 1
    os.environ.update(STRICT)
    model = PASTA_TINY
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        small = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]
        with running_server(model, log, *small, *flags) as (url, _):
            asyncio.run(_main(url, options, ranks))
            server = RealServer(url, model)
            server.flush()
            assert server.running() == 0
        text = log.read_text()
    for what in ("KV cache pool is full. Retract", "leak detected"):
        print(f"{what}: {text.count(what)}")


if __name__ == "__main__":
    sys.exit(main())
