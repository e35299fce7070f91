"""Models that commands ask: digests that tell them apart, endpoints of chat completions, and failures."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from pydantic import Field

from pasta_async import Client
from pasta_async.backends.http.client import http_client
from pasta_async.backends.local.pull import ADAPTER_CONFIG, base_path, default_model, find_model
from pasta_async.cli.command import CommandSettings
from pasta_async.errors import (
    BackendConnectError,
    BackendError,
    BackendProtocolError,
    BackendStatusError,
    PastaError,
    ThreadFailedError,
    UnsupportedModelError,
)
from pasta_async.progress import progress
from pasta_async.protocol import Message
from pasta_async.training.data.corpus import digest
from pasta_async.training.jobs import Journal, for_each

# --- what tells one model from another

_PATTERNS = (
    *("config.json", "generation_config.json", ADAPTER_CONFIG, "*.safetensors"),
    *("tokenizer.json", "tokenizer_config.json", "*.jinja"),
)
_END = 2**20
"""Bytes at the end of a file that are hashed: training always changes them."""


def model_digest(model: str | Path) -> str:
    """16 hexadecimal digits that identify a model, by names, sizes and ends of its files.

    These are its configuration, weights, tokenizer, chat template and default sampling; an adapter's base
    belongs to it. `model` is the folder of a model or of an adapter, a GGUF file, or the name of a model that
    ships.

    Raises:
        UnsupportedModelError: There is no such model, or its base is not on this machine.
    """
    path = find_model(model)
    base = base_path(path)
    files = _files(path) if base == path else _files(path) + _files(base)
    if not files:
        raise UnsupportedModelError(f"there is no model {path}: no config.json and no weights")
    hashed = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        with file.open("rb") as opened:
            opened.seek(max(0, size - _END))
            hashed.update(f"{file.name}/{size}/".encode() + opened.read())
    return hashed.hexdigest()[:16]


def _files(path: Path) -> list[Path]:
    """The files of a folder that make a model; a file is one by itself."""
    return [path] if path.is_file() else sorted(file for name in _PATTERNS for file in path.glob(name))


def backend_digest(backend: str) -> str:
    """The digest of the model that a backend (`open_backend`) computes here; empty for a server."""
    scheme, _, name = backend.partition(":")
    return model_digest(name or default_model()) if scheme in ("local", "sglang") else ""


async def weights_of(backend: str) -> str:
    """`backend_digest`; for a server the name of the model that it serves now.

    Raises:
        PastaError: There is no such model, or the server cannot be reached.

    Cancelling it leaves nothing open.
    """
    if not backend.startswith(("http", "vllm:")):
        return backend_digest(backend)
    async with Client(backend) as client:
        return (await client.connect()).name


# --- endpoints

_MAX_IN_A_ROW = 10
_OF_ONE_REQUEST = (400, 413, 422)
"""Statuses by which a server refuses one request rather than all of them."""


class EndpointSettings(CommandSettings):
    """Options of the commands that send requests; the key is in the environment, OPENAI_API_KEY."""

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


T = TypeVar("T")
R = TypeVar("R")


async def collect(
    items: Collection[T],
    work: Callable[[T], Awaitable[R]],
    in_flight: int,
    skipped: type[PastaError] = BackendError,
) -> tuple[dict[T, R], dict[T, str]]:
    """Ask for something about each item, `in_flight` at a time, with a progress bar.

    An item fails by an error of the kind `skipped`. That ends the run where others would fail as well: after
    a refusal such as that of a wrong key, a failure before any success, or ten failures in a row.
    Cancelling it ends the requests under way.

    Returns:
        The results by item, and the reasons of those that failed.

    Raises:
        PastaError: No item can be worked on, or a failure that the others share.
    """
    results: dict[T, R] = {}
    failures: dict[T, str] = {}
    lost: list[BackendError] = []  # since the last success
    with progress(len(items), "answers") as advance:

        async def collect_one(item: T) -> None:
            try:
                results[item] = await work(item)
                lost.clear()
            except skipped as error:
                failures[item] = f"{type(error).__name__}: {error}"
                cause = error.__cause__ if isinstance(error, ThreadFailedError) else error
                if isinstance(cause, BackendError):  # else it is the prompt's fault, or took too long
                    lost.append(cause)
                    if _is_shared(cause, not results) or len(lost) >= _MAX_IN_A_ROW:
                        raise
            advance()

        await for_each(items, collect_one, in_flight)
    return results, failures


def _is_shared(error: BackendError, first: bool) -> bool:
    """True for a refusal that all other requests would get, or for a failure before any success."""
    if not isinstance(error, BackendStatusError):
        return first
    return error.status not in _OF_ONE_REQUEST and (first or not error.retryable)
