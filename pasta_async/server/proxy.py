"""The engine's own OpenAI endpoint, for requests that the interpreter does not do (tools): a plain proxy.

The engine renders and encodes the prompt itself, so it may read special tokens that a user typed as commands.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Literal, Protocol, cast, runtime_checkable

from pydantic_core import from_json

from pasta_async.clock import REAL_CLOCK, time_limit
from pasta_async.options import Limits
from pasta_async.prompts import check_ids, check_json
from pasta_async.server.errors import ApiError
from pasta_async.server.requests import ChatRequest, GenerateRequest, answer_limits, sampling_of
from pasta_async.server.service import Service

_MOST_LOGPROBS = 20  # OpenAI's bound; an engine may have none, and dies of more than its vocabulary has


@runtime_checkable
class Forwards(Protocol):
    """A backend whose engine has an OpenAI API of its own."""

    def forward(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[bytes]:
        """The engine's reply; see `ServerBackend.forward`."""
        ...


class EngineReply:
    """The reply of the engine's own endpoint, byte for byte; the header `x-pasta-mode` says so."""

    mode: Literal["passed-through"] = "passed-through"
    shown: None = None
    """The text so far is not known: the bytes of the reply are not read."""

    def __init__(self, service: Service, request: GenerateRequest, raw: bytes) -> None:
        backend = service.client.backend
        if not isinstance(backend, Forwards):
            field = request.engine_fields[0]
            message = f"this engine does not support {field}"
            raise ApiError(message, code="unsupported_parameter", param=field)
        limits = answer_limits(request, service.client.limits)
        self._backend = backend
        self._queue = service.queue
        self._timeout = limits.timeout
        self._path = "/v1/chat/completions" if isinstance(request, ChatRequest) else "/v1/completions"
        self._body = _engine_body(service, request, limits, raw)

    async def whole(self) -> bytes:
        """The reply of a request that does not stream. Cancelling it closes the connection to the engine."""
        return b"".join([part async for part in self.events()])

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The bytes of the reply, as they come. Closing it closes the connection to the engine.

        Raises:
            GenerationTimeoutError: The answer took too long.
            BackendError: The engine refused or failed.
        """
        async with (
            self._queue.enter(self._timeout) as seconds,
            aclosing(self._backend.forward(self._path, self._body)) as parts,
        ):
            deadline = None if seconds is None else REAL_CLOCK.time() + seconds
            while True:
                async with time_limit(REAL_CLOCK, deadline, "the answer"):
                    part = await anext(parts, None)
                if part is None:
                    return
                yield part


def _engine_body(service: Service, request: GenerateRequest, limits: Limits, raw: bytes) -> dict[str, Any]:
    """The request as it came, with this server's defaults and limits, since the engine has other ones.

    Raises:
        ApiError: A part of a message is a link, which the engine would open, or there are too many logprobs.
        InvalidRequestError: An id of the prompt is outside the vocabulary.
    """
    body: dict[str, Any] = {name: value for name, value in from_json(raw).items() if value is not None}
    check_json(body, "a field of the body")  # Python reads NaN and 1e999, which JSON cannot hold
    body.pop("pasta", None)
    sampling = sampling_of(request, service.settings)
    if sampling.min_p > 0 and not service.model.takes_min_p:
        raise ApiError("this engine takes no min_p", code="unsupported_parameter", param="min_p")
    _refuse_fatal(service, request, body)
    body |= {"model": service.model.name, "temperature": sampling.temperature}
    if "top_p" in body:
        body["top_p"] = sampling.top_p
    # Engines refuse more than the context leaves, and how long the prompt is only they know.
    room = service.model.context_length // 2
    if request.token_limit is None and "max_tokens" in sampling.model_fields_set:
        body["max_tokens"] = min(sampling.max_tokens, room)
    total = limits.total_tokens
    if total is not None and body.get("max_completion_tokens", body.get("max_tokens", total + 1)) > total:
        body.pop("max_completion_tokens", None)
        body["max_tokens"] = min(total, room)
    for message in body.get("messages", ()):
        _prepare_message(message)
    if isinstance(request, ChatRequest) and service.model.tags is not None:
        body["chat_template_kwargs"] = {"pasta": False, **(request.chat_template_kwargs or {})}
    return body


def _refuse_fatal(service: Service, request: GenerateRequest, body: Mapping[str, Any]) -> None:
    """Refuse what an engine may not check, and would die of."""
    for name in ("logprobs", "top_logprobs"):
        count = body.get(name, 0)
        if type(count) not in (int, bool) or not 0 <= count <= _MOST_LOGPROBS:
            raise ApiError(f"{name} goes from 0 to {_MOST_LOGPROBS}", param=name)
    if not isinstance(request, ChatRequest):
        for prompt in request.prompts:
            if not isinstance(prompt, str):
                check_ids(cast("list[int]", prompt), service.model.vocab_size)


def _prepare_message(message: dict[str, Any]) -> None:
    """Give a message the role that chat templates know, and refuse links in it."""
    if message["role"] == "developer":
        message["role"] = "system"
    for part in message["content"] if isinstance(message.get("content"), list) else ():
        _refuse_links(part)


def _refuse_links(part: Mapping[str, Any]) -> None:
    """Refuse a part of a message whose image, sound or film is elsewhere: engines open URLs and files."""
    for name, value in part.items():
        link: Any = cast("Mapping[str, Any]", value).get("url") if isinstance(value, Mapping) else value
        if name.endswith("_url") and isinstance(link, str) and not link.startswith("data:"):
            raise ApiError("only data: URLs are taken here", param=f"messages.content.{name}")
