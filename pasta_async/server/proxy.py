"""A plain proxy to the engine's own OpenAI endpoint, for requests that the interpreter does not do (tools).

The engine renders and encodes the prompt itself, so it may read special tokens that a user typed as commands.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import AsyncExitStack, contextmanager
from typing import Any, Literal, Protocol, runtime_checkable

import httpx
from pydantic_core import from_json

from pasta_async.errors import (
    BackendConnectError,
    BackendStatusError,
    BackendTransportError,
    GenerationTimeoutError,
)
from pasta_async.server.errors import ApiError
from pasta_async.server.requests import ChatRequest, GenerateRequest, answer_limits, sampling_of
from pasta_async.server.service import Service


@runtime_checkable
class HttpEngine(Protocol):
    """A backend whose engine has an OpenAI API of its own, below this URL; its headers hold its key."""

    @property
    def url(self) -> str: ...  # noqa: D102

    @property
    def headers(self) -> Mapping[str, str]: ...  # noqa: D102


class EngineReply:
    """The reply of the engine's own endpoint, byte for byte; the header `x-pasta-mode` says so."""

    mode: Literal["passed-through"] = "passed-through"
    shown: None = None
    """The text is not looked at."""

    def __init__(self, service: Service, request: GenerateRequest, raw: bytes) -> None:
        backend, field = service.client.backend, request.engine_only
        if not isinstance(backend, HttpEngine):
            param = field.partition(" ")[0] if field else None
            raise ApiError(f"this engine does not support {field}", code="unsupported_parameter", param=param)
        self._service, self._request = service, request
        self._timeout = answer_limits(request, service.limits).timeout
        path = "/v1/chat/completions" if isinstance(request, ChatRequest) else "/v1/completions"
        self._url, self._headers = backend.url.rstrip("/") + path, backend.headers
        self._body = self._engine_body(raw)

    def _engine_body(self, raw: bytes) -> dict[str, Any]:
        """The request as it came, with the server's defaults: the engine has others."""
        service, request = self._service, self._request
        body: dict[str, Any] = {name: value for name, value in from_json(raw).items() if value is not None}
        body.pop("pasta", None)
        sampling = sampling_of(request, service.settings)
        body |= {"model": service.info.name, "temperature": sampling.temperature}
        if request.token_limit is None and "max_tokens" in sampling.model_fields_set:
            body["max_tokens"] = sampling.max_tokens
        if isinstance(request, ChatRequest) and service.info.tags is not None:
            body["chat_template_kwargs"] = {"pasta": False, **(request.chat_template_kwargs or {})}
        return body

    async def whole(self) -> bytes:
        """The reply of a request that does not stream. Cancelling it closes the connection to the engine."""
        return b"".join([part async for part in self.events()])

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The bytes of the reply, as they come. Closing it closes the connection to the engine.

        Raises:
            GenerationTimeoutError: The answer took too long.
            BackendError: The engine refused or failed.
        """
        http, admission = self._service.http, self._service.admission
        request = http.build_request("POST", self._url, json=self._body, headers=self._headers)
        async with AsyncExitStack() as stack:
            seconds = await stack.enter_async_context(admission.enter(self._timeout))
            deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
            # Several tasks may take turns with this generator, so each wait has a time-out of its own.
            with self._worded():
                async with asyncio.timeout_at(deadline):
                    reply = await http.send(request, stream=True)
                stack.push_async_callback(reply.aclose)
                if reply.status_code != 200:
                    async with asyncio.timeout_at(deadline):
                        raise _refusal(reply, await reply.aread())
                parts = reply.aiter_bytes()
                while True:
                    async with asyncio.timeout_at(deadline):
                        part = await anext(parts, None)
                    if part is None:
                        return
                    yield part

    @contextmanager
    def _worded(self) -> Generator[None]:
        """Errors of the connection, in the library's own terms."""
        try:
            yield
        except httpx.ConnectError as error:
            raise BackendConnectError(f"nothing answers at {self._url}: {error}") from error
        except httpx.TransportError as error:
            raise BackendTransportError(f"the connection to {self._url} broke off: {error}") from error
        except TimeoutError as error:
            raise GenerationTimeoutError(f"the answer took longer than {self._timeout:g} s") from error


def _refusal(reply: httpx.Response, content: bytes) -> BackendStatusError:
    """An error reply in the library's own terms, with the engine's words where it has some."""
    try:
        said: Any = from_json(content)
        message = str(said.get("error", said).get("message") or said)
    except (ValueError, AttributeError):
        message = content.decode(errors="replace") or reply.reason_phrase
    return BackendStatusError(
        f"the engine answered {reply.status_code}: {message:.1000}", status=reply.status_code
    )
