"""Requests that only the engine's own OpenAI endpoint can honour: passed through, in sequence, marked so."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse

from pasta_async.errors import BackendProtocolError, GenerationTimeoutError
from pasta_async.protocol import PassThrough
from pasta_async.server.asking import answer_limits, sampling_values
from pasta_async.server.disconnect import unless_gone
from pasta_async.server.problems import Problem
from pasta_async.server.replies import PastaReply
from pasta_async.server.schema import ChatRequest
from pasta_async.server.streaming import respond_with

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request
    from starlette.responses import Response

    from pasta_async.server.schema import GenerateRequest
    from pasta_async.server.service import Service

__all__ = ["pass_through"]

_HEADERS = {"x-pasta-mode": "passed-through"}


async def pass_through(request: Request, service: Service, asked: GenerateRequest) -> Response:
    """Have the engine itself answer, and mark the reply: the header `x-pasta-mode`, the field `pasta`.

    A client that goes away, or a cancellation, aborts the request on the engine.

    Raises:
        Problem: The engine has no such endpoint.
    """
    backend = service.client.backend
    if not isinstance(backend, PassThrough):
        field = asked.engine_only[0]
        raise Problem(f"this engine does not support {field}", code="unsupported_parameter", param=field)
    path = "/v1/chat/completions" if isinstance(asked, ChatRequest) else "/v1/completions"
    events = _events(service, asked, backend.openai(path, _body(asked, service)))
    if asked.stream:
        return await respond_with(request, _chunks(events), _HEADERS, service.settings)
    return JSONResponse(await unless_gone(request, _only(events)), headers=_HEADERS)


def _body(asked: GenerateRequest, service: Service) -> dict[str, Any]:
    """The request in the words of the engine, which would take a default of its own for what is left out."""
    body = asked.model_dump(exclude_none=True, exclude={"pasta", "max_tokens", "max_completion_tokens"})
    body |= sampling_values(asked, service.settings) | {"model": service.info.name}
    if isinstance(asked, ChatRequest) and service.info.tags is not None:
        body["chat_template_kwargs"] = {"pasta": False, **(asked.chat_template_kwargs or {})}
    return body


async def _events(
    service: Service, asked: GenerateRequest, engine: AsyncGenerator[dict[str, Any], None]
) -> AsyncGenerator[dict[str, Any], None]:
    """What the engine says, under the name that the model was asked by; the first object is marked."""
    mark = PastaReply(mode="passed-through", because=asked.engine_only).model_dump(mode="json")
    timeout = answer_limits(asked.pasta.limits, service.limits).timeout
    async with service.admission.enter(len(asked.prompts) * asked.choices), aclosing(engine):
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    event = await anext(engine, None)
            except TimeoutError:
                raise GenerationTimeoutError(f"the answer took longer than {timeout:g} s") from None
            if event is None:
                return
            yield {**event, "model": asked.model, **({"pasta": mark} if mark else {})}
            mark = None


async def _only(events: AsyncGenerator[dict[str, Any], None]) -> dict[str, Any]:
    async with aclosing(events):
        async for event in events:
            return event
    raise BackendProtocolError("the engine's reply is empty")


async def _chunks(events: AsyncGenerator[dict[str, Any], None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(events):
        async for event in events:
            yield b"data: %b\n\n" % json.dumps(event).encode()
    yield b"data: [DONE]\n\n"
