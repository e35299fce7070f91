"""Compare ways to decode one answer in parallel: same engine, prompts and answers, in one run.

    python -m pasta_async.evals.methods --backend local:FOLDER --documents documents.jsonl --sample 60
    python -m pasta_async.evals.methods --backend http://127.0.0.1:30000 --documents documents.jsonl

The answers are forced (pasta_async.evals.forcing), so every method decodes the same text, and
whatever it needs besides: tags, an outline, its prompts. An SGLang server has to be started with
--enable-custom-logit-processor and --enable-cache-report. The methods take turns at each answer, in an order
that goes round, and a number before the question keeps an answer from finding another's KV. Before anything
counts, each method writes an answer of another kind. Every ratio is of the same answers, prompt by prompt.
With --llama-cpp, llama.cpp writes the same plain text, with the same weights, as a method of its own.
This compares speed; it does not say which method a model could follow, or how good its answers would be.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

from pydantic import Field

from pasta_async import Backend
from pasta_async.cli.command import Command, Count, command
from pasta_async.errors import InvalidRequestError
from pasta_async.evals.answers import Answer, Answering, describe_costs, describe_speedup, of_form, take_turns
from pasta_async.evals.documents import ForcedSettings, read_documents
from pasta_async.evals.engines import cold_backend
from pasta_async.evals.methods.strategies import METHODS, llama_cpp
from pasta_async.evals.methods.track import Method, cases_of, open_engine, play, warm_up
from pasta_async.evals.peers import LlamaCppSettings, open_llama_cpp
from pasta_async.evals.records import markdown_table, opened_journal
from pasta_async.jobs import Journal
from pasta_async.lang import Document


async def measure(
    opened: Callable[[], AbstractAsyncContextManager[Backend]],
    documents: Mapping[str, Document],
    methods: Sequence[Method],
    *,
    passes: int,
    journal: Journal | None = None,
) -> list[Answer]:
    """Write every answer by every method, `passes` times, on a backend that is opened anew for each pass.

    See `take_turns`. Cancelling it cancels the answer under way.
    """
    cases, by_name = cases_of(documents), {method.name: method for method in methods}

    @asynccontextmanager
    async def warmed_up() -> AsyncGenerator[Answering]:
        async with opened() as backend, open_engine(backend, documents) as engine:
            await warm_up(engine, methods)
            yield lambda index, name, number: play(engine, by_name[name], cases[index], number)

    return await take_turns(warmed_up, len(cases), [*by_name], passes=passes, journal=journal)


def summarise(rows: Sequence[Answer]) -> list[dict[str, Any]]:
    """A row for each method; speed-ups are against `sequential`, intervals 95% over prompts.

    `against X` is how many times as soon as X it is, at the same prompts.
    """
    names = list(dict.fromkeys(row.method for row in rows))
    bases = [name for name in ("pasta", "sequential, whole") if name in names]
    return [
        {
            "method": name,
            **describe_speedup(rows, name, "sequential"),
            **{f"against {base}": describe_speedup(rows, name, base)["speed-up"] for base in bases},
            **describe_costs(of_form(rows, name)),
        }
        for name in names
    ]


def methods_for(names: Sequence[str], backend: str) -> list[Method]:
    """The methods of these names, or all that can run on this backend, the sequential one first.

    Raises:
        InvalidRequestError: One of them is unknown, or cannot run there.
    """
    at_server = backend.startswith(("http", "sglang:"))
    possible = [name for name, method in METHODS.items() if at_server or not method.needs_server]
    if bad := [name for name in names if name not in possible]:
        raise InvalidRequestError(f"{bad[0]!r} cannot run on {backend}; what can: {', '.join(possible)}")
    wanted = names or [name for name in possible if not METHODS[name].optional]
    return [METHODS[name] for name in dict.fromkeys(["sequential", *wanted])]


class MethodSettings(ForcedSettings, LlamaCppSettings):
    """What is compared, and where."""

    methods: tuple[str, ...] = Field(default=(), description="default: all that can run there, but `auto`")
    passes: Count = Field(default=3, description="how often all of it is done")


def _run(settings: MethodSettings) -> str:
    documents = read_documents(settings.documents, settings.sample)
    methods = methods_for(settings.methods, settings.backend)
    measured = {
        **asyncio.run(settings.measured("methods", documents)),
        "passes": settings.passes,
        "methods": [method.name for method in methods],
        "threads": settings.threads,
        "llama_cpp": settings.llama_cpp and settings.llama_cpp_type,
    }
    opened = partial(cold_backend, settings.backend, **settings.options_of(settings.backend))
    with open_llama_cpp(settings) as peer, opened_journal(settings.out, measured) as journal:
        methods += [llama_cpp(peer)] if peer else []
        work = measure(opened, documents, methods, passes=settings.passes, journal=journal)
        table = markdown_table(summarise(asyncio.run(work)))
    return "\n".join([table, "", *(f"- {method.name}: {method.source}" for method in methods)])


main: Command = command(MethodSettings, _run, "methods", __doc__, resumes=True)

if __name__ == "__main__":
    main()
