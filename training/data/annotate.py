"""Annotate answers: `python -m pasta_async.training.data.annotate`.

`--by` says who puts in the tags. `endpoint`: a model behind an OpenAI-compatible endpoint, `--base-url` and
`--model`; its key is read from the environment, its reply is checked, and it is asked again with what was
wrong. `structure`: structure alone. `likelihood`: structure and the likelihood of a model in the folder
`--model`. The folder OUT then has annotated.jsonl, rejected.jsonl and summary.json, and journal.jsonl with
every reply or cost: the same command resumes an interrupted run.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from pasta_async.backends.options import TorchDType
from pasta_async.cli.command import Command, Count, command, run_coroutine
from pasta_async.lang import Document
from pasta_async.model_folder import write_json
from pasta_async.training.data.annotate_endpoint import Annotator, Rejected
from pasta_async.training.data.annotate_structure import (
    LEAST,
    Cut,
    annotate_by_structure,
    structure_marks,
    with_bold_heads,
)
from pasta_async.training.data.corpus import Record, SourceSettings, write_records
from pasta_async.training.endpoint import Endpoint, EndpointSettings
from pasta_async.training.jobs import Journal, collect
from pasta_async.training.views import text_speedup, with_blank_lines


class AnnotateSettings(SourceSettings, EndpointSettings):
    """Options of the three ways to annotate; the recipes have other thresholds."""

    out: Path = Field(description="folder of the run")
    by: Literal["endpoint", "structure", "likelihood"] = Field(
        default="endpoint",
        description="a model behind --base-url, structure alone, or what the model in the folder --model "
        "finds independent",
    )
    base_url: str = Field(default="", description="of the endpoint: http://host:30000/v1")
    model: str = Field(default="", description="name of the model at the endpoint, or folder of a model")
    tries: int = Field(default=3, ge=1, description="replies for an answer before it is rejected")
    tau: float = Field(default=0.5, description="bits a token that a chunk may cost without its siblings")
    item_slack: float = Field(default=1.5, description="bits a token that an item of a list may cost more")
    sync_tau: float = Field(
        default=0.8, description="bits a token that the text behind chunks may cost without a sync"
    )
    cut: Cut = Field(default="points", description="of structure and likelihood: what is promised")
    least: Count = Field(
        default=LEAST,
        description="of structure and likelihood: tokens, by a rough count, from which a piece is promised",
    )
    blank_lines: bool = Field(
        default=False, description="end each chunk that ends a line with an empty line, also the last one"
    )
    bold_heads: bool = Field(
        default=False, description="make the heads of promised items bold, and other items' topics lower case"
    )
    dtype: TorchDType = Field(
        default="auto", description="of likelihood's model; auto: bfloat16 on CUDA, else float32"
    )

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if self.by == "likelihood" and not self.model:
            raise ValueError("--by likelihood needs --model, the folder of a model")
        remote = self.base_url.startswith(("http://", "https://")) and self.model
        if self.by == "endpoint" and not remote:
            raise ValueError(
                "give --base-url http://host:30000/v1 and --model, or choose --by structure or likelihood"
            )
        return self

    @property
    def annotator(self) -> str:
        """The name for `Record.annotator`."""
        if self.by == "likelihood":
            return f"likelihood:{Path(self.model).resolve().name}"
        return f"structure:{self.cut}" if self.by == "structure" else self.model


def annotate(settings: AnnotateSettings) -> dict[str, Any]:
    """Annotate, write the files of the run, and return its figures, as `summary.json` has them.

    Raises:
        PastaError: The data or the endpoint cannot be used; replies that arrived are kept.
    """
    started = time.monotonic()
    records, left_out = settings.read()
    rejected: list[Rejected] = []
    totals: Counter[str] = Counter()
    problems: Counter[str] = Counter()
    documents: Sequence[Document | Rejected]
    journal = settings.out / "journal.jsonl"
    texts = [record.document.text for record in records]
    if settings.by == "structure":
        documents = [annotate_by_structure(text, settings.cut, settings.least) for text in texts]
    elif settings.by == "likelihood":
        from pasta_async.training.data.annotate_likelihood import annotate_by_likelihood  # needs torch
        from pasta_async.training.likelihood import read_by

        candidates = [structure_marks(text, settings.cut, settings.least) for text in texts]
        with Journal(journal, read_by(settings.model, settings.dtype)) as costs:
            documents, totals = annotate_by_likelihood(
                records,
                candidates,
                costs,
                folder=settings.model,
                dtype=settings.dtype,
                tau=settings.tau,
                item_slack=settings.item_slack,
                sync_tau=settings.sync_tau,
            )
    else:
        documents, totals, problems = run_coroutine(_by_endpoint(records, settings, journal))
    accepted: list[Record] = []
    for record, document in zip(records, documents, strict=True):
        if isinstance(document, Rejected):
            rejected.append(document)
        else:
            document = with_bold_heads(document) if settings.bold_heads else document
            document = with_blank_lines(document) if settings.blank_lines else document
            accepted.append(_annotated(record, document, settings.annotator))
    unanswered = sum(not rejection.answered for rejection in rejected)
    summary = {
        "annotator": settings.annotator,
        "accepted": len(accepted),
        "rejected": len(rejected) - unanswered,
        "unanswered": unanswered,
        "reasons": dict(problems.most_common()),
        **dict(totals),
        "seconds": round(time.monotonic() - started, 3),
        "left_out": left_out,
        **_parallelism(accepted),
    }
    write_records(settings.out / "annotated.jsonl", accepted)
    write_records(settings.out / "rejected.jsonl", rejected)
    write_json(settings.out / "summary.json", summary)
    return summary


async def _by_endpoint(
    records: Sequence[Record], settings: AnnotateSettings, journal: Path
) -> tuple[list[Document | Rejected], Counter[str], Counter[str]]:
    """A document or a rejection for each record, the totals, and the counts of problems by their codes."""
    with Journal(journal, {"model": settings.model}) as replies:
        endpoint = Endpoint(settings.base_url, settings.model, settings, replies, temperature=0.0)
        async with endpoint:
            annotator = Annotator(endpoint, settings.tries)
            numbers = range(len(records))
            outcomes, failures = await collect(
                numbers, lambda number: annotator.annotate(records[number]), settings.together
            )
    for number, failure in failures.items():
        reasons = (f"endpoint: {failure}",)
        outcomes[number] = Rejected(record=records[number], reasons=reasons, answered=False)
    totals = Counter({**endpoint.totals, "unasked": annotator.unasked})
    return [outcomes[number] for number in numbers], totals, annotator.problems


def _annotated(record: Record, document: Document, annotator: str) -> Record:
    """The record with its annotation, and with its theoretical speed-up as a score."""
    scores = {**record.scores, "text_speedup": round(text_speedup(document), 4)}
    update = {"written": document.format(), "annotator": annotator, "scores": scores}
    return record.model_copy(update=update)


def _parallelism(records: Sequence[Record]) -> dict[str, float]:
    """Promises and theoretical speed-ups of annotated answers; an answer without a promise counts as 1."""
    promises = [len(record.document.promises) for record in records]
    parallel = sum(1 for number in promises if number)
    speedups = [record.scores["text_speedup"] for record in records]
    return {
        "with_promises": parallel / max(1, len(records)),
        "mean_promises": sum(promises) / max(1, parallel),
        "geometric_mean_speedup": statistics.geometric_mean(speedups or [1.0]),
    }


main: Command = command(
    AnnotateSettings, annotate, "pasta_async.training.data.annotate", __doc__, resumes=True
)

if __name__ == "__main__":
    main()
