"""The command: everything in one run, one table."""

from __future__ import annotations

import argparse
import asyncio
import importlib
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pasta_async.evals.hardware as about
from pasta_async.cli.command import ending
from pasta_async.errors import InvalidRequestError
from pasta_async.evals import fork_modes, speed
from pasta_async.evals.command import count, positive
from pasta_async.evals.documents import documents_digest, read_documents
from pasta_async.evals.engines import cold_backend, cold_client
from pasta_async.evals.forcing import FORCED_SAMPLING
from pasta_async.evals.hardware.findings import Findings, table
from pasta_async.evals.hardware.serving import started_server
from pasta_async.evals.hardware.steps import Step, Traffic, copy_bandwidth, decode_steps
from pasta_async.evals.load.__main__ import measure as measure_load
from pasta_async.evals.methods import METHODS, Case, open_engine
from pasta_async.evals.prefix_cache import empty_prefix_cache
from pasta_async.evals.prompts import Prompt
from pasta_async.evals.random_model import SHAPES, make_model
from pasta_async.evals.records import environment, markdown_table, opened_journal
from pasta_async.evals.speedups import summarise

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from pasta_async.evals.fork_modes import Answer
    from pasta_async.evals.load import Block
    from pasta_async.evals.load.driving import Mode
    from pasta_async.evals.timing import Run
    from pasta_async.lang import Document

__all__ = ["main", "measure"]


async def measure(
    url: str,
    documents: Mapping[str, Document],
    traffic: Traffic,
    out: Path,
    *,
    passes: int = 2,
    at_once: Sequence[int] = (1, 4, 16, 64),
    answers: int = 32,
    context: int = 1024,
) -> Findings:
    """Measure everything on a server, one thing after another; what `out` has already is not measured again.

    Args:
        url: SGLang, started with --enable-custom-logit-processor.
        documents: The answers that it is made to write.
        traffic: What a decode step has to read there.
        out: Folder for the rows: speed.jsonl, load.jsonl, steps.jsonl, fork_modes.jsonl.
        passes: How often each answer is timed alone.
        at_once: Answers under way, for the load.
        answers: For each load, at least.
        context: Tokens of the prefix that the threads of a timed step share.

    Cancelling it aborts what is under way.
    """
    runs = await _speed(url, documents, out, passes)
    blocks = await _load(url, documents, out, at_once, answers)
    steps = await _steps(url, traffic, out, context)
    forks = await _forks(url, documents, out)
    return Findings(runs, blocks, steps, traffic, forks)


async def _speed(url: str, documents: Mapping[str, Document], out: Path, passes: int) -> list[Run]:
    prompts = [Prompt(text, "parallel" if d.promises else "sequential") for text, d in documents.items()]
    with opened_journal(out / "speed.jsonl", _measured("speed", url, documents, passes=passes)) as journal:
        return await speed.measure(
            partial(cold_client, url, documents),
            prompts,
            warm=prompts[:1],
            passes=passes,
            sampling=FORCED_SAMPLING,
            journal=journal,
        )


async def _load(
    url: str, documents: Mapping[str, Document], out: Path, at_once: Sequence[int], answers: int
) -> list[Block]:
    cases = [Case(index, prompt, document) for index, (prompt, document) in enumerate(documents.items())]
    methods = [METHODS["sequential"], METHODS["pasta"]]
    loads: list[tuple[Mode, float]] = [("closed", count) for count in at_once]
    with opened_journal(out / "load.jsonl", _measured("load", url, documents, answers=answers)) as journal:
        async with cold_backend(url) as backend, open_engine(backend, documents, url=url) as engine:
            return await measure_load(engine, cases, methods, loads, answers=answers, journal=journal)


async def _steps(url: str, traffic: Traffic, out: Path, context: int) -> list[Step]:
    measured = {"benchmark": "steps", "backend": url, "context": context, "bytes": traffic[:2]}
    with opened_journal(out / "steps.jsonl", measured) as journal:
        assert journal
        if known := [Step(**row) for row in journal.rows if "threads" in row]:
            return known
        async with cold_backend(url) as backend:
            steps = await decode_steps(backend, traffic, context=context)
        for step in steps:
            journal.append(step._asdict())
        return steps


async def _forks(url: str, documents: Mapping[str, Document], out: Path) -> list[Answer]:
    prompts = [Prompt(text, "documents") for text, document in documents.items() if document.promises]
    with opened_journal(out / "fork_modes.jsonl", _measured("fork_modes", url, documents)) as journal:
        assert journal
        known = [fork_modes.Answer(**row) for row in journal.rows if "mode" in row]
        if known or not prompts:
            return known
        async with cold_client(url, documents) as client:
            answers = await fork_modes.measure(
                client, prompts, sampling=FORCED_SAMPLING, empty=partial(empty_prefix_cache, url)
            )
        for answer in answers:
            journal.append(asdict(answer))
        return answers


def _measured(
    benchmark: str, url: str, documents: Mapping[str, Document], **settings: object
) -> dict[str, Any]:
    return {
        "benchmark": benchmark,
        "backend": url,
        "forced": True,
        "documents": documents_digest(documents),
        **settings,
    }


@ending(resumes=True)
def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write `table.md`, print it."""
    options = _options(arguments)
    documents = read_documents(options.documents, options.first)
    options.out.mkdir(parents=True, exist_ok=True)
    where = environment()
    device = "cuda" if importlib.import_module("torch").cuda.is_available() else "cpu"
    with _server(options, documents, device) as (url, model):
        bandwidth = options.bandwidth * 1e9 if options.bandwidth else copy_bandwidth(device)
        traffic = Traffic.of(model, width=2 if device == "cuda" else 4, bandwidth=bandwidth)
        findings = asyncio.run(
            measure(
                url,
                documents,
                traffic,
                options.out,
                passes=options.passes,
                at_once=options.at_once,
                answers=options.answers,
                context=options.context,
            )
        )
    told = [
        *(markdown_table(table(findings)), markdown_table(summarise(findings.runs))),
        f"{model.name}, {len(documents)} documents, {device}; {where}",
    ]
    (options.out / "table.md").write_text("\n\n".join(told) + "\n", encoding="utf-8")
    print("\n\n".join(told))


@contextmanager
def _server(
    options: argparse.Namespace, documents: Mapping[str, Document], device: str
) -> Generator[tuple[str, Path]]:
    """The server that runs, or one that is started; its URL and its model's folder."""
    if options.backend:
        if not options.model:
            raise InvalidRequestError(
                "--backend needs --model, the folder whose config.json tells the model's size"
            )
        yield options.backend, options.model
        return
    folder: Path = options.model or options.out / f"random-{options.shape}"
    if not (folder / "config.json").exists():
        texts = (text for prompt, document in documents.items() for text in (prompt, document.text))
        make_model(folder, texts, shape=options.shape, vocabulary=options.vocabulary, weights=False)
    extra = ["--load-format", "dummy", *(["--dtype", "bfloat16"] if device == "cuda" else [])]
    extra += options.server_arguments.split()
    with started_server(folder, options.out / "sglang.log", port=options.port, extra=extra) as url:
        yield url, folder


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="hardware", description=about.__doc__, formatter_class=form)
    add = parser.add_argument
    add("--documents", required=True, help="records with prompts and written answers")
    add("--first", type=count, help="take so many of them only")
    add("--out", type=Path, required=True, help="folder for rows and table; a broken run goes on from it")
    add("--backend", help="URL of a server that runs; else one is started")
    add("--model", type=Path, help="its model's folder; without --backend, what is served (made if missing)")
    add("--shape", choices=SHAPES, default="8b", help="of the random model that is made")
    add("--vocabulary", type=count, default=32768, help="its tokens")
    add("--port", type=int, default=30000, help="where the started server listens")
    add("--server-arguments", default="", help="more of SGLang's, in one string")
    add("--bandwidth", type=positive, help="GB/s of the memory; default: measured by a copy")
    add("--passes", type=count, default=2, help="how often each answer is timed alone")
    add("--at-once", type=count, nargs="+", default=[1, 4, 16, 64], help="answers under way, for the load")
    add("--answers", type=count, default=32, help="for each load, at least")
    add("--context", type=count, default=1024, help="tokens of the prefix in timed steps")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
