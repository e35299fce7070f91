"""Annotation by a model: ask, check the reply, ask again with what was wrong, or reject."""

from __future__ import annotations

import hashlib
import tomllib
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasta_async.errors import BackendError
from pasta_async.lang import Document, escape, parse
from pasta_async.training.annotate.tags import check_reply
from pasta_async.training.corpus.records import Record, StrictModel, digest
from pasta_async.training.corpus.tokens import text_speedup
from pasta_async.training.endpoint import Completion, FailureBudget

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pasta_async.jobs import Journal
    from pasta_async.protocol import Message
    from pasta_async.training.corpus.tokens import CountTokens
    from pasta_async.training.endpoint import Endpoint

__all__ = ["EXAMPLES", "Annotator", "Rejected", "annotated", "first_prompt", "journal_identity"]

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


def annotated(record: Record, document: Document, annotator: str, count: CountTokens) -> Record:
    """A record with its annotation, its theoretical speed-up among the scores."""
    scores = {**record.scores, "text_speedup": round(text_speedup(document, count), 4)}
    return record.model_copy(update={"written": document.format(), "annotator": annotator, "scores": scores})


def journal_identity(model: str) -> dict[str, Any]:
    """What a journal of replies belongs to: the model, and the prompt as a hash."""
    content = repr((_TEXTS["instructions"], EXAMPLES)).encode()
    return {"model": model, "prompt": hashlib.sha256(content).hexdigest()[:16]}


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
        for row in map(dict[str, Any], journal.rows):
            self._kept[row.pop("key")].append(Completion(**row))
        self._failures = FailureBudget(proven=bool(journal.rows))
        self.totals: Counter[str] = Counter()
        """Records: unasked (too short), unanswered (the endpoint failed). Replies: requests (of this run),
        resumed (from the journal), prompt_tokens and completion_tokens (of both)."""
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
            reply, messages = completion.text, [*opening, *_retry(completion.text, reasons)]
        return Rejected(record=record, reasons=reasons, reply=reply)

    async def _complete(self, key: str, messages: Sequence[Message]) -> Completion:
        self.totals["requests"] += 1
        completion = await self._endpoint.complete(messages)
        self._journal.append({"key": key, **completion._asdict()})
        self._failures.succeeded()
        return completion
