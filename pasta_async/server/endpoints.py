"""`POST /v1/chat/completions` and `/v1/completions`."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json
from starlette.responses import Response

from pasta_async.errors import BackendProtocolError, GenerationTimeoutError
from pasta_async.events import AnswerDone, ReasoningDelta, TextDelta, ThreadDelta
from pasta_async.protocol import PassThrough
from pasta_async.server.errors import ApiError
from pasta_async.server.replies import Mode, Replies
from pasta_async.server.requests import (
    ChatRequest,
    CompletionRequest,
    GenerateRequest,
    answer_limits,
    check_request,
    generate_kwargs,
    read_body,
    sampling_values,
)
from pasta_async.server.service import service_of
from pasta_async.server.streaming import merged, stream_response, unless_gone

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request

    from pasta_async.protocol import ModelInfo
    from pasta_async.results import Generation
    from pasta_async.server.service import Service

    Json = dict[str, Any]

__all__ = ["chat_completions", "completions"]

_BEGINNING = (TextDelta, ReasoningDelta, ThreadDelta, AnswerDone)
"""With one of these a stream begins; what fails before has an HTTP status."""


async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    return await _respond(request, ChatRequest)


async def completions(request: Request) -> Response:
    """Continue each prompt, a text or token ids, without a chat template."""
    return await _respond(request, CompletionRequest)


async def _respond(request: Request, form: type[GenerateRequest]) -> Response:
    """The response; that of a stream is not made before its first text, so that errors have a status.

    A client that goes away, or a cancellation, ends every choice with all its threads.
    """
    service = service_of(request)
    body = await read_body(request, form, service.settings)
    check_request(body, service)
    if body.engine_only:
        return await _pass_through(request, service, body)
    answers = _Answers(service, body)
    headers = {"x-pasta-mode": answers.replies.mode}
    if body.stream:
        return await stream_response(request, answers.chunks(), headers, service.settings)
    generations = await unless_gone(request, answers.generate())
    return _json(answers.replies.whole(generations), headers)


def _json(value: Json, headers: dict[str, str]) -> Response:
    return Response(to_json(value), media_type="application/json", headers=headers)


def _mode(request: GenerateRequest, info: ModelInfo) -> Mode:
    """How answers are decoded. A model that must be told about tags is not told by a bare text."""
    untold = isinstance(request, CompletionRequest) and info.tags is None and not request.pasta.prompted
    if request.pasta.baseline or untold:
        return "baseline"
    return "parallel" if request.pasta.parallel else "sequential"


class _Answers:
    """The answers of one request: its choices decode side by side."""

    def __init__(self, service: Service, request: GenerateRequest) -> None:
        self._service, self._request = service, request
        self._kwargs = generate_kwargs(request, service)
        self.replies = Replies(request, _mode(request, service.info))
        self._count = len(request.prompts) * request.choices

    async def generate(self) -> list[Generation]:
        """All choices; the first that fails ends the others."""
        async with self._service.admission.enter(self._count):
            calls = await self._calls()
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(self._service.client.generate(**call)) for call in calls]
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None  # the others were cancelled for it
            return [task.result() for task in tasks]

    async def chunks(self) -> AsyncGenerator[list[Json], None]:
        """The stream's chunks; the first item holds all up to the first text."""
        held = [chunk for index in range(self._count) for chunk in self.replies.first(index)]
        done: dict[int, Generation] = {}
        begun = False
        async with self._service.admission.enter(self._count):
            streams = [self._service.client.stream(**call) for call in await self._calls()]
            async with aclosing(merged(streams)) as events:
                async for index, event in events:
                    if isinstance(event, AnswerDone):
                        done[index] = event.generation
                    begun = begun or isinstance(event, _BEGINNING)
                    held += self.replies.event(index, event)
                    if begun and held:
                        yield held
                        held = []
        if last := self.replies.last([done[index] for index in sorted(done)]):
            yield last

    async def _calls(self) -> list[dict[str, Any]]:
        """The arguments of `Client.generate` for each choice; a text is encoded once for all its choices."""
        encode = self._service.client.backend.encode
        prompts = [await encode(each) if isinstance(each, str) else each for each in self._request.prompts]
        return [{**kwargs, "prompt": prompt} for prompt in prompts for kwargs in self._kwargs]


async def _pass_through(request: Request, service: Service, body: GenerateRequest) -> Response:
    """Have the engine's own endpoint answer, in sequence: the header and the field `pasta` say so.

    A client that goes away, or a cancellation, aborts the request on the engine.
    """
    headers = {"x-pasta-mode": "passed-through"}
    events = _engine_events(service, body)
    if body.stream:
        return await stream_response(request, events, headers, service.settings)
    async with aclosing(events):
        reply = await unless_gone(request, _first(events))
    return _json(reply, headers)


async def _first(events: AsyncGenerator[list[Json], None]) -> Json:
    async for event in events:
        return event[0]
    raise BackendProtocolError("the engine's reply is empty")


async def _engine_events(service: Service, body: GenerateRequest) -> AsyncGenerator[list[Json], None]:
    """What the engine replies, under the name that the model was asked by; the first object is marked."""
    mark: Json = {"pasta": {"mode": "passed-through", "because": body.engine_only, "choices": []}}
    timeout = answer_limits(body.pasta.limits, service.limits).timeout
    engine = _engine_reply(service, body)
    async with service.admission.enter(len(body.prompts) * body.choices), aclosing(engine):
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    event = await anext(engine, None)
            except TimeoutError:
                raise GenerationTimeoutError(f"the answer took longer than {timeout:g} s") from None
            if event is None:
                return
            yield [{**event, "model": body.model, **mark}]
            mark = {}


def _engine_reply(service: Service, body: GenerateRequest) -> AsyncGenerator[Json, None]:
    """The engine's reply to a request; it would take a default of its own for what is left out."""
    backend = service.client.backend
    if not isinstance(backend, PassThrough):
        field = body.engine_only[0]
        raise ApiError(f"this engine does not support {field}", code="unsupported_parameter", param=field)
    sent = body.model_dump(exclude_none=True, exclude={"pasta", "max_tokens", "max_completion_tokens"})
    sent |= sampling_values(body, service.settings) | {"model": service.info.name}
    if not isinstance(body, ChatRequest):
        return backend.openai("/v1/completions", sent)
    if service.info.tags is not None:
        sent["chat_template_kwargs"] = {"pasta": False, **(body.chat_template_kwargs or {})}
    return backend.openai("/v1/chat/completions", sent)
