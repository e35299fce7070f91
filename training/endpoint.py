"""Requests to an endpoint of chat completions."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from pydantic import Field

from pasta_async.backends.http.client import http_client
from pasta_async.cli.command import CommandSettings
from pasta_async.errors import BackendConnectError, BackendProtocolError, BackendStatusError
from pasta_async.protocol import Message
from pasta_async.training.data.corpus import digest
from pasta_async.training.jobs import Journal


class EndpointSettings(CommandSettings):
    """Options of the commands that send requests; the key is in the environment, OPENAI_API_KEY."""

    together: int = Field(default=32, ge=1, description="requests at the same time")
    retries: int = Field(default=5, ge=0, description="of a request that fails")
    timeout: float = Field(default=600.0, gt=0, description="seconds for a request")


class Completion(NamedTuple):
    """A reply."""

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    first_token: Mapping[str, float] = {}
    """Log-probabilities in nats of the first token and its alternatives; empty if not requested."""


class Endpoint:
    """Sends requests to one model, over one pool of connections.

    The official client retries what may succeed later (time-outs, broken connections, 408, 409, 429, 5xx),
    with backoff and Retry-After.

    `/chat/completions` is at `base_url` (`http://host:30000/v1`); `fields` are further ones of each request:
    temperature, max_tokens, top_logprobs, ... The journal keeps replies: no request that it has a reply to is
    sent again.

    Raises:
        InvalidRequestError: The proxy settings of the environment cannot be used.
    """

    def __init__(
        self, base_url: str, model: str, settings: EndpointSettings, journal: Journal, **fields: Any
    ) -> None:
        from openai import DEFAULT_CONNECTION_LIMITS, AsyncOpenAI  # takes a second

        names = ("requests", "resumed", "prompt_tokens", "completion_tokens")
        self.totals: Counter[str] = Counter(dict.fromkeys(names, 0))
        """Requests of this run; replies from the journal (resumed); tokens of both."""
        self._journal = journal
        self._replies = {row["key"]: Completion(**row["reply"]) for row in journal.rows}
        self._url = base_url
        self._model = model
        self._fields = fields
        self._client = AsyncOpenAI(
            base_url=base_url,
            api_key=os.environ.get("OPENAI_API_KEY") or "none",  # servers without keys take any
            max_retries=settings.retries,
            timeout=settings.timeout,
            http_client=http_client(
                base_url, timeout=settings.timeout, limits=DEFAULT_CONNECTION_LIMITS, follow_redirects=True
            ),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.close()

    async def complete(self, messages: Sequence[Message]) -> Completion:
        """The reply to some messages. A cancellation closes the connection of its request.

        Raises:
            BackendConnectError: No reply came, after all retries.
            BackendStatusError: The endpoint refused or failed, after all retries.
            BackendProtocolError: The reply is no chat completion, or lacks log-probabilities.
        """
        key = digest(messages, "")
        stored = self._replies.get(key)
        self.totals["resumed" if stored else "requests"] += 1
        reply = stored or await self._send(messages)
        if not stored:
            self._replies[key] = reply
            self._journal.append({"key": key, "reply": reply._asdict()})
        self.totals["prompt_tokens"] += reply.prompt_tokens
        self.totals["completion_tokens"] += reply.completion_tokens
        return reply

    async def _send(self, messages: Sequence[Message]) -> Completion:
        import openai
        from openai.types.chat import ChatCompletion

        create: Any = self._client.chat.completions.create  # its overloads know no dict of fields
        try:
            answer: Any = await create(model=self._model, messages=list(messages), **self._fields)
        except openai.APIStatusError as error:
            message = f"{self._url} answers {error.status_code} for model {self._model!r}: {error.message}"
            raise BackendStatusError(message, status=error.status_code) from error
        except openai.APIConnectionError as error:
            message = f"{self._url} sent no reply: {error} ({error.__cause__})"
            raise BackendConnectError(message) from error
        except ValueError as error:
            raise BackendProtocolError(f"the reply of {self._url} is no JSON: {error}") from error
        # The client checks nothing: a reply with another body, such as an error's, lacks these fields.
        choices: Any = answer.choices if isinstance(answer, ChatCompletion) else None
        if not choices or not choices[0].message:
            raise BackendProtocolError(f"the reply of {self._url} is no chat completion: {answer!r:.100}")
        choice = choices[0]
        usage = answer.usage
        content = choice.logprobs.content if choice.logprobs else None
        first = (content[0], *(content[0].top_logprobs or ())) if content else ()
        if "top_logprobs" in self._fields and not first:
            raise BackendProtocolError(f"{self._url} sends no log-probabilities: it must serve top_logprobs")
        return Completion(
            choice.message.content or "",
            choice.finish_reason,
            usage.prompt_tokens if usage else 0,
            usage.completion_tokens if usage else 0,
            {token.token: token.logprob for token in first},
        )
