"""`POST /v1/chat/completions`: answers of the library, or replies of the engine."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from pydantic_core import to_json
from starlette.responses import Response

from pasta_async.errors import BackendProtocolError, GenerationTimeoutError
from pasta_async.events import AnswerDone, ReasoningDelta, TextDelta, ThreadDelta
from pasta_async.protocol import PassThrough
from pasta_async.server.errors import ApiError
from pasta_async.server.requests import (
    answer_limits,
    check_request,
    generate_kwargs,
    read_body,
    sampling_values,
)
from pasta_async.server.service import service_of
from pasta_async.server.streaming import event_fields, stream_response, unless_gone

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from starlette.requests import Request

    from pasta_async.events import Event
    from pasta_async.results import Generation
    from pasta_async.server.requests import ChatRequest
    from pasta_async.server.service import Service

    Json = dict[str, Any]
    Mode = Literal["parallel", "sequential", "baseline"]

__all__ = ["chat_completions"]

_BEGINNING = (TextDelta, ReasoningDelta, ThreadDelta, AnswerDone)
"""With one of these a stream begins; what fails before has an HTTP status."""


async def chat_completions(request: Request) -> Response:
    """Answer a conversation; a stream is not begun before its first text, so that errors have a status.

    A client that goes away, or a cancellation, ends the answer with all its threads.
    """
    service = service_of(request)
    body = await read_body(request, service.settings)
    check_request(body, service)
    reply = _EngineReply(service, body) if body.engine_only else _Reply(service, body)
    headers = {"x-pasta-mode": reply.mode}
    if body.stream:
        return await stream_response(request, reply.chunks(), headers, service.settings)
    whole = await unless_gone(request, reply.whole())
    return Response(to_json(whole), media_type="application/json", headers=headers)


class _Reply:
    """The reply to one request, whole or as the chunks of a stream."""

    def __init__(self, service: Service, request: ChatRequest) -> None:
        self._service, self._request = service, request
        self._kwargs = generate_kwargs(request, service)
        self._envelope: Json = {
            "id": f"chatcmpl-{uuid4().hex}",
            "created": int(time.time()),
            "model": request.model,
            "system_fingerprint": None,
        }

    @property
    def mode(self) -> Mode:
        """How the answer is decoded."""
        options = self._request.pasta
        if options.baseline:
            return "baseline"
        parallel = options.parallel or self._service.settings.parallel
        return "sequential" if parallel == "never" else "parallel"

    async def whole(self) -> Json:
        """The reply of a request that does not stream."""
        async with self._service.admission.enter():
            generation = await self._service.client.generate(**self._kwargs)
        message = {"role": "assistant", "content": generation.text, "refusal": None}
        if generation.reasoning:
            message["reasoning_content"] = generation.reasoning
        return {
            **self._envelope,
            "object": "chat.completion",
            "choices": [_choice(_finish_reason(generation), message=message)],
            "usage": _usage(generation),
            "pasta": self._pasta(generation),
        }

    async def chunks(self) -> AsyncGenerator[list[Json], None]:
        """The stream's chunks; the first item holds all up to the first text."""
        held = [self._chunk(_delta(role="assistant", content=""))]
        begun, usage = False, dict[str, Any]()
        async with self._service.admission.enter(), self._service.client.stream(**self._kwargs) as events:
            async for event in events:
                if isinstance(event, AnswerDone):
                    usage = _usage(event.generation)
                begun = begun or isinstance(event, _BEGINNING)
                held += self._event_chunks(event)
                if begun and held:
                    yield held
                    held = []
        options = self._request.stream_options
        if options and options.include_usage:
            yield [self._chunk(usage=usage)]

    def _event_chunks(self, event: Event) -> Iterator[Json]:
        """The chunks for one event."""
        if self._request.pasta.events and not isinstance(event, AnswerDone):
            pasta: Json = {"mode": self.mode, "choices": [], "event": event_fields(event), "index": 0}
            yield self._chunk(pasta=pasta)
        if isinstance(event, TextDelta):
            yield self._chunk(_delta(content=event.delta))
        elif isinstance(event, ReasoningDelta):
            yield self._chunk(_delta(reasoning_content=event.delta))
        elif isinstance(event, AnswerDone):
            last = _choice(_finish_reason(event.generation), delta={})
            yield self._chunk(last, pasta=self._pasta(event.generation))

    def _chunk(self, *choices: Json, **more: Any) -> Json:
        return {**self._envelope, "object": "chat.completion.chunk", "choices": choices, **more}

    def _pasta(self, generation: Generation) -> Json:
        """The field `pasta`: the answer's summary, or where the request asks for it its record."""
        describe = _record if self._request.pasta.record else _summary
        return {"mode": self.mode, "choices": [{"index": 0, **describe(generation)}]}


def _choice(finish_reason: str | None, **text: Json) -> Json:
    return {"index": 0, "logprobs": None, "finish_reason": finish_reason, **text}


def _delta(**delta: str) -> Json:
    return _choice(None, delta=delta)


def _usage(generation: Generation) -> Json:
    """Tokens of an answer, tags counted."""
    usage, requests = generation.usage, generation.threads[0].requests
    # Of the prompt's tokens, those whose KV was in the prefix cache when the main thread began.
    cached = (requests[0].cached_tokens or 0) if requests else 0
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _record(generation: Generation) -> Json:
    return generation.model_dump(mode="json")


def _summary(generation: Generation) -> Json:
    fields = {"critical_path", "text_speedup", "elapsed", "width", "notes"}
    return {"threads": len(generation.threads), **generation.model_dump(mode="json", include=fields)}


def _finish_reason(generation: Generation) -> str:
    """Why an answer ended, in OpenAI's words."""
    return "length" if generation.finish_reason == "length" else "stop"


class _EngineReply:
    """What the engine's own endpoint replies, in sequence: the header and the field `pasta` say so."""

    mode: Literal["passed-through"] = "passed-through"

    def __init__(self, service: Service, request: ChatRequest) -> None:
        self._service, self._request = service, request

    async def whole(self) -> Json:
        """The reply of a request that does not stream."""
        async with aclosing(self.chunks()) as replies:
            async for reply in replies:
                return reply[0]
        raise BackendProtocolError("the engine's reply is empty")

    async def chunks(self) -> AsyncGenerator[list[Json], None]:
        """The objects of the reply, under the name that the model was asked by; the first is marked."""
        request, service = self._request, self._service
        because: Json = {"mode": self.mode, "because": request.engine_only, "choices": []}
        changes: Json = {"model": request.model, "pasta": because}
        timeout = answer_limits(request.pasta.limits, service.limits).timeout
        async with aclosing(self._objects()) as objects, service.admission.enter():
            deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
            while True:
                try:
                    async with asyncio.timeout_at(deadline):
                        found = await anext(objects, None)
                except TimeoutError:
                    raise GenerationTimeoutError(f"the answer took longer than {timeout:g} s") from None
                if found is None:
                    return
                yield [{**found, **changes}]
                changes.pop("pasta", None)

    def _objects(self) -> AsyncGenerator[Json, None]:
        """The engine's reply as it is. It has defaults of its own, so it is told what was left out."""
        service, request, backend = self._service, self._request, self._service.client.backend
        if not isinstance(backend, PassThrough):
            field = request.engine_only[0]
            raise ApiError(f"this engine does not support {field}", code="unsupported_parameter", param=field)
        body = request.model_dump(exclude_none=True, exclude={"pasta", "max_tokens", "max_completion_tokens"})
        body |= sampling_values(request, service.settings) | {"model": service.info.name}
        if service.info.tags is not None:
            body["chat_template_kwargs"] = {"pasta": False, **(request.chat_template_kwargs or {})}
        return backend.openai("/v1/chat/completions", body)
