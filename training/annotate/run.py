"""Annotates many answers: asks, checks, asks again with what was wrong, or puts aside."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel, ConfigDict

from pasta_async.errors import BackendError
from pasta_async.jobs import for_each
from pasta_async.lang import parse
from pasta_async.training.annotate.checking import check_reply
from pasta_async.training.annotate.examples import EXAMPLES
from pasta_async.training.annotate.journal import Asked, Reply
from pasta_async.training.annotate.prompt import INSTRUCTIONS, first_prompt, retry_prompt
from pasta_async.training.corpus import Record
from pasta_async.training.corpus.record import digest
from pasta_async.training.corpus.tokens import text_speedup
from pasta_async.training.patience import Patience

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pasta_async.lang import Document
    from pasta_async.protocol import Message
    from pasta_async.training.annotate.endpoint import Endpoint
    from pasta_async.training.annotate.journal import Journal
    from pasta_async.training.corpus.tokens import CountTokens

__all__ = ["Outcome", "Rejected", "Run", "annotated", "what_is_asked"]


class Rejected(BaseModel):
    """A record that was put aside, and why."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    record: Record
    """As it was before."""
    reasons: tuple[str, ...]
    """Of the last reply, or of the endpoint."""
    reply: str = ""
    """The last one."""
    answered: bool = True
    """False where the endpoint failed: the next run asks again."""


Outcome = Record | Rejected


def annotated(record: Record, document: Document, annotator: str, count: CountTokens) -> Record:
    """A record with its annotation, its theoretical speed-up among the scores."""
    speedup = round(text_speedup(document, count), 4)
    scores = {**record.scores, "text_speedup": speedup}
    return record.model_copy(update={"written": document.format(), "annotator": annotator, "scores": scores})


def what_is_asked(model: str, temperature: float) -> Asked:
    """What a journal holds the replies to."""
    content = repr((INSTRUCTIONS, EXAMPLES)).encode()
    return Asked(model=model, prompt=hashlib.sha256(content).hexdigest()[:16], temperature=temperature)


@dataclass(slots=True)
class Run:
    """One run over some records.

    Args:
        endpoint: Who annotates.
        journal: Where replies are kept; those that are in it are not asked for again.
        annotator: The name for `Record.annotator`.
        count: Measures chunks for their estimates.
        tries: Replies for one record before it is put aside.
        ask_from: Tokens from which an answer is worth asking for; shorter ones stay plain.
        on_progress: Called after each reply and each outcome.
    """

    endpoint: Endpoint
    journal: Journal
    annotator: str
    count: CountTokens
    tries: int = 3
    ask_from: int = 40
    on_progress: Callable[[], None] = lambda: None
    totals: Counter[str] = field(default_factory=Counter[str])
    """accepted, rejected, unasked, unanswered, requests, resumed, prompt_tokens, completion_tokens."""
    failures: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    """The reasons of each reply that did not pass."""
    _patience: Patience = field(init=False)

    def __post_init__(self) -> None:
        self._patience = Patience(proven=bool(self.journal.replies))

    async def annotate(self, records: Sequence[Record], in_flight: int) -> list[Outcome]:
        """Annotate records, at most `in_flight` at a time; outcomes are in the order of the records.

        A cancellation ends all requests; the journal keeps what arrived.

        Raises:
            BackendError: The endpoint cannot be reached or refuses everything.
        """
        outcomes: dict[int, Outcome] = {}

        async def annotate(one: tuple[int, Record]) -> None:
            number, record = one
            outcome = await self._annotate(record)
            accepted = isinstance(outcome, Record)
            kind = "accepted" if accepted else "rejected" if outcome.answered else "unanswered"
            self.totals[kind] += 1
            outcomes[number] = outcome
            self.on_progress()

        await for_each(enumerate(records), annotate, min(in_flight, len(records)))
        return [outcomes[number] for number in range(len(records))]

    async def _annotate(self, record: Record) -> Outcome:
        """One record: from the journal as far as it goes, then by asking."""
        text = record.document.text
        if self.count(text) < self.ask_from:
            self.totals["unasked"] += 1
            return annotated(record, parse(record.written), self.annotator, self.count)
        key = digest(record.messages, text)
        kept = list(self.journal.replies.get(key, ()))
        opening = first_prompt(record)
        messages, reasons, reply = opening, tuple[str, ...](), None
        for attempt in range(self.tries):
            try:
                reply = self._resume(kept[attempt]) if attempt < len(kept) else await self._ask(key, messages)
            except BackendError as error:
                return self._unanswered(record, error)
            checked = check_reply(text, reply.text, self.count)
            if checked.document is not None:
                return annotated(record, checked.document, self.annotator, self.count)
            reasons = _with_cut(reply, checked.reasons)
            self.failures.append(reasons)
            messages = [*opening, *retry_prompt(reply.text, reasons)]
        return Rejected(record=record, reasons=reasons, reply=reply.text if reply else "")

    async def _ask(self, key: str, messages: Sequence[Message]) -> Reply:
        self.totals["requests"] += 1
        said = await self.endpoint.ask(messages)
        reply = Reply(
            key=key,
            text=said.text,
            finish_reason=said.finish_reason,
            prompt_tokens=said.prompt_tokens,
            completion_tokens=said.completion_tokens,
        )
        await self.journal.keep(reply)
        self._patience.succeeded()
        self._add_tokens(reply)
        self.on_progress()
        return reply

    def _resume(self, reply: Reply) -> Reply:
        self.totals["resumed"] += 1
        self._add_tokens(reply)
        return reply

    def _add_tokens(self, reply: Reply) -> None:
        self.totals["prompt_tokens"] += reply.prompt_tokens
        self.totals["completion_tokens"] += reply.completion_tokens

    def _unanswered(self, record: Record, error: BackendError) -> Rejected:
        """Put a record aside for another run, unless the endpoint fails for all."""
        self._patience.failed(error)
        return Rejected(record=record, reasons=(f"endpoint: {error}",), answered=False)


def _with_cut(reply: Reply, reasons: tuple[str, ...]) -> tuple[str, ...]:
    """The reasons, and first that the reply was cut, if it was."""
    return (
        ("reply-cut: the reply reached its token limit", *reasons)
        if reply.finish_reason == "length"
        else reasons
    )
