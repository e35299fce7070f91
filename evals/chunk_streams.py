"""Chunks that nobody watches: what a server's stream of their tokens costs, against one whole reply.

    python -m pasta_async.evals.chunk_streams --backend http://127.0.0.1:30000

Sends the same requests both ways, so many at once, in the order A B B A, and counts this process's CPU time
and the wall clock. A whole reply is cheaper to read, but nothing is known of a chunk until it is done: no
first token, no partial text when the answer is interrupted. So the interpreter streams unless this shows
that a whole reply is also sooner there.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pasta_async import DecodeRequest, Sampling
from pasta_async.backends import open_backend
from pasta_async.cli.command import ending
from pasta_async.evals.command import count
from pasta_async.evals.prompts import held_out
from pasta_async.evals.records import environment, markdown_table, write_rows
from pasta_async.evals.statistics import bootstrap_interval, geometric_mean
from pasta_async.jobs import progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async import Backend

__all__ = ["Round", "main", "measure", "summarise"]


@dataclass(frozen=True, slots=True)
class Round:
    """Some requests at once, all in one way."""

    at_once: int
    stream: bool
    tokens: int
    seconds: float
    cpu_seconds: float
    """Of this process, all of its threads."""


async def measure(backend: Backend, *, at_once: Sequence[int], tokens: int, rounds: int) -> list[Round]:
    """Decode up to so many tokens in each of so many requests at once, both ways in turn.

    Cancelling it aborts the requests under way.
    """
    await backend.connect()
    prompt = held_out(["describe"], 1)[0].text
    ids = tuple(await backend.encode_chat([{"role": "user", "content": prompt}], {"pasta": False}))
    found = list[Round]()
    with progress(2 * rounds * len(at_once), "rounds") as done:
        for count in at_once:
            await _round(backend, ids, count, tokens, stream=True)  # warm
            for number in range(rounds):
                for stream in (True, False) if number % 2 == 0 else (False, True):
                    found.append(await _round(backend, ids, count, tokens, stream=stream))
                    done()
    return found


async def _round(backend: Backend, ids: tuple[int, ...], count: int, tokens: int, *, stream: bool) -> Round:
    requests = [
        DecodeRequest(
            answer=f"chunk {number}",
            thread=1,
            ids=ids,
            max_tokens=tokens,
            sampling=Sampling(),
            stream=stream,
        )
        for number in range(count)
    ]
    seconds, cpu = time.perf_counter(), time.process_time()
    decoded = await asyncio.gather(*(_decode(backend, request) for request in requests))
    return Round(count, stream, sum(decoded), time.perf_counter() - seconds, time.process_time() - cpu)


async def _decode(backend: Backend, request: DecodeRequest) -> int:
    return sum([len(piece.ids) async for piece in backend.decode(request)])


def summarise(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """A row for each number of requests at once."""
    rows = list[dict[str, Any]]()
    for at_once in sorted({found.at_once for found in rounds}):
        streamed, whole = (
            [found for found in rounds if found.at_once == at_once and found.stream is stream]
            for stream in (True, False)
        )
        ratios = [b.seconds / a.seconds for a, b in zip(streamed, whole, strict=True)]
        low, high = bootstrap_interval(ratios, geometric_mean)
        rows.append(
            {
                "requests at once": at_once,
                "CPU us a token, streamed": _cost(streamed),
                "CPU us a token, whole": _cost(whole),
                "seconds whole / streamed": f"{geometric_mean(ratios):.2f} ({low:.2f} to {high:.2f})",
            }
        )
    return rows


def _cost(rounds: Sequence[Round]) -> float:
    return 1e6 * sum(found.cpu_seconds for found in rounds) / sum(found.tokens for found in rounds)


async def _run(options: argparse.Namespace) -> list[Round]:
    backend = open_backend(options.backend)
    try:
        return await measure(backend, at_once=options.at_once, tokens=options.tokens, rounds=options.rounds)
    finally:
        await backend.aclose()


@ending()
def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table, write the raw figures."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="chunk_streams", description=__doc__, formatter_class=form)
    parser.add_argument("--backend", required=True, help="URL of an SGLang server")
    parser.add_argument("--at-once", type=count, nargs="+", default=[1, 4, 16], help="requests at once")
    parser.add_argument("--tokens", type=count, default=64, help="tokens of each request, at most")
    parser.add_argument("--rounds", type=count, default=8, help="rounds each way")
    parser.add_argument("--out", help="file for the raw figures, as JSON lines")
    options = parser.parse_args(arguments)
    where = environment()
    rounds = asyncio.run(_run(options))
    print(markdown_table(summarise(rounds)))
    if options.out:
        write_rows(options.out, [{"backend": options.backend, **where}, *map(asdict, rounds)])


if __name__ == "__main__":
    main()
