"""A model behind any endpoint that speaks OpenAI's chat completions: the annotator, or the judge."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import openai
from openai.types.chat import ChatCompletion

from pasta_async.errors import (
    BackendConnectError,
    BackendProtocolError,
    BackendStatusError,
    BackendTimeoutError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from pasta_async.protocol import Message

__all__ = ["Completion", "Endpoint"]


class Completion(NamedTuple):
    """A reply."""

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    first_token: Mapping[str, float] = {}
    """Log-probabilities in nats of the first token and its alternatives, where they were requested."""


class Endpoint:
    """Sends requests to one model, over one pool of connections.

    The official client retries what may succeed later (time-outs, broken connections, 408, 409, 429, 5xx),
    with backoff and Retry-After.

    Args:
        base_url: Where `/chat/completions` is: `http://host:30000/v1`.
        model: Its name there.
        key_variable: The environment variable that holds the key; servers without keys need none.
        retries: Of one request.
        timeout: Seconds for one request.
        fields: Further fields of each request: temperature, max_tokens, top_logprobs, ...
    """

    def __init__(
        self, base_url: str, model: str, *, key_variable: str, retries: int, timeout: float, **fields: Any
    ) -> None:
        self._url, self._model, self._fields = base_url, model, fields
        self._client = openai.AsyncOpenAI(
            base_url=base_url,
            api_key=os.environ.get(key_variable) or "none",
            max_retries=retries,
            timeout=timeout,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    async def complete(self, messages: Sequence[Message]) -> Completion:
        """Send one request. A cancellation closes its connection.

        Raises:
            BackendConnectError: Nothing answered, after all retries.
            BackendTimeoutError: The reply took too long, after all retries.
            BackendStatusError: The endpoint refused or failed, after all retries.
            BackendProtocolError: The reply is no chat completion.
        """
        create: Any = self._client.chat.completions.create  # its overloads know no dict of fields
        try:
            answer: Any = await create(model=self._model, messages=list(messages), **self._fields)
        except openai.APIStatusError as error:
            raise BackendStatusError(
                f"{self._url} answers {error.status_code} for the model {self._model!r}: {error.message}",
                status=error.status_code,
            ) from error
        except openai.APITimeoutError as error:
            raise BackendTimeoutError(f"{self._url} sent no reply in time") from error
        except openai.APIConnectionError as error:
            raise BackendConnectError(
                f"{self._url} cannot be reached: {error} ({error.__cause__ or error})"
            ) from error
        except ValueError as error:
            raise BackendProtocolError(f"the reply of {self._url} is no JSON: {error}") from error
        if not isinstance(answer, ChatCompletion):
            raise BackendProtocolError(f"the reply of {self._url} is no chat completion: {answer!r:.100}")
        return _completion(answer)


def _completion(answer: ChatCompletion) -> Completion:
    """What of a reply is used; the client checks nothing, so anything may be missing."""
    if not answer.choices:
        return Completion("", "none", 0, 0)
    choice, usage = answer.choices[0], answer.usage
    content = choice.logprobs.content if choice.logprobs else None
    first = (content[0], *(content[0].top_logprobs or ())) if content else ()
    return Completion(
        choice.message.content or "",
        choice.finish_reason,
        usage.prompt_tokens if usage else 0,
        usage.completion_tokens if usage else 0,
        {token.token: token.logprob for token in first},
    )
