"""A model that compares an answer with the baseline's: the judge of the paper (section 4).

It is asked in both orders, since judges prefer a position, and how sure it is is read from the
log-probabilities of its verdict, as AlpacaEval's weighted judge does. The mean of both orders is the
probability that the answer wins: 0.5 for one as good as the baseline's.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING

from pasta_async.errors import BackendProtocolError
from pasta_async.jobs import Journal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pasta_async.protocol import Message
    from pasta_async.training.annotate.endpoint import Endpoint
    from pasta_async.training.preference.samples import SampledPrompt

__all__ = ["PairwiseJudge", "comparison"]

_FIRST, _SECOND = "m", "M"
_TRIES = 2
"""Replies for one comparison, where the first says nothing of use."""

_SYSTEM = (
    "You compare two answers to the same prompt, as a careful reader would who needs a right, complete and "
    "readable answer. Neither length nor position counts for anything by itself."
)
_QUESTION = """\
Here is a prompt, and what two assistants answered.

The prompt:
{prompt}

The answers:
{{"name": "{first_name}", "output": \"\"\"{first}\"\"\"}}
{{"name": "{second_name}", "output": \"\"\"{second}\"\"\"}}

Which answer is better? Reply with its name alone, {first_name} or {second_name}."""


class PairwiseJudge:
    """Judges by an OpenAI-compatible endpoint that returns log-probabilities.

    Args:
        endpoint: Asked for one token, with `top_logprobs`.
        journal: File where replies are kept; what is in it is not asked for again.
        asked: Who is asked, and how; a journal holds the replies to one such question only.

    Raises:
        InvalidRequestError: The journal is of another judge.
    """

    def __init__(self, endpoint: Endpoint, journal: Path, asked: Mapping[str, object]) -> None:
        form = hashlib.sha256((_SYSTEM + _QUESTION).encode()).hexdigest()[:16]
        self._endpoint = endpoint
        self._journal = Journal(journal, {**asked, "form": form})
        self._known: dict[str, float] = {row["key"]: row["first"] for row in self._journal.rows}
        self.resumed: int = len(self._known)
        """Replies that were there before."""
        self.requests: int = 0
        self.tokens: int = 0
        """Of these requests and their replies."""

    def close(self) -> None:
        """Close the journal."""
        self._journal.__exit__()

    async def quality(self, prompt: SampledPrompt, text: str) -> float:
        """The probability that an answer is better than the baseline's; a half if they are the same.

        Cancelling it ends its request; replies that arrived are kept.

        Raises:
            BackendError: The endpoint failed, or says nothing of use.
        """
        baseline = prompt.baseline.text
        if text == baseline:
            return 0.5
        ahead = await self._first_wins(prompt, text, baseline)
        behind = await self._first_wins(prompt, baseline, text)
        return (ahead + 1.0 - behind) / 2

    async def _first_wins(self, prompt: SampledPrompt, first: str, second: str) -> float:
        messages = comparison(prompt.messages, first, second)
        key = hashlib.sha256(json.dumps(messages).encode()).hexdigest()[:24]
        if key not in self._known:
            self._known[key] = verdict = await self._ask(messages)
            self._journal.append({"key": key, "first": verdict})
        return self._known[key]

    async def _ask(self, messages: list[Message]) -> float:
        problem = BackendProtocolError("the judge was not asked")
        for _ in range(_TRIES):
            self.requests += 1
            try:
                said = await self._endpoint.ask(messages)
            except BackendProtocolError as error:
                problem = error
                continue
            self.tokens += said.prompt_tokens + said.completion_tokens
            if (verdict := _verdict(said.first_token)) is not None:
                return verdict
            problem = BackendProtocolError(
                f"the judge's reply {said.text!r} has no log-probability of {_FIRST!r} or {_SECOND!r}: it "
                "must serve logprobs and top_logprobs, and answer by the name alone"
            )
        raise problem


def comparison(messages: tuple[Message, ...], first: str, second: str) -> list[Message]:
    """What the judge is asked."""
    question = _QUESTION.format(
        prompt=_conversation(messages), first_name=_FIRST, second_name=_SECOND, first=first, second=second
    )
    return [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": question}]


def _conversation(messages: tuple[Message, ...]) -> str:
    if len(messages) == 1:
        return messages[0]["content"]
    return "\n\n".join(f"[{message['role']}]\n{message['content']}" for message in messages)


def _verdict(logprobs: Mapping[str, float]) -> float | None:
    """The probability of the first name, of the two."""
    first, second = (
        sum(math.exp(value) for token, value in logprobs.items() if token.strip() == name)
        for name in (_FIRST, _SECOND)
    )
    total = first + second
    return first / total if math.isfinite(total) and total > 0 else None
