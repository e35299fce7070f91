"""What the interpreter costs: CPU for a streamed token, memory for an open thread.

    python -m pasta_async.evals.interpreter_cost

A scripted backend that takes no time stands in for a model; what it costs itself is measured alone and
reported apart.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pasta_async.cli.command import ending
from pasta_async.evals.command import count
from pasta_async.evals.records import environment, markdown_table, write_rows
from pasta_async.evals.thread_memory import ThreadMemory, measure_memory
from pasta_async.evals.token_cost import TokenCost, measure_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.observers import Observer

__all__ = ["main"]


@ending()
def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print two tables, write the raw figures."""
    options = _options(arguments)
    where = environment()
    observers = _telemetry() if options.telemetry else []
    tokens = [
        measure_tokens(answers=options.answers, together=together, rounds=options.rounds, observers=observers)
        for together in options.together
    ]
    print(markdown_table([_token_row(cost) for cost in tokens]), end="\n\n", flush=True)
    memory = [
        measure_memory(answers=options.threads // 8, prompt_words=words) for words in options.prompt_words
    ]
    print(markdown_table([_memory_row(cost) for cost in memory]))
    if options.out:
        write_rows(options.out, [where, *map(asdict, tokens), *map(asdict, memory)])


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="interpreter_cost", description=__doc__)
    parser.add_argument("--answers", type=count, default=32, help="answers in a round")
    parser.add_argument(
        "--together", type=int, nargs="*", default=[1, 16], help="answers that run at the same time"
    )
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument(
        "--telemetry", action="store_true", help="with metrics, traces and logs, which go nowhere"
    )
    parser.add_argument("--threads", type=count, default=10_000, help="threads that are open at once")
    parser.add_argument("--prompt-words", type=int, nargs="*", default=[16, 1000])
    parser.add_argument("--out", help="file for the raw figures, as JSON lines")
    return parser.parse_args(arguments)


def _telemetry() -> list[Observer]:
    from opentelemetry.sdk.trace import TracerProvider
    from prometheus_client import CollectorRegistry

    from pasta_async.telemetry.logs import Logs
    from pasta_async.telemetry.metrics import Metrics
    from pasta_async.telemetry.tracing import Tracing

    return [Metrics(CollectorRegistry()), Tracing(TracerProvider()), Logs()]


def _token_row(cost: TokenCost) -> dict[str, Any]:
    return {
        "answers at once": cost.together,
        "threads at once": cost.together * cost.chunks,
        "tokens": cost.tokens,
        "events": cost.events,
        "µs a token": cost.total,
        "of it backend": cost.backend,
        "interpreter": cost.total - cost.backend,
    }


def _memory_row(cost: ThreadMemory) -> dict[str, Any]:
    return {
        "open threads": cost.threads,
        "answers": cost.answers,
        "prompt tokens": cost.prompt_tokens,
        "KB a thread": cost.allocated / 1000,
        "of it backend": cost.backend / 1000,
        "resident KB": cost.resident / 1000,
    }


if __name__ == "__main__":
    main()
