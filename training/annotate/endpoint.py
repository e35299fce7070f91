"""The annotator: a model behind any endpoint that speaks OpenAI's chat completions."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import openai
from openai.types.chat import ChatCompletion

from pasta_async.errors import (
    BackendConnectError,
    BackendProtocolError,
    BackendStatusError,
    InvalidRequestError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from openai.types.chat.chat_completion import Choice

    from pasta_async.protocol import Message

__all__ = ["Completion", "Endpoint"]


class Completion(NamedTuple):
    """What came back."""

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    first_token: Mapping[str, float] = {}
    """Log-probabilities of the first token and of what else it might have been, where they were asked for."""


class Endpoint:
    """Asks one model, over one pool of connections.

    The official client retries what may succeed later (time-outs, broken connections, 408, 409, 429, 5xx),
    backing off and heeding Retry-After.

    Args:
        base_url: Where `/chat/completions` is: `http://host:30000/v1`.
        model: Its name there.
        key_variable: The environment variable that holds the key; servers without keys need none.
        temperature: Of sampling.
        max_tokens: Of a reply; None leaves it to the server.
        top_logprobs: Log-probabilities of a token that are asked for; 0 for none.
        retries: Of one request.
        timeout: Seconds for one request.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        key_variable: str = "OPENAI_API_KEY",
        temperature: float = 0.0,
        max_tokens: int | None = None,
        top_logprobs: int = 0,
        retries: int = 5,
        timeout: float = 600.0,
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise InvalidRequestError(
                f"--base-url {base_url!r} is no address: write http://host:30000/v1, say"
            )
        self._url, self._model = base_url, model
        self._options: dict[str, Any] = {"temperature": temperature}
        if max_tokens is not None:
            self._options["max_tokens"] = max_tokens
        if top_logprobs:
            self._options |= {"logprobs": True, "top_logprobs": top_logprobs}
        self._client = openai.AsyncOpenAI(
            base_url=base_url,
            api_key=os.environ.get(key_variable) or "none",
            max_retries=retries,
            timeout=timeout,
        )
        self._completions: Any = self._client.chat.completions  # its overloads know no dict of options

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    async def ask(self, messages: Sequence[Message]) -> Completion:
        """Ask once. A cancellation closes the connection, and the server may stop.

        Raises:
            BackendConnectError: Nothing answered, after all retries.
            BackendStatusError: The endpoint refused or failed, after all retries.
            BackendProtocolError: What came back is no chat completion.
        """
        try:
            answer: Any = await self._completions.create(
                model=self._model, messages=list(messages), **self._options
            )
        except openai.APIStatusError as error:
            raise BackendStatusError(
                f"{self._url} answers {error.status_code} for the model {self._model!r}: {error.message}",
                status=error.status_code,
            ) from error
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            raise BackendConnectError(f"{self._url} cannot be reached: {error} ({cause})") from error
        except ValueError as error:
            raise BackendProtocolError(f"{self._url} answers what is no JSON: {error}") from error
        if not isinstance(answer, ChatCompletion):
            raise BackendProtocolError(f"{self._url} answers what is no chat completion: {answer!r:.100}")
        if not answer.choices:
            return Completion("", "none", 0, 0)
        choice, usage = answer.choices[0], answer.usage
        return Completion(
            choice.message.content or "",
            choice.finish_reason,
            usage.prompt_tokens if usage else 0,
            usage.completion_tokens if usage else 0,
            _first_token(choice),
        )


def _first_token(choice: Choice) -> dict[str, float]:
    """What the reply says of its first token; the client checks nothing, so anything may be missing."""
    content = choice.logprobs.content if choice.logprobs else None
    if not content:
        return {}
    return {one.token: one.logprob for one in (content[0], *(content[0].top_logprobs or ()))}
