"""Annotate answers: `python -m pasta_async.training.annotate`.

With `--base-url` and `--model`, a model behind an OpenAI-compatible endpoint puts in the tags; its key is
read from the environment. With `--heuristic`, structure alone does. The folder OUT then has annotated.jsonl,
rejected.jsonl and summary.json, and journal.jsonl with every reply: the same command resumes an interrupted
run.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections import Counter
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from pasta_async.cli.command import run_command
from pasta_async.jobs import Journal, for_each, progress
from pasta_async.training.annotate.annotator import Annotator, Rejected, annotated, journal_identity
from pasta_async.training.annotate.structure import LEAST, Cut, annotate_by_structure
from pasta_async.training.corpus.records import Record, write_records
from pasta_async.training.corpus.sources import SourceSettings
from pasta_async.training.corpus.tokens import token_counter
from pasta_async.training.endpoint import Endpoint, EndpointSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.training.corpus.tokens import CountTokens

__all__ = ["AnnotateSettings", "annotate", "main"]


class AnnotateSettings(SourceSettings, EndpointSettings):
    """How to annotate. Every field is a flag of the command line."""

    out: Path = Field(description="folder of the run")
    base_url: str = Field(default="", description="of the endpoint: http://host:30000/v1")
    model: str = Field(default="", description="name of the model at the endpoint")
    tries: int = Field(default=3, ge=1, description="replies for an answer before it is rejected")
    ask_from: int = Field(
        default=2 * LEAST, ge=0, description="tokens from which an answer is sent; shorter ones stay plain"
    )
    tokenizer: Path | None = Field(
        default=None, description="model folder whose tokenizer counts the estimates (default: a rough count)"
    )
    heuristic: bool = Field(default=False, description="annotate by structure alone, without an endpoint")
    cut: Cut = Field(default="points", description="of --heuristic: points or details")

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if not self.heuristic and not (self.base_url.startswith(("http://", "https://")) and self.model):
            raise ValueError("give --base-url http://host:30000/v1 and --model, or choose --heuristic")
        return self


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; see `run_command`, also for how it ends."""
    run_command(
        AnnotateSettings,
        lambda settings: print(json.dumps(annotate(settings), indent=1)),
        program="pasta_async.training.annotate",
        description=__doc__,
        arguments=argv,
        resumes=True,
    )


def annotate(settings: AnnotateSettings) -> dict[str, Any]:
    """Annotate, write the files of the run, and return its figures, as `summary.json` has them.

    Raises:
        PastaError: The data or the endpoint cannot be used; replies that arrived are kept.
    """
    started = time.monotonic()
    count = token_counter(settings.tokenizer)
    source, leaks = settings.read()
    records = list(source)
    totals, problems = Counter[str](), Counter[str]()
    if settings.heuristic:
        name = f"structure:{settings.cut}"
        outcomes: list[Record | Rejected] = []
        for record in records:
            document = annotate_by_structure(record.document.text, count, settings.cut)
            outcomes.append(annotated(record, document, name, count))
    else:
        name = settings.model
        outcomes, annotator = asyncio.run(_by_endpoint(settings, records, count))
        totals, problems = annotator.totals, annotator.problems
    accepted = [outcome for outcome in outcomes if isinstance(outcome, Record)]
    rejected = [outcome for outcome in outcomes if isinstance(outcome, Rejected)]
    fields = ("unasked", "unanswered", "requests", "resumed", "prompt_tokens", "completion_tokens")
    summary = {
        "annotator": name,
        "accepted": len(accepted),
        "rejected": len(rejected) - totals["unanswered"],
        "reasons": dict(problems.most_common()),
        **{field: totals[field] for field in fields},
        "seconds": round(time.monotonic() - started, 3),
        "left_out": dict(leaks.counts),
        "parallelism": _parallelism(accepted),
    }
    write_records(settings.out / "annotated.jsonl", accepted)
    write_records(settings.out / "rejected.jsonl", rejected)
    (settings.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return summary


async def _by_endpoint(
    settings: AnnotateSettings, records: Sequence[Record], count: CountTokens
) -> tuple[list[Record | Rejected], Annotator]:
    outcomes: dict[int, Record | Rejected] = {}
    journal = Journal(settings.out / "journal.jsonl", journal_identity(settings.model), durable=True)
    with journal, progress(len(records), "answers") as advance:
        async with Endpoint(settings.base_url, settings.model, settings, temperature=0.0) as endpoint:
            annotator = Annotator(endpoint, settings.model, journal, count, settings.tries, settings.ask_from)

            async def work(numbered: tuple[int, Record]) -> None:
                number, record = numbered
                outcomes[number] = await annotator.annotate(record)
                advance()

            await for_each(enumerate(records), work, settings.in_flight)
    return [outcomes[number] for number in range(len(records))], annotator


def _parallelism(records: Sequence[Record]) -> dict[str, Any] | None:
    """Theoretical speed-ups of annotated answers, and how many have a promise; None without any text."""
    measured = [(record.scores["text_speedup"], len(record.document.promises)) for record in records]
    speedups = [speedup for speedup, _ in measured if speedup > 0]
    if not speedups:
        return None
    parallel = [speedup for speedup, promises in measured if promises and speedup > 0]
    percentiles = statistics.quantiles(speedups, n=100, method="inclusive") if speedups[1:] else speedups * 99
    return {
        "answers": len(measured),
        "any_share": len(parallel) / len(measured),
        "promises": statistics.mean([promises for _, promises in measured if promises] or [0]),
        "mean_speedup": statistics.mean(speedups),
        "geometric_mean_speedup": statistics.geometric_mean(speedups),
        "geometric_mean_any": statistics.geometric_mean(parallel) if parallel else 1.0,
        "quantiles": {f"p{share}": percentiles[share - 1] for share in (10, 25, 50, 75, 90, 99)},
    }


if __name__ == "__main__":
    main()
