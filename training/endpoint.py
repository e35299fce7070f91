"""A model behind an endpoint that speaks OpenAI's chat completions, and when to give up on one that fails."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from pydantic import Field

from pasta_async.backends.http.client import http_client
from pasta_async.cli.command import CommandSettings
from pasta_async.errors import (
    BackendConnectError,
    BackendError,
    BackendProtocolError,
    BackendStatusError,
    BackendTimeoutError,
    PastaError,
    ThreadFailedError,
)
from pasta_async.jobs import for_each, progress
from pasta_async.protocol import Message

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

_MAX_IN_A_ROW = 10
_OF_ONE_REQUEST = (400, 413, 422)
"""Statuses by which a server refuses one request rather than all of them."""


class EndpointSettings(CommandSettings):
    """Options of the commands that send requests."""

    key_variable: str = Field(default="OPENAI_API_KEY", description="environment variable with the key")
    in_flight: int = Field(default=32, ge=1, description="requests at the same time")
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
    temperature, max_tokens, top_logprobs, ...

    Raises:
        InvalidRequestError: The proxy settings of the environment cannot be used.
    """

    def __init__(self, base_url: str, model: str, settings: EndpointSettings, **fields: Any) -> None:
        from openai import DEFAULT_CONNECTION_LIMITS, AsyncOpenAI  # takes a second

        self.identity: tuple[str, str, dict[str, Any]] = (base_url, model, fields)
        """The address, the model and the fields: its replies depend on them, besides the messages."""
        self._client = AsyncOpenAI(
            base_url=base_url,
            api_key=os.environ.get(settings.key_variable) or "none",  # servers without keys take any
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
        """Send one request. A cancellation closes its connection.

        Raises:
            BackendConnectError: Nothing answered, after all retries.
            BackendTimeoutError: The reply took too long, after all retries.
            BackendStatusError: The endpoint refused or failed, after all retries.
            BackendProtocolError: The reply is no chat completion.
        """
        import openai
        from openai.types.chat import ChatCompletion

        url, model, fields = self.identity
        create: Any = self._client.chat.completions.create  # its overloads know no dict of fields
        try:
            answer: Any = await create(model=model, messages=list(messages), **fields)
        except openai.APIStatusError as error:
            message = f"{url} answers {error.status_code} for the model {model!r}: {error.message}"
            raise BackendStatusError(message, status=error.status_code) from error
        except openai.APITimeoutError as error:
            raise BackendTimeoutError(f"{url} sent no reply in time") from error
        except openai.APIConnectionError as error:
            reason = error.__cause__ or error
            raise BackendConnectError(f"{url} cannot be reached: {error} ({reason})") from error
        except ValueError as error:
            raise BackendProtocolError(f"the reply of {url} is no JSON: {error}") from error
        if not isinstance(answer, ChatCompletion):
            raise BackendProtocolError(f"the reply of {url} is no chat completion: {answer!r:.100}")
        return _completion(answer)


def _completion(answer: ChatCompletion) -> Completion:
    """The fields of a reply that are used; the client checks nothing, so anything may be missing."""
    if not answer.choices:
        return Completion("", "none", 0, 0)
    choice = answer.choices[0]
    usage = answer.usage
    content = choice.logprobs.content if choice.logprobs else None
    first = (content[0], *(content[0].top_logprobs or ())) if content else ()
    return Completion(
        choice.message.content or "",
        choice.finish_reason,
        usage.prompt_tokens if usage else 0,
        usage.completion_tokens if usage else 0,
        {token.token: token.logprob for token in first},
    )


class FailureBudget:
    """Ends a run when a request fails for a reason that all others share.

    That is a refusal such as that of a wrong key, a failure before the server has ever answered (`proven`: it
    has), or ten failures in a row.
    """

    def __init__(self, *, proven: bool) -> None:
        self._proven = proven
        self._in_a_row = 0

    def succeeded(self) -> None:
        """Note a request that was answered."""
        self._proven = True
        self._in_a_row = 0

    def failed(self, error: PastaError) -> None:
        """Note a request that failed for good, after its own retries; raise its error if others would fail.

        Raises:
            PastaError: This error.
        """
        cause = error.__cause__ if isinstance(error, ThreadFailedError) else error
        if not isinstance(cause, BackendError):
            return  # the prompt's fault, or the answer took too long
        self._in_a_row += 1
        status = cause.status if isinstance(cause, BackendStatusError) else None
        refused = status is not None and not cause.retryable
        shared = status not in _OF_ONE_REQUEST and (refused or not self._proven)
        if shared or self._in_a_row >= _MAX_IN_A_ROW:
            raise error


T = TypeVar("T")
R = TypeVar("R")


async def collect(
    items: Collection[T], work: Callable[[T], Awaitable[R]], in_flight: int
) -> tuple[dict[T, R], dict[T, str]]:
    """Ask for something about each item, `in_flight` at a time, with a progress bar.

    Cancelling it ends the requests under way.

    Returns:
        The results by item, and the reasons of those that failed.

    Raises:
        PastaError: No item can be worked on, or a failure that the others share (`FailureBudget`).
    """
    results: dict[T, R] = {}
    failures: dict[T, str] = {}
    budget = FailureBudget(proven=False)
    with progress(len(items), "answers") as advance:

        async def collect_one(item: T) -> None:
            try:
                results[item] = await work(item)
                budget.succeeded()
            except BackendError as error:
                budget.failed(error)
                failures[item] = f"{type(error).__name__}: {error}"
            advance()

        await for_each(items, collect_one, in_flight)
    return results, failures
