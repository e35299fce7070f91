"""Annotation by a model: ask, check the reply, ask again with what was wrong, or reject."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from pasta_async.errors import BackendError
from pasta_async.lang import Document, parse
from pasta_async.training.annotate.prompt import EXAMPLES, INSTRUCTIONS, first_prompt, retry_prompt
from pasta_async.training.annotate.tags import check_reply
from pasta_async.training.corpus.records import Record, StrictModel, digest
from pasta_async.training.corpus.tokens import text_speedup
from pasta_async.training.endpoint import Completion
from pasta_async.training.failure_budget import FailureBudget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.jobs import Journal
    from pasta_async.protocol import Message
    from pasta_async.training.corpus.tokens import CountTokens
    from pasta_async.training.endpoint import Endpoint

__all__ = ["Annotator", "Rejected", "annotated", "journal_identity"]


class Rejected(StrictModel):
    """A record without an acceptable annotation, and why."""

    record: Record
    """As it was before."""
    reasons: tuple[str, ...]
    """Of the last reply, or of the endpoint."""
    reply: str = ""
    """The last one."""
    answered: bool = True
    """False where the endpoint failed: the next run asks again."""


def annotated(record: Record, document: Document, annotator: str, count: CountTokens) -> Record:
    """A record with its annotation, its theoretical speed-up among the scores."""
    scores = {**record.scores, "text_speedup": round(text_speedup(document, count), 4)}
    return record.model_copy(update={"written": document.format(), "annotator": annotator, "scores": scores})


def journal_identity(model: str, temperature: float) -> dict[str, Any]:
    """What a journal of replies belongs to: the model, the temperature, and the prompt as a hash."""
    content = repr((INSTRUCTIONS, EXAMPLES)).encode()
    return {"model": model, "prompt": hashlib.sha256(content).hexdigest()[:16], "temperature": temperature}


class Annotator:
    """Annotates records by a model behind an endpoint.

    Args:
        endpoint: The model.
        name: For `Record.annotator`.
        journal: Keeps every reply before anything is made of it; none that it holds is asked for again.
        count: Measures chunks for their estimates.
        tries: Replies for one record before it is rejected.
        ask_from: Tokens from which an answer is worth a request; shorter ones stay plain.
    """

    def __init__(
        self, endpoint: Endpoint, name: str, journal: Journal, count: CountTokens, tries: int, ask_from: int
    ) -> None:
        self._endpoint, self._name, self._journal, self._count = endpoint, name, journal, count
        self._tries, self._ask_from = tries, ask_from
        self._kept: defaultdict[str, list[Completion]] = defaultdict(list)
        for row in journal.rows:
            self._kept[row["key"]].append(Completion(**{k: row[k] for k in Completion._fields if k in row}))
        self._failures = FailureBudget(proven=bool(journal.rows))
        self.totals: Counter[str] = Counter()
        """unasked, unanswered, requests, resumed, prompt_tokens, completion_tokens."""
        self.problems: Counter[str] = Counter()
        """Replies that were not accepted, by the code of their first problem."""

    async def annotate(self, record: Record) -> Record | Rejected:
        """Annotate a record: from the journal as far as it goes, then by requests.

        A cancellation ends its request; replies that arrived are in the journal.

        Raises:
            BackendError: The endpoint cannot be reached, or fails for all records.
        """
        text = record.document.text
        if self._count(text) < self._ask_from:
            self.totals["unasked"] += 1
            return annotated(record, parse(record.written), self._name, self._count)
        key, opening = digest(record.messages, text), first_prompt(record)
        kept = list(self._kept[key])
        messages, reasons, reply = opening, tuple[str, ...](), ""
        for attempt in range(self._tries):
            try:
                completion = kept[attempt] if attempt < len(kept) else await self._complete(key, messages)
            except BackendError as error:
                self._failures.failed(error)
                self.totals["unanswered"] += 1
                return Rejected(record=record, reasons=(f"endpoint: {error}",), answered=False)
            self.totals["resumed"] += attempt < len(kept)
            self.totals["prompt_tokens"] += completion.prompt_tokens
            self.totals["completion_tokens"] += completion.completion_tokens
            found = check_reply(text, completion.text, self._count)
            if isinstance(found, Document):
                return annotated(record, found, self._name, self._count)
            cut = completion.finish_reason == "length"
            reasons = tuple(problem.message for problem in found)
            reasons = ("reply-cut: the reply reached its token limit", *reasons) if cut else reasons
            self.problems["reply-cut" if cut else found[0].code] += 1
            reply, messages = completion.text, [*opening, *retry_prompt(completion.text, reasons)]
        return Rejected(record=record, reasons=reasons, reply=reply)

    async def _complete(self, key: str, messages: Sequence[Message]) -> Completion:
        self.totals["requests"] += 1
        completion = await self._endpoint.complete(messages)
        reply = {name: value for name, value in completion._asdict().items() if name != "first_token"}
        self._journal.append({"key": key, **reply})
        self._failures.succeeded()
        return completion
