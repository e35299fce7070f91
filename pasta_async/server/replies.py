"""`POST /v1/chat/completions` and `/v1/completions`: answers of the library, or replies of the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Literal
from uuid import uuid4

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from pasta_async.errors import BackendProtocolError, GenerationTimeoutError
from pasta_async.events import AnswerDone, Event, ReasoningDelta, TextDelta, ThreadDelta
from pasta_async.protocol import PassThrough
from pasta_async.results import Generation
from pasta_async.server.errors import ApiError, log_failure, stopping
from pasta_async.server.requests import (
    ChatRequest,
    GenerateRequest,
    answer_limits,
    check_request,
    generate_kwargs,
    read_body,
    sampling_values,
)
from pasta_async.server.service import Service, service_of
from pasta_async.server.streaming import event_fields, merged, stream_response, unless_gone

Json = dict[str, Any]

_SUMMARY = {"critical_path", "text_speedup", "elapsed", "width", "notes"}
"""Fields of a generation that are told of each choice, beside its count of threads."""

_BEGINNING = (TextDelta, ReasoningDelta, ThreadDelta, AnswerDone)
"""With one of these a stream begins; what fails before has an HTTP status."""


async def respond(request: Request, form: type[GenerateRequest]) -> Response:
    """Answer a conversation, or continue each prompt, a text or token ids, without a chat template.

    A stream does not begin before its first text, so that errors have a status. A client that goes away, or a
    cancellation, ends every choice with all its threads.
    """
    service = service_of(request)
    try:
        body = await read_body(request, form, service.settings)
        check_request(body, service)
        reply = _EngineReply(service, body) if body.engine_only else _Reply(service, body)
        headers = {"x-pasta-mode": reply.mode}
        if body.stream:
            return await stream_response(request, reply.chunks(), headers, service.settings)
        whole = await unless_gone(request, reply.whole())
        return Response(to_json(whole), media_type="application/json", headers=headers)
    except asyncio.CancelledError:  # by the ASGI server, which stops
        return stopping().response
    except Exception as error:
        return log_failure(error, text=service.settings.log_text).response


class _Reply:
    """The reply to one request, whole or as the chunks of a stream. Its choices decode side by side."""

    def __init__(self, service: Service, request: GenerateRequest) -> None:
        self._service, self._request = service, request
        self._kwargs = generate_kwargs(request, service)
        self._count = len(request.prompts) * request.choices
        self._chat = isinstance(request, ChatRequest)
        self._envelope: Json = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{uuid4().hex}",
            "created": int(time.time()),
            "model": request.model,
            "system_fingerprint": None,
        }

    @property
    def mode(self) -> Literal["parallel", "sequential", "baseline"]:
        """How answers are decoded."""
        options = self._request.pasta
        if options.baseline or self._service.info.tags is None:
            return "baseline"
        parallel = options.parallel or self._service.settings.parallel
        return "sequential" if parallel == "never" else "parallel"

    async def whole(self) -> Json:
        """The reply of a request that does not stream; the first choice that fails ends the others."""
        async with self._service.admission.enter(self._count):
            calls = await self._calls()
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(self._service.client.generate(**call)) for call in calls]
            except BaseExceptionGroup as errors:
                error = errors.exceptions[0]  # the others were cancelled for it
                raise error from error.__cause__  # which the status goes by
        generations = [task.result() for task in tasks]
        return {
            **self._envelope,
            "object": "chat.completion" if self._chat else "text_completion",
            "choices": [self._whole_choice(index, each) for index, each in enumerate(generations)],
            "usage": self._usage(generations),
            "pasta": self._pasta(*enumerate(generations)),
        }

    async def chunks(self) -> AsyncGenerator[list[Json], None]:
        """The stream's chunks; the first item holds all up to the first text."""
        held: list[Json] = []
        if self._chat:
            held += [self._chunk(self._choice(i, role="assistant", content="")) for i in range(self._count)]
        done: dict[int, Generation] = {}
        begun = False
        async with self._service.admission.enter(self._count):
            streams = [self._service.client.stream(**call) for call in await self._calls()]
            async with aclosing(merged(streams)) as events:
                async for index, event in events:
                    if isinstance(event, AnswerDone):
                        done[index] = event.generation
                    begun = begun or isinstance(event, _BEGINNING)
                    held += self._event_chunks(index, event)
                    if begun and held:
                        yield held
                        held = []
        options = self._request.stream_options
        if options and options.include_usage:
            yield [self._chunk(usage=self._usage([done[index] for index in sorted(done)]))]

    async def _calls(self) -> list[Json]:
        """The arguments of `Client.generate` for each choice; a text is encoded once for all its choices."""
        encode = self._service.client.encode
        prompts = [await encode(each) if isinstance(each, str) else each for each in self._request.prompts]
        return [{**kwargs, "prompt": prompt} for prompt in prompts for kwargs in self._kwargs]

    def _event_chunks(self, index: int, event: Event) -> Iterator[Json]:
        """The chunks for one event of a choice."""
        if self._request.pasta.events and not isinstance(event, AnswerDone):
            pasta: Json = {"mode": self.mode, "choices": [], "event": event_fields(event), "index": index}
            yield self._chunk(pasta=pasta)
        if isinstance(event, TextDelta):
            yield self._chunk(self._choice(index, content=event.delta))
        elif isinstance(event, ReasoningDelta) and self._chat:
            yield self._chunk(self._choice(index, reasoning_content=event.delta))
        elif isinstance(event, AnswerDone):
            last = self._choice(index, ended=event.generation)
            yield self._chunk(last, pasta=self._pasta((index, event.generation)))

    def _chunk(self, *choices: Json, **more: Any) -> Json:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return {**self._envelope, "object": kind, "choices": choices, **more}

    def _whole_choice(self, index: int, generation: Generation) -> Json:
        message = {"role": "assistant", "content": generation.text, "refusal": None}
        if generation.reasoning:
            message["reasoning_content"] = generation.reasoning
        return self._choice(index, "message", ended=generation, **message)

    def _choice(
        self, index: int, part: str = "delta", *, ended: Generation | None = None, **message: Any
    ) -> Json:
        """A choice, or in a stream what is new of it. Its reason to end is in OpenAI's words."""
        text = {part: message} if self._chat else {"text": message.get("content", "")}
        reason = ("length" if ended.finish_reason == "length" else "stop") if ended else None
        return {"index": index, "logprobs": None, "finish_reason": reason, **text}

    def _usage(self, generations: Sequence[Generation]) -> Json:
        """Tokens of a request, tags counted; the prompt of several choices counts once."""
        firsts = generations[:: self._request.choices]
        prompt = sum(generation.usage.prompt_tokens for generation in firsts)
        completion = sum(generation.usage.completion_tokens for generation in generations)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(map(_cached_tokens, firsts))},
        }

    def _pasta(self, *choices: tuple[int, Generation]) -> Json:
        """The field `pasta`: for each choice its summary, or where the request asks for it its record."""
        described: list[Json] = []
        for index, generation in choices:
            fields: Json = {"index": index, "threads": len(generation.threads)}
            include = None if self._request.pasta.record else _SUMMARY
            described.append(fields | generation.model_dump(mode="json", include=include))
        return {"mode": self.mode, "choices": described}


def _cached_tokens(generation: Generation) -> int:
    """Of the prompt's tokens, those whose KV was in the prefix cache when the main thread began."""
    requests = generation.threads[0].requests
    return (requests[0].cached_tokens or 0) if requests else 0


class _EngineReply:
    """What the engine's own endpoint replies, in sequence: the header and the field `pasta` say so."""

    mode: Literal["passed-through"] = "passed-through"

    def __init__(self, service: Service, request: GenerateRequest) -> None:
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
        places = service.admission.enter(len(request.prompts) * request.choices)
        async with aclosing(self._objects()) as objects, places:
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
        if not isinstance(request, ChatRequest):
            return backend.openai("/v1/completions", body)
        if service.info.tags is not None:
            body["chat_template_kwargs"] = {"pasta": False, **(request.chat_template_kwargs or {})}
        return backend.openai("/v1/chat/completions", body)
