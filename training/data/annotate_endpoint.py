"""Annotation by a model behind an endpoint: the request, and the check of its reply.

A reply is read as a written form. White space is not compared: a reply only decides where its tags stand
between the other characters, and the answer keeps its own white space, so that removing the tags of what is
accepted gives the original character for character. Estimates are counted anew, and tags are put into their
exact form.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from pasta_async.lang import Chunk, Code, Document, Promise, Sync, escape, parse
from pasta_async.protocol import Message
from pasta_async.training.data.annotate_structure import LEAST
from pasta_async.training.data.corpus import Record, StrictModel
from pasta_async.training.endpoint import Endpoint
from pasta_async.training.views import Mark, insert_tags, rough_tokens, with_estimates

_TEXTS: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("annotate_prompt.toml").read_text(encoding="utf-8")
)
EXAMPLES: tuple[tuple[str, str], ...] = tuple(
    (example["prompt"], example["written"]) for example in _TEXTS["examples"]
)
"""Prompts, and answers in their written form: our own, as the model is shown them."""

_REPAIRED = frozenset({Code.TOKENS_BAD, Code.TOKENS_NOT_TENS, Code.TAG_FORM, Code.ASYNC_APART})
"""Problems that go away when estimates and tags are written anew."""
_FENCE = re.compile(r"```\w*\n(.*)\n```", re.DOTALL)
_ASK_FROM = 2 * LEAST
"""Tokens from which an answer is sent; shorter ones stay plain."""


class Rejected(StrictModel):
    """A record without an acceptable annotation, and why."""

    record: Record
    reasons: tuple[str, ...]
    """The problems of the last reply, or the failure of the endpoint."""
    reply: str = ""
    """The last reply."""
    answered: bool = True
    """False where the endpoint failed: the next run asks again."""


class Annotator:
    """Annotates records by a model behind an endpoint.

    Args:
        endpoint: The endpoint of the model.
        tries: Replies for an answer before it is rejected.
    """

    def __init__(self, endpoint: Endpoint, tries: int) -> None:
        self._endpoint = endpoint
        self._tries = tries
        self.unasked: int = 0
        """Records that are too short to ask about."""
        self.problems: Counter[str] = Counter()
        """Replies that were not accepted, by the code of their first problem."""

    async def annotate(self, record: Record) -> Document | Rejected:
        """Annotate a record. A cancellation ends its request.

        Raises:
            BackendError: The endpoint failed.
        """
        text = record.document.text
        if rough_tokens(text) < _ASK_FROM:
            self.unasked += 1
            return parse(escape(text))  # without tags that it had
        opening = first_prompt(record)
        messages = opening
        reasons: tuple[str, ...] = ()
        reply = ""
        for _ in range(self._tries):
            completion = await self._endpoint.complete(messages)
            checked = check_reply(text, completion.text)
            if isinstance(checked, Document):
                return checked
            reasons = tuple(problem.message for problem in checked)
            cut = completion.finish_reason == "length"
            self.problems["reply-cut" if cut else checked[0].code] += 1
            reasons = ("reply-cut: the reply reached its token limit", *reasons) if cut else reasons
            reply = completion.text
            again = [*opening, *_retry(reply, reasons)]
            if again == messages:
                break  # the model would say it once more
            messages = again
        return Rejected(record=record, reasons=reasons, reply=reply)


def first_prompt(record: Record) -> list[Message]:
    """The messages that ask for an annotation of a record's answer: the language, examples, the answer."""
    messages: list[Message] = [{"role": "system", "content": _TEXTS["instructions"]}]
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


class Problem(NamedTuple):
    """A reason to reject a reply, for the annotator and for whoever reads the rejected records."""

    code: str
    message: str
    """A sentence that starts with the code, or with a place and the code."""


def check_reply(original: str, reply: str) -> Document | Sequence[Problem]:
    """Check an annotator's reply to a plain answer: its written form, perhaps in a code fence.

    Returns:
        The well-formed document with the original's text and new estimates, or why the reply is not accepted.
    """
    reply = reply.strip()
    if not original.lstrip().startswith("```") and (fenced := _FENCE.fullmatch(reply)):
        reply = fenced[1]
    # The reply's tags must be right and its text the original's; then only the places of its tags are used.
    annotated = parse(reply)
    problems = [Problem(d.code.value, str(d)) for d in annotated.diagnostics if d.code not in _REPAIRED]
    if not problems and _solid(annotated.text) != _solid(original):
        problems = [_text_changed(original, annotated.text)]
    if problems:
        return problems
    document = with_estimates(insert_tags(original, _marks(annotated, original)), rough_tokens)
    return [*_problems(document)] or document


def _problems(document: Document) -> Iterator[Problem]:
    """The problems of a document that has the right text."""
    for number, promise in enumerate(document.promises, 1):
        if promise.chunk is None or not promise.chunk.text:
            where = f"chunk {number} ({promise.topic})"
            yield Problem("chunk-empty", f"chunk-empty: {where} is empty (put tags around text, or none)")
    yield from (Problem(d.code.value, str(d)) for d in parse(document.format()).diagnostics)


def _solid(text: str) -> str:
    """A text without its white space."""
    return "".join(text.split())


def _solid_indexes(text: str) -> list[int]:
    """The index in a text of each character of `_solid(text)`."""
    return [index for index, character in enumerate(text) if not character.isspace()]


def _text_changed(original: str, text: str) -> Problem:
    wanted, replied = _solid(original), _solid(text)
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(wanted, replied, strict=False))
    same = sum(1 for _ in pairs)
    start = max(0, same - 20)
    context = original[(_solid_indexes(original) or [0])[start] :][:60]
    return Problem(
        "text-changed",
        f'text-changed: without its tags the reply is not the response; they differ near "{context}", where '
        f'the reply has "{replied[start : same + 20]}" (white space aside; copy every character)',
    )


def _marks(annotated: Document, original: str) -> Iterator[Mark]:
    """The tags of a document, placed in a text that has the same characters, white space aside."""
    indexes = _solid_indexes(original)
    passed = 0  # characters of the nodes so far, white space not counted
    for node in annotated.nodes:
        # A node with text spans its characters in the original; one without stands right behind the last.
        length = len(_solid(node.text))
        behind = indexes[passed - 1] + 1 if passed else 0
        start = indexes[passed] if length else behind
        end = indexes[passed + length - 1] + 1 if length else behind
        passed += length
        if isinstance(node, Sync):
            yield Mark(start, end, Sync())
        elif isinstance(node, Promise) and node.chunk:
            yield Mark(start, end, Promise(node.topic, None, Chunk()))
