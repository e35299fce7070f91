"""Annotate answers: `python -m pasta_async.training.annotate`.

With `--base-url` and `--model`, a model behind an OpenAI-compatible endpoint puts in the tags; its key is
read from the environment. With `--heuristic`, structure alone does. In the folder OUT are then
annotated.jsonl, rejected.jsonl and summary.json, and journal.jsonl with every reply: the same command goes
on where an interrupted one was.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path  # noqa: TC003 (pydantic reads it at run time)
from typing import TYPE_CHECKING, NoReturn, Self

import anyio
from pydantic import Field, model_validator
from tqdm import tqdm

from pasta_async.cli.command import ending
from pasta_async.training.annotate.journal import Journal
from pasta_async.training.annotate.run import Rejected, Run, annotated, what_is_asked
from pasta_async.training.annotate.structure import LEAST, Cut, annotate_by_structure
from pasta_async.training.annotate.summary import Summary, count_reasons, measure
from pasta_async.training.corpus import Record
from pasta_async.training.corpus.settings import SourceSettings
from pasta_async.training.corpus.store import write_lines
from pasta_async.training.corpus.tokens import token_counter
from pasta_async.training.trainer.settings import read_command_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.training.annotate.run import Outcome
    from pasta_async.training.corpus.tokens import CountTokens

__all__ = ["AnnotateSettings", "annotate", "main"]


class AnnotateSettings(SourceSettings):
    """How to annotate. Every field is a flag of the command line."""

    out: Path = Field(description="folder of the run")
    base_url: str = Field(default="", description="of the endpoint: http://host:30000/v1")
    model: str = Field(default="", description="name of the model at the endpoint")
    key_variable: str = Field(default="OPENAI_API_KEY", description="environment variable with the key")
    temperature: float = Field(default=0.0, ge=0, description="of the annotator's sampling")
    max_tokens: int | None = Field(default=None, ge=1, description="of a reply (default: the server's)")
    in_flight: int = Field(default=32, ge=1, description="requests at a time")
    tries: int = Field(default=3, ge=1, description="replies for an answer before it is put aside")
    retries: int = Field(default=5, ge=0, description="of a request that fails on its way")
    timeout: float = Field(default=600.0, gt=0, description="seconds for a request")
    ask_from: int = Field(
        default=2 * LEAST,
        ge=0,
        description="tokens from which an answer is asked for; shorter ones stay plain",
    )
    tokenizer: Path | None = Field(
        default=None, description="model folder whose tokenizer counts the estimates (default: a rough count)"
    )
    heuristic: bool = Field(default=False, description="annotate by structure alone, without an endpoint")
    cut: Cut = Field(default="points", description="of --heuristic: points or details")
    least: int = Field(default=LEAST, ge=0, description="of --heuristic: tokens that a chunk has at least")

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if not self.heuristic and not (self.base_url and self.model):
            raise ValueError("name --base-url and --model, or choose --heuristic")
        return self


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; what does not fit ends it with status 1 and the reason, Ctrl-C with 130."""
    settings = read_command_line(AnnotateSettings, "pasta_async.training.annotate", __doc__, argv)
    with ending(resumes=True):
        print(annotate(settings))


def annotate(settings: AnnotateSettings) -> Summary:
    """Annotate, and write the files of the run.

    Raises:
        PastaError: The data or the endpoint cannot be used; replies that arrived are kept.
    """
    count = token_counter(settings.tokenizer)
    source, kept_out = settings.read()
    records = list(source)
    started = time.monotonic()
    totals, failures = Counter[str](), list[tuple[str, ...]]()
    if settings.heuristic:
        name = f"structure:{settings.cut}"
        outcomes = _by_structure(settings, records, name, count)
        totals["accepted"] = len(outcomes)
    else:
        name = settings.model
        outcomes = anyio.run(_by_endpoint, settings, records, count, totals, failures)
    accepted = [outcome for outcome in outcomes if isinstance(outcome, Record)]
    summary = Summary(
        annotator=name,
        reasons=count_reasons(failures),
        seconds=round(time.monotonic() - started, 3),
        left_out=kept_out.summary(),
        parallelism=measure([record.document for record in accepted], count),
        **{field: totals[field] for field in _TOTALS},
    )
    _write(settings.out, accepted, outcomes, summary)
    return summary


_TOTALS = (
    "accepted",
    "rejected",
    "unasked",
    "unanswered",
    "requests",
    "resumed",
    "prompt_tokens",
    "completion_tokens",
)


def _write(out: Path, accepted: Sequence[Record], outcomes: Sequence[Outcome], summary: Summary) -> None:
    write_lines(out / "annotated.jsonl", accepted)
    write_lines(out / "rejected.jsonl", (one for one in outcomes if isinstance(one, Rejected)))
    (out / "summary.json").write_text(summary.model_dump_json(indent=1) + "\n", encoding="utf-8")


def _by_structure(
    settings: AnnotateSettings, records: Sequence[Record], name: str, count: CountTokens
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for record in tqdm(records, unit=" answers"):
        text = record.document.text
        document = annotate_by_structure(text, count, cut=settings.cut, least=settings.least)
        outcomes.append(annotated(record, document, name, count))
    return outcomes


async def _by_endpoint(
    settings: AnnotateSettings,
    records: Sequence[Record],
    count: CountTokens,
    totals: Counter[str],
    failures: list[tuple[str, ...]],
) -> list[Outcome]:
    from pasta_async.training.annotate.endpoint import Endpoint  # needs the client, which takes a second

    asked = what_is_asked(settings.model, settings.temperature)
    with (
        Journal(settings.out / "journal.jsonl", asked) as journal,
        tqdm(total=len(records), unit=" answers") as bar,
    ):
        async with Endpoint(
            settings.base_url,
            settings.model,
            key_variable=settings.key_variable,
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            retries=settings.retries,
            timeout=settings.timeout,
        ) as endpoint:
            run = Run(
                endpoint,
                journal,
                settings.model,
                count,
                tries=settings.tries,
                ask_from=settings.ask_from,
                on_progress=lambda: _show(bar, totals),
                totals=totals,
                failures=failures,
            )
            return await run.annotate(records, settings.in_flight)


def _show(bar: tqdm[NoReturn], totals: Counter[str]) -> None:
    done = totals["accepted"] + totals["rejected"] + totals["unanswered"]
    tokens = totals["prompt_tokens"] + totals["completion_tokens"]
    elapsed = max(bar.format_dict["elapsed"], 1e-6)
    shown = f"{totals['accepted']} accepted, {totals['rejected']} rejected, {tokens:,} tokens"
    bar.set_postfix_str(f"{shown}, {tokens / elapsed:,.0f}/s", refresh=False)
    bar.update(done - bar.n)


if __name__ == "__main__":
    main()
