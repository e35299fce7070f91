"""Judges of sampled answers: the protocol, the synthetic task's program, and a model that compares.

The model compares an answer with the baseline's, as in the paper (section 4). It is asked in both orders,
since judges prefer a position, and its certainty is read from the log-probabilities of its verdict, as
AlpacaEval's weighted judge does. The mean of both orders is the probability that the answer wins: 0.5 for one
as good as the baseline's.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING, Any, Protocol

from pasta_async.errors import BackendProtocolError, InvalidRequestError
from pasta_async.training.corpus.records import Record
from pasta_async.training.synthetic.examples import grade
from pasta_async.training.synthetic.records import example_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pasta_async.jobs import Journal
    from pasta_async.protocol import Message
    from pasta_async.training.endpoint import Endpoint
    from pasta_async.training.preference.samples import SampledPrompt

__all__ = ["JUDGE_PROMPT", "Judge", "PairwiseJudge", "TaskJudge", "comparison"]

_FIRST, _SECOND = "m", "M"

JUDGE_PROMPT = (
    "You compare two answers to the same prompt, as a careful reader would who needs a right, complete and "
    "readable answer. Neither length nor position counts for anything by itself.",
    """\
Here is a prompt, and what two assistants answered.

The prompt:
{prompt}

The answers:
{{"name": "{first_name}", "output": \"\"\"{first}\"\"\"}}
{{"name": "{second_name}", "output": \"\"\"{second}\"\"\"}}

Which answer is better? Reply with its name alone, {first_name} or {second_name}.""",
)
"""The system's and the user's message."""


class Judge(Protocol):
    """Says how good an answer is. A judge that costs something keeps its verdicts."""

    async def quality(self, prompt: SampledPrompt, text: str) -> float:
        """The quality of an answer to a prompt, from 0 to 1; the baseline's answer is there to compare with.

        Cancelling it ends its requests.

        Raises:
            BackendError: This answer could not be judged; others may be.
            PastaError: No answer can be.
        """
        ...


class TaskJudge:
    """The program of the synthetic task: the share of an answer that is right."""

    async def quality(self, prompt: SampledPrompt, text: str) -> float:
        """See `pasta_async.training.synthetic.grade`. It waits for nothing.

        Raises:
            InvalidRequestError: The prompt is not of the synthetic task.
        """
        try:
            example = example_of(Record(id=prompt.id, messages=prompt.messages, written=""))
        except ValueError as error:
            raise InvalidRequestError(f"--judge task judges the synthetic task only: {error}") from None
        return grade(example, text)


class PairwiseJudge:
    """Judges by an OpenAI-compatible endpoint that returns log-probabilities.

    Args:
        endpoint: Asked for one token, with `top_logprobs`.
        journal: Keeps the verdicts; what is in it is not asked for again.
    """

    def __init__(self, endpoint: Endpoint, journal: Journal) -> None:
        self._endpoint, self._journal = endpoint, journal
        self._known: dict[str, float] = {row["key"]: row["first"] for row in journal.rows}
        self.resumed: int = len(self._known)
        """Verdicts that the journal had."""
        self.requests: int = 0
        self.tokens: int = 0
        """Of these requests and their replies."""

    @staticmethod
    def journal_identity(url: str, model: str) -> dict[str, Any]:
        """What a journal of verdicts belongs to: the judge, and the prompt as a hash."""
        form = hashlib.sha256("".join(JUDGE_PROMPT).encode()).hexdigest()[:16]
        return {"judge": url, "model": model, "form": form}

    async def quality(self, prompt: SampledPrompt, text: str) -> float:
        """The probability that an answer is better than the baseline's; a half if they are the same.

        Cancelling it ends its request; verdicts that arrived are kept.

        Raises:
            BackendError: The endpoint failed, or its replies have no verdict.
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
        self.requests += 1
        reply = await self._endpoint.complete(messages)
        self.tokens += reply.prompt_tokens + reply.completion_tokens
        if (verdict := _verdict(reply.first_token)) is None:
            raise BackendProtocolError(
                f"the judge's reply {reply.text!r} has no log-probability of {_FIRST!r} or {_SECOND!r}: it "
                "must serve logprobs and top_logprobs, and answer by the name alone"
            )
        return verdict


def comparison(messages: tuple[Message, ...], first: str, second: str) -> list[Message]:
    """The judge's prompt for two answers."""
    system, question = JUDGE_PROMPT
    turns = [f"[{message['role']}]\n{message['content']}" for message in messages]
    asked = question.format(
        prompt="\n\n".join(turns) if len(turns) > 1 else messages[0]["content"],
        first_name=_FIRST,
        second_name=_SECOND,
        first=first,
        second=second,
    )
    return [{"role": "system", "content": system}, {"role": "user", "content": asked}]


def _verdict(logprobs: Mapping[str, float]) -> float | None:
    """The probability of the first name, of the two."""
    first, second = (
        sum(math.exp(value) for token, value in logprobs.items() if token.strip() == name)
        for name in (_FIRST, _SECOND)
    )
    total = first + second
    return first / total if math.isfinite(total) and total > 0 else None
