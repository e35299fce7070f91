"""Annotate answers: `python -m pasta_async.training.annotate`.

With `--base-url` and `--model`, a model behind an OpenAI-compatible endpoint puts in the tags; its key is
read from the environment. Its reply is checked, and it is asked again with what was wrong. With
`--heuristic`, structure alone decides; with `--by-likelihood`, structure and the likelihood of a model in the
folder `--model`. The folder OUT then has annotated.jsonl, rejected.jsonl and summary.json, and journal.jsonl
with every reply or cost: the same command resumes an interrupted run.
"""

from __future__ import annotations

import asyncio
import hashlib
import statistics
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pasta_async.cli.command import Command, command
from pasta_async.jobs import Journal, write_json
from pasta_async.lang import Document, escape, parse
from pasta_async.protocol import Message
from pasta_async.training.annotate.checks import check_reply
from pasta_async.training.annotate.settings import AnnotateSettings
from pasta_async.training.annotate.structure import annotate_by_structure
from pasta_async.training.corpus import Record, StrictModel, digest, write_records
from pasta_async.training.endpoint import Completion, Endpoint, collect
from pasta_async.training.tokens import CountTokens, text_speedup, token_counter

_TEXTS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("prompt.toml").read_text(encoding="utf-8"))
EXAMPLES: tuple[tuple[str, str], ...] = tuple((one["prompt"], one["written"]) for one in _TEXTS["examples"])
"""Prompts, and answers in their written form: our own, as the model is shown them."""


class Rejected(StrictModel):
    """A record without an acceptable annotation, and why."""

    record: Record
    reasons: tuple[str, ...]
    """Of the last reply, or of the endpoint."""
    reply: str = ""
    """The last one."""
    answered: bool = True
    """False where the endpoint failed: the next run asks again."""


def annotate(settings: AnnotateSettings) -> dict[str, Any]:
    """Annotate, write the files of the run, and return its figures, as `summary.json` has them.

    Raises:
        PastaError: The data or the endpoint cannot be used; replies that arrived are kept.
    """
    started = time.monotonic()
    count = token_counter(settings.tokenizer)
    source, left_out = settings.read()
    records = list(source)
    totals, problems, rejected = Counter[str](), Counter[str](), list[Rejected]()
    if settings.heuristic or settings.by_likelihood:
        documents, totals = _locally(settings, records, count)
        accepted = [*map(partial(_annotated, settings, count), records, documents)]
    else:
        outcomes, annotator = asyncio.run(_by_endpoint(settings, records, count))
        totals, problems = annotator.totals, annotator.problems
        accepted = [outcome for outcome in outcomes if isinstance(outcome, Record)]
        rejected = [outcome for outcome in outcomes if isinstance(outcome, Rejected)]
    unanswered = sum(not one.answered for one in rejected)
    fields = ("measured", "too_long") if settings.by_likelihood else ()
    fields = (*fields, "unasked", "requests", "resumed", "prompt_tokens", "completion_tokens")
    summary = {
        "annotator": settings.annotator,
        "accepted": len(accepted),
        "rejected": len(rejected) - unanswered,
        "unanswered": unanswered,
        "reasons": dict(problems.most_common()),
        **{field: totals[field] for field in fields},
        "seconds": round(time.monotonic() - started, 3),
        "left_out": dict(left_out),
        "lengths": _lengths([count(record.document.text) for record in accepted]),
        "parallelism": _parallelism(accepted),
    }
    write_records(settings.out / "annotated.jsonl", accepted)
    write_records(settings.out / "rejected.jsonl", rejected)
    write_json(settings.out / "summary.json", summary)
    return summary


def _annotated(settings: AnnotateSettings, count: CountTokens, record: Record, document: Document) -> Record:
    """A record with its annotation, its theoretical speed-up among the scores."""
    scores = {**record.scores, "text_speedup": round(text_speedup(document, count), 4)}
    update = {"written": document.format(), "annotator": settings.annotator, "scores": scores}
    return record.model_copy(update=update)


def _parallelism(records: Sequence[Record]) -> dict[str, Any] | None:
    """Theoretical speed-ups of annotated answers, and how many have a promise; None without any text."""
    measured = [(record.scores["text_speedup"], len(record.document.promises)) for record in records]
    speedups = [speedup for speedup, _ in measured if speedup > 0]
    if not speedups:
        return None
    parallel = [speedup for speedup, promises in measured if promises and speedup > 0]
    return {
        "answers": len(measured),
        "any_share": len(parallel) / len(measured),
        "promises": statistics.mean([promises for _, promises in measured if promises] or [0]),
        "mean_speedup": statistics.mean(speedups),
        "geometric_mean_speedup": statistics.geometric_mean(speedups),
        "geometric_mean_any": statistics.geometric_mean(parallel) if parallel else 1.0,
        "quantiles": _quantiles(speedups),
    }


def _lengths(tokens: Sequence[int]) -> dict[str, Any] | None:
    """Tokens of answers without their tags; None without an answer."""
    if not tokens:
        return None
    return {"sum": sum(tokens), "mean": statistics.mean(tokens), "quantiles": _quantiles(tokens)}


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=100, method="inclusive") if values[1:] else [*values] * 99
    return {f"p{share}": cuts[share - 1] for share in (10, 25, 50, 75, 90, 99)}


def _locally(
    settings: AnnotateSettings, records: Sequence[Record], count: CountTokens
) -> tuple[list[Document], Counter[str]]:
    """Annotate without an endpoint."""
    if settings.heuristic:
        texts = (record.document.text for record in records)
        return [annotate_by_structure(text, count, settings.cut, settings.least) for text in texts], Counter()
    from pasta_async.training.annotate.likelihood import annotate_by_likelihood  # needs torch

    return annotate_by_likelihood(records, settings, count)


async def _by_endpoint(
    settings: AnnotateSettings, records: Sequence[Record], count: CountTokens
) -> tuple[list[Record | Rejected], Annotator]:
    prompt = hashlib.sha256(repr((_TEXTS["instructions"], EXAMPLES)).encode()).hexdigest()[:16]
    identity = {"model": settings.model, "prompt": prompt}
    with Journal(settings.out / "journal.jsonl", identity, durable=True) as journal:
        async with Endpoint(settings.base_url, settings.model, settings, temperature=0.0) as endpoint:
            annotator = Annotator(endpoint, journal, settings, count)
            numbers = range(len(records))
            found, failures = await collect(
                numbers, lambda number: annotator.annotate(records[number]), settings.in_flight
            )
    for number, failure in failures.items():
        reasons = (f"endpoint: {failure}",)
        found[number] = Rejected(record=records[number], reasons=reasons, answered=False)
    return [found[number] for number in numbers], annotator


class Annotator:
    """Annotates records by a model behind an endpoint.

    The journal keeps every reply before anything is made of it; none that it holds is asked for again.
    """

    def __init__(
        self, endpoint: Endpoint, journal: Journal, settings: AnnotateSettings, count: CountTokens
    ) -> None:
        self._endpoint, self._journal, self._settings, self._count = endpoint, journal, settings, count
        self.totals: Counter[str] = Counter()
        """Records: unasked (too short). Replies: requests (of this run), resumed (from the journal),
        prompt_tokens and completion_tokens (of both)."""
        self.problems: Counter[str] = Counter()
        """Replies that were not accepted, by the code of their first problem."""
        self._finished = partial(_annotated, settings, count)
        self._kept: defaultdict[str, list[Completion]] = defaultdict(list)
        for row in map(dict[str, Any], journal.rows):
            self._kept[row.pop("key")].append(Completion(**row))

    async def annotate(self, record: Record) -> Record | Rejected:
        """Annotate a record: from the journal as far as it goes, then by requests.

        A cancellation ends its request; replies that arrived are in the journal.

        Raises:
            BackendError: The endpoint failed.
        """
        text = record.document.text
        if self._count(text) < self._settings.ask_from:
            self.totals["unasked"] += 1
            return self._finished(record, parse(record.written))
        key, opening = digest(record.messages, text), first_prompt(record)
        messages, reasons, reply = opening, tuple[str, ...](), ""
        kept = iter(self._kept[key])
        for _ in range(self._settings.tries):
            completion = await self._reply(key, messages, next(kept, None))
            found = check_reply(text, completion.text, self._count)
            if isinstance(found, Document):
                return self._finished(record, found)
            reasons = tuple(problem.message for problem in found)
            cut = completion.finish_reason == "length"
            self.problems["reply-cut" if cut else found[0].code] += 1
            reasons = ("reply-cut: the reply reached its token limit", *reasons) if cut else reasons
            reply, messages = completion.text, [*opening, *_retry(completion.text, reasons)]
        return Rejected(record=record, reasons=reasons, reply=reply)

    async def _reply(self, key: str, messages: Sequence[Message], kept: Completion | None) -> Completion:
        self.totals["resumed" if kept else "requests"] += 1
        completion = kept or await self._endpoint.complete(messages)
        if not kept:
            self._journal.append({"key": key, **completion._asdict()})
        self.totals["prompt_tokens"] += completion.prompt_tokens
        self.totals["completion_tokens"] += completion.completion_tokens
        return completion


def first_prompt(record: Record) -> list[Message]:
    """The messages that ask for an annotation of a record's answer: the language, examples, the answer."""
    messages = [{"role": "system", "content": _TEXTS["instructions"]}]
    for prompt, written in EXAMPLES:
        messages.append(_request(prompt, parse(written).text))
        messages.append({"role": "assistant", "content": written})
    return [*messages, _request(record.prompt, record.document.text)]


def _request(prompt: str, response: str) -> Message:
    return {"role": "user", "content": f"PROMPT:\n{prompt}\n\nRESPONSE:\n{escape(response)}"}


def _retry(reply: str, reasons: Iterable[str]) -> list[Message]:
    """The messages that follow when a reply was not accepted."""
    wrong = "\n".join(f"- {reason}" for reason in reasons)
    request = f"This is not right yet:\n{wrong}\n\nReply with the whole response and its tags, corrected."
    return [{"role": "assistant", "content": reply}, {"role": "user", "content": request}]


main: Command = command(AnnotateSettings, annotate, "pasta_async.training.annotate", __doc__, resumes=True)
