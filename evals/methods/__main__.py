"""Compare ways to decode one answer in parallel: same engine, prompts and answers, in one run.

    python -m pasta_async.evals.methods --backend local:FOLDER --documents documents.jsonl --first 20
    python -m pasta_async.evals.methods --backend http://127.0.0.1:30000 --documents documents.jsonl

The answers are forced (pasta_async.evals.forcing), so every method decodes the same text, and
whatever it needs besides: tags, an outline, its prompts. An SGLang server has to be started with
--enable-custom-logit-processor and --enable-cache-report. The methods take turns at each answer, in an order
that goes round, and a number before the question keeps an answer from finding another's KV. The first answer
is written once by each method before anything counts. This compares speed; it does not say which method a
model could follow, or how good its answers would be.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from functools import partial
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from statistics import geometric_mean, mean
from typing import TYPE_CHECKING, Any

from pydantic import Field

from pasta_async.errors import InvalidRequestError
from pasta_async.evals.commands import Command, DocumentSettings, command
from pasta_async.evals.documents import documents_digest, read_documents
from pasta_async.evals.engines import cold_backend
from pasta_async.evals.methods import METHODS, Played, cases_of, open_engine, play
from pasta_async.evals.records import markdown_table, measurements, opened_journal
from pasta_async.evals.statistics import estimate, format_estimate, format_share
from pasta_async.jobs import progress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from pasta_async import Backend
    from pasta_async.evals.methods import Method
    from pasta_async.jobs import Journal
    from pasta_async.lang import Document

__all__ = ["MethodSettings", "main", "measure", "methods_for", "summarise"]


async def measure(
    opened: Callable[[], AbstractAsyncContextManager[Backend]],
    documents: Mapping[str, Document],
    methods: Sequence[Method],
    *,
    url: str = "",
    passes: int = 1,
    journal: Journal | None = None,
) -> list[Played]:
    """Write every answer by every method, `passes` times.

    Args:
        opened: Gives a backend whose prefix cache is cold; called for each pass.
        documents: The answers, by prompt.
        methods: What is compared.
        url: Where the backend is, for methods that talk to a server by themselves.
        passes: How often all of it is done.
        journal: Keeps every row as it comes; those that it has already are not taken again.

    Cancelling it cancels the answer under way.
    """
    cases = cases_of(documents)
    rows = [Played(**row) for row in measurements(journal)]
    known = {(row.prompt, row.method, row.number) for row in rows}
    with progress(passes * len(cases) * len(methods), "answers") as done:
        for number in range(passes):
            async with opened() as backend, open_engine(backend, documents, url=url) as engine:
                for method in methods:
                    await play(engine, method, cases[0])
                for case in cases:
                    turn = (case.index + number) % len(methods)
                    for method in (*methods[turn:], *methods[:turn]):
                        if (case.index, method.name, number) not in known:
                            rows.append(await play(engine, method, case, number))
                            if journal:
                                journal.append(asdict(rows[-1]))
                        done()
    return rows


def summarise(rows: Sequence[Played]) -> list[dict[str, Any]]:
    """A row for each method; speed-ups are against `sequential`, intervals 95% over prompts."""
    base = _seconds(rows, "sequential")
    paths = {row.prompt: row.critical_path for row in rows if row.method == "sequential"}
    result = list[dict[str, Any]]()
    for name in dict.fromkeys(row.method for row in rows):
        own = [row for row in rows if row.method == name]
        seconds = _seconds(own, name)
        ratios = [base[prompt] / seconds[prompt] for prompt in seconds]
        cached = sum(row.cached_tokens for row in own)
        result.append(
            {
                "method": name,
                "answers": len(seconds),
                "speed-up": format_estimate(estimate(ratios), ".2f"),
                "theoretical": geometric_mean([paths[row.prompt] / row.critical_path for row in own]),
                "seconds": mean(row.seconds for row in own),
                "first token ms": 1000 * mean(row.first_token for row in own),
                "tokens": mean(row.tokens for row in own),
                "critical path": mean(row.critical_path for row in own),
                "requests": mean(row.requests for row in own),
                "prefilled": mean(row.prefilled_tokens for row in own),
                "cached": format_share(cached, cached + sum(row.prefilled_tokens for row in own)),
            }
        )
    return result


def _seconds(rows: Sequence[Played], method: str) -> dict[int, float]:
    """Seconds of a method for each prompt, over all passes (geometric mean)."""
    prompts = dict.fromkeys(row.prompt for row in rows if row.method == method)
    return {
        prompt: geometric_mean([r.seconds for r in rows if (r.method, r.prompt) == (method, prompt)])
        for prompt in prompts
    }


def methods_for(names: Sequence[str], backend: str) -> list[Method]:
    """The methods of these names, or all that can run on this backend, the sequential one first.

    Raises:
        InvalidRequestError: One of them is unknown, or cannot run there.
    """
    at_server = backend.startswith("http")
    possible = [name for name, method in METHODS.items() if at_server or not method.needs_server]
    if bad := [name for name in names if name not in possible]:
        raise InvalidRequestError(f"{bad[0]!r} cannot run on {backend}; what can: {', '.join(possible)}")
    return [METHODS[name] for name in dict.fromkeys(["sequential", *(names or possible)])]


class MethodSettings(DocumentSettings):
    """What is compared, and where."""

    backend: str = Field(description="local:FOLDER, the URL of an SGLang server, or simulated:FILE")
    methods: tuple[str, ...] = Field(default=(), description="default: all that can run there")
    passes: int = Field(default=1, ge=1, description="how often all of it is done")
    out: Path | None = Field(
        default=None, description="file for the raw figures; one that was broken off is gone on with"
    )


def _run(settings: MethodSettings) -> None:
    documents = read_documents(settings.documents, settings.first)
    methods = methods_for(settings.methods, settings.backend)
    measured = {
        "benchmark": "methods",
        "backend": settings.backend,
        "documents": documents_digest(documents),
        "passes": settings.passes,
        "methods": [method.name for method in methods],
    }
    opened = partial(cold_backend, settings.backend)
    with opened_journal(settings.out, measured) as journal:
        rows = asyncio.run(
            measure(opened, documents, methods, url=settings.backend, passes=settings.passes, journal=journal)
        )
    print(markdown_table(summarise(rows)))
    print("\n" + "\n".join(f"- {method.name}: {method.source}" for method in methods))


main: Command = command(MethodSettings, _run, "methods", __doc__, resumes=True)

if __name__ == "__main__":
    main()
