"""Judges of answers: their interface, and the one that asks a model behind an endpoint."""

from __future__ import annotations

import asyncio
import math
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from pasta_async.errors import BackendProtocolError
from pasta_async.protocol import Message
from pasta_async.training.data.corpus import digest
from pasta_async.training.endpoint import Endpoint
from pasta_async.training.jobs import Journal
from pasta_async.training.samples import SampledPrompt

JUDGE_PROMPT: dict[str, str] = tomllib.loads(
    Path(__file__).with_name("judge.toml").read_text(encoding="utf-8")
)
"""The `system` and the `user` message that ask which of two answers is better."""

NAMES = ("m", "M")
"""Names of the first and the second of two answers: AlpacaEval's."""


class Judge(ABC):
    """Rates answers. A judge that costs something keeps its verdicts."""

    sees_faults: ClassVar[bool] = True
    """True if the judge notices what an answer lacks, and the faults that a program counts. If it does not,
    scores take these faults off, and count no answer as faster for being shorter than the baseline's."""

    @abstractmethod
    async def quality(self, prompt: SampledPrompt, text: str) -> float:
        """The quality of an answer to a prompt, from 0 to 1; the baseline's answer is there to compare with.

        Cancelling it ends its requests.

        Raises:
            PastaError: This answer could not be judged; others may be.
        """


class ModelJudge(Judge):
    """A judge that computes a figure of each answer with a model, one computation at a time.

    Figures that the journal has are not computed again.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._stored: dict[str, float | None] = {row["key"]: row["figure"] for row in journal.rows}
        self._turn = asyncio.Lock()

    @abstractmethod
    def compute(self, messages: Sequence[Message], texts: Sequence[str]) -> Sequence[float | None]:
        """The figures of some answers to one prompt; None for one that has none. It is called in a thread."""

    async def figures(self, prompt: SampledPrompt, texts: Iterable[str]) -> dict[str, float | None]:
        """The figures of some answers to a prompt, by their text.

        After a cancellation the computation under way ends by itself, unused.
        """
        keys = {text: digest(prompt.messages, text) for text in texts}
        async with self._turn:
            new = [text for text, key in keys.items() if key not in self._stored]
            computed = await asyncio.to_thread(self.compute, prompt.messages, new) if new else ()
            for text, figure in zip(new, computed, strict=True):
                self._stored[keys[text]] = figure
                self._journal.append({"key": keys[text], "figure": figure})
        return {text: self._stored[key] for text, key in keys.items()}


class PairwiseJudge(Judge):
    """A model that compares an answer with the baseline's, as in the paper (section 4).

    It is asked in both orders, since judges prefer a position, and its certainty is read from the
    log-probabilities of its verdict, as AlpacaEval's weighted judge does. The mean of both orders is the
    probability that the answer wins: 0.5 for one as good as the baseline's.

    The endpoint sends requests for one token, with `top_logprobs`.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint: Endpoint = endpoint

    async def quality(self, prompt: SampledPrompt, text: str) -> float:
        """The probability that an answer is better than the baseline's; a half if they are the same.

        Cancelling it ends its request; verdicts that arrived are kept.

        Raises:
            BackendError: The endpoint failed, or its replies have no verdict.
        """
        baseline = prompt.baseline.text
        if text == baseline:
            return 0.5
        ahead = await self._first_wins(_comparison(prompt.messages, text, baseline))
        behind = await self._first_wins(_comparison(prompt.messages, baseline, text))
        return (ahead + 1.0 - behind) / 2

    async def _first_wins(self, messages: Sequence[Message]) -> float:
        """The probability that the model names the first answer."""
        reply = await self.endpoint.complete(messages)
        first, second = (
            sum(math.exp(value) for token, value in reply.first_token.items() if token.strip() == name)
            for name in NAMES
        )
        if not first + second:
            raise BackendProtocolError(
                f"the judge's reply {reply.text!r} has no log-probability of {' or '.join(NAMES)}: it "
                "must answer by the name alone"
            )
        return first / (first + second)


def _comparison(messages: tuple[Message, ...], first: str, second: str) -> list[Message]:
    """The messages that ask the judge about two answers."""
    turns = [f"[{message['role']}]\n{message['content']}" for message in messages]
    prompt = "\n\n".join(turns) if len(turns) > 1 else messages[0]["content"]
    request = JUDGE_PROMPT["user"].format(
        prompt=prompt, first_name=NAMES[0], second_name=NAMES[1], first=first, second=second
    )
    return [{"role": "system", "content": JUDGE_PROMPT["system"]}, {"role": "user", "content": request}]
