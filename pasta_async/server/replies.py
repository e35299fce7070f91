"""`POST /v1/chat/completions` and `/v1/completions`: answers in OpenAI's form, whole or as streams."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import Any, Literal, TypeVar
from uuid import uuid4

import anyio
from pydantic import TypeAdapter
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from pasta_async.clock import wait_out
from pasta_async.events import AnswerDone, Event, ReasoningDelta, TextDelta, ThreadDelta, ThreadFailed
from pasta_async.plans import FieldDelta, FillDone, FillEvent, Plan, PlanReport
from pasta_async.plans.schema import KEY
from pasta_async.prompts import check_length
from pasta_async.results import Generation
from pasta_async.server.errors import ApiError, reported, stopping, without_addresses
from pasta_async.server.proxy import EngineReply
from pasta_async.server.requests import (
    ChatRequest,
    GenerateRequest,
    PlanRequest,
    answer_limits,
    check_request,
    parse_body,
    read_body,
    sampling_of,
)
from pasta_async.server.service import Service, service_of

Json = dict[str, Any]
_T = TypeVar("_T")
_EVENTS: TypeAdapter[Event | FillEvent] = TypeAdapter(Event | FillEvent)

_SUMMARY = {"critical_path", "text_speedup", "elapsed", "width", "notes"}
"""Fields of a generation that a reply has for each choice, beside its number of threads."""

_BEGINNING = (TextDelta, ReasoningDelta, ThreadDelta, FieldDelta, AnswerDone)
"""Events with which a reply as a stream begins; an error before the first one has an HTTP status."""


async def respond(request: Request, form: type[GenerateRequest]) -> Response:
    """Answer a conversation, or continue each prompt, a text or token ids, without a chat template.

    A client that goes away, or a cancellation, ends every choice with all its threads.
    """
    service = service_of(request)

    async def answered() -> Response:
        raw = await read_body(request, service.settings)
        body = parse_body(raw, form)
        check_request(body, service)
        reply = _reply(service, body, raw)
        if body.stream:
            return await _streamed(request, reply, log_text=service.settings.log_text)
        content = await _unless_gone(request, reply.whole())
        return Response(content, media_type="application/json", headers={"x-pasta-mode": reply.mode})

    return await _reported(service, answered())


async def check(request: Request) -> Response:
    """Reply with the report of `Client.check` on the plan in a schema, as JSON. It waits for its turn.

    A client that goes away, or a cancellation, ends the wait.
    """
    service = service_of(request)

    async def report(body: PlanRequest) -> PlanReport:
        async with service.queue.enter(service.client.limits.timeout):
            most = body.max_tokens or service.settings.max_tokens
            return await service.client.check(body.json_schema, max_tokens=most)

    async def answered() -> Response:
        body = parse_body(await read_body(request, service.settings), PlanRequest)
        return JSONResponse((await _unless_gone(request, report(body))).model_dump(mode="json"))

    return await _reported(service, answered())


async def _reported(service: Service, reply: Awaitable[Response]) -> Response:
    """A reply, or in its place the one that tells the error."""
    try:
        return await reply
    except asyncio.CancelledError:  # by the ASGI server, which stops
        return stopping().response
    except Exception as error:
        return reported(error, log_text=service.settings.log_text).response


def _reply(service: Service, body: GenerateRequest, raw: bytes) -> _Reply | EngineReply:
    """The reply to a request, by the library or, where only that can honour it, by the engine's endpoint."""
    if isinstance(body, ChatRequest) and body.schema_asked_for and service.model.grammars:
        return _FilledReply(service, body, body.schema_asked_for)
    return EngineReply(service, body, raw) if body.engine_fields else _Reply(service, body)


class _Reply:
    """The reply to one request, whole or as the events of a stream. Its choices decode side by side."""

    def __init__(self, service: Service, request: GenerateRequest) -> None:
        self._service = service
        self._request = request
        self._options = request.options
        self._limits = answer_limits(request, service.client.limits)
        self._chat = isinstance(request, ChatRequest)
        self._envelope: Json = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{uuid4().hex}",
            "created": int(time.time()),
            "model": request.model,
            "system_fingerprint": None,
        }
        self.mode: Literal["parallel", "sequential", "baseline"] = "parallel"
        """The way in which the answers are decoded."""
        self._parallel = self._options.parallel or service.settings.parallel
        if self._options.baseline or (service.model.tags is None and self._parallel != "outline"):
            self.mode = "baseline"
        elif self._parallel == "never":
            self.mode = "sequential"
        self.shown: str = ""
        """Text of the first choice that a stream has sent so far."""

    async def whole(self) -> bytes:
        """The reply of a request that does not stream; the first choice that fails ends the others."""
        async with self._service.queue.enter(self._limits.timeout) as seconds:
            calls = await self._calls(seconds)
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(self._answer(call)) for call in calls]
            except BaseExceptionGroup as errors:
                error = errors.exceptions[0]  # the other choices were cancelled because of it
                raise error from error.__cause__  # the cause decides the HTTP status
        generations = [task.result() for task in tasks]
        reply = {
            **self._envelope,
            "object": "chat.completion" if self._chat else "text_completion",
            "choices": [self._whole_choice(index, item) for index, item in enumerate(generations)],
            "usage": self._usage(generations),
            "pasta": self._pasta(*enumerate(generations)),
        }
        return to_json(reply)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The events of a stream as bytes; the first item holds all events up to the first text."""
        count = self._request.count
        held: list[Json] = []  # chunks that are not sent yet
        if self._chat:
            held += [self._chunk(self._choice(i, role="assistant", content="")) for i in range(count)]
        done: dict[int, Generation] = {}
        begun = False
        async with self._service.queue.enter(self._limits.timeout) as seconds:
            answers = [self._events(call) for call in await self._calls(seconds)]
            async with aclosing(_merged(answers)) as events:
                async for index, event in events:
                    if isinstance(event, AnswerDone):
                        done[index] = event.generation
                    # Chunks are held back until the first text, so that an error before it has a status.
                    begun = begun or isinstance(event, _BEGINNING)
                    held += self._event_chunks(index, event)
                    if begun and held:
                        yield b"".join(map(_data_event, held))
                        held = []
        stream_options = self._request.stream_options
        if stream_options and stream_options.include_usage:
            yield _data_event(self._chunk(usage=self._usage([done[index] for index in sorted(done)])))
        yield b"data: [DONE]\n\n"

    async def _answer(self, call: Json) -> Generation:
        return await self._service.client.generate(**call)

    async def _events(self, call: Json) -> AsyncGenerator[Event | FillEvent, None]:
        """The events of one choice, at last `AnswerDone`."""
        async with self._service.client.stream(**call) as stream:
            async for event in stream:
                yield event

    async def _calls(self, seconds: float | None) -> list[Json]:
        """The arguments of `Client.generate` for each choice; `seconds` is the time limit of the answers."""
        request = self._request
        settings = self._service.settings
        shared: Json = {
            "limits": self._limits.model_copy(update={"timeout": seconds}),
            "baseline": bool(self._options.baseline),
            "parallel": self._parallel,
            "sampling": sampling_of(request, settings),
        }
        if isinstance(request, ChatRequest):
            shared["chat_template_kwargs"] = request.chat_template_kwargs
        calls: list[Json] = []
        model = self._service.model
        for prompt in request.prompts:
            if isinstance(prompt, str):  # encoded once for all its choices
                prompt = await self._service.client.encode(prompt)
            if not isinstance(request, ChatRequest):
                check_length(prompt, model, self._limits)
            for index in range(request.choices):
                seed = {} if request.seed is None else {"seed": (request.seed + index) % 2**63}
                calls.append({**shared, **seed, "prompt": prompt})
        return calls

    def _event_chunks(self, index: int, event: Event | FillEvent) -> Iterator[Json]:
        """The chunks for one event of a choice."""
        if self._options.events and not isinstance(event, AnswerDone):
            pasta: Json = {"mode": self.mode, "choices": [], "event": event_fields(event), "index": index}
            yield self._chunk(pasta=pasta)
        if isinstance(event, TextDelta) or (isinstance(event, ReasoningDelta) and not self._chat):
            if index == 0:
                self.shown += event.delta
            yield self._chunk(self._choice(index, content=event.delta))
        elif isinstance(event, ReasoningDelta):
            yield self._chunk(self._choice(index, reasoning_content=event.delta))
        elif isinstance(event, AnswerDone):
            last = self._choice(index, ended=event.generation)
            yield self._chunk(last, pasta=self._pasta((index, event.generation)))

    def _chunk(self, *choices: Json, **more: Any) -> Json:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return {**self._envelope, "object": kind, "choices": choices, **more}

    def _whole_choice(self, index: int, generation: Generation) -> Json:
        if not self._chat:  # a completion has a single text, so the reasoning stands in it
            return self._choice(index, ended=generation, content=generation.reasoning + generation.text)
        message = {"role": "assistant", "content": generation.text, "refusal": None}
        if generation.reasoning:
            message["reasoning_content"] = generation.reasoning
        return self._choice(index, "message", ended=generation, **message)

    def _choice(
        self, index: int, part: str = "delta", *, ended: Generation | None = None, **message: Any
    ) -> Json:
        """A choice, or in a stream its new part. Its reason to end is in OpenAI's words."""
        text = {part: message} if self._chat else {"text": message.get("content", "")}
        reason = None
        if ended:
            reason = "length" if ended.finish_reason == "length" else "stop"
        return {"index": index, "logprobs": None, "finish_reason": reason, **text}

    def _usage(self, generations: Sequence[Generation]) -> Json:
        """Tokens of a request, tags counted; the prompt of several choices counts once."""
        firsts = generations[:: self._request.choices]  # the first choice of each prompt
        prompt = sum(generation.usage.prompt_tokens for generation in firsts)
        completion = sum(generation.usage.completion_tokens for generation in generations)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(map(_cached_tokens, firsts))},
        }

    def _pasta(self, *choices: tuple[int, Generation]) -> Json:
        """The field `pasta`: a summary of each choice, or its whole record if the request asks for that."""
        described: list[Json] = []
        for index, generation in choices:
            fields: Json = {"index": index, "threads": len(generation.threads)}
            include = None if self._options.record else _SUMMARY
            fields |= generation.model_dump(mode="json", include=include)
            described.append({**fields, "notes": _public_notes(generation)})
        return {"mode": self.mode, "choices": described}


class _FilledReply(_Reply):
    """The reply to a request for an object of a schema.

    The object is written in sequence, or its fields in parallel if the schema or the request says so.
    """

    def __init__(self, service: Service, request: ChatRequest, schema: Json) -> None:
        super().__init__(service, request)
        in_parallel = self._options.plan
        if in_parallel is None:
            in_parallel = f'"{KEY}"' in json.dumps(schema)
        limits = (request.token_limit or service.settings.max_tokens, self._limits.total_tokens)
        limit = min(filter(None, limits), default=None)
        if limit is not None:
            limit = min(limit, service.model.context_length)
        self._plan = Plan.of(schema) if in_parallel else Plan.in_sequence(schema, limit)
        in_turn = self._parallel == "never"
        self.mode = "baseline" if not in_parallel else "sequential" if in_turn else "parallel"

    async def _answer(self, call: Json) -> Generation:
        return (await self._service.client.fill(**call)).generation

    async def _events(self, call: Json) -> AsyncGenerator[Event | FillEvent, None]:
        """A plan's events in the form of an answer's: those of its fields, its text in order, its record."""
        written = 0  # characters of the text that have come out
        async with self._service.client.fill_stream(**call) as stream:
            async for event in stream:
                if not isinstance(event, FillDone):
                    yield event
                if delta := stream.text[written:]:
                    written += len(delta)
                    yield TextDelta(delta)
                if isinstance(event, FillDone):
                    yield AnswerDone(event.filled.generation)

    async def _calls(self, seconds: float | None) -> list[Json]:
        """The arguments of `Client.fill` for each choice."""
        calls = await super()._calls(seconds)
        for call in calls:
            del call["baseline"]
            call["form"] = self._plan
        return calls


def _cached_tokens(generation: Generation) -> int:
    """Tokens of the prompt whose KV was in the prefix cache when the first thread began.

    A plan's first field may see more than the prompt.
    """
    requests = generation.threads[0].requests
    return min(requests[0].cached_tokens or 0, generation.usage.prompt_tokens) if requests else 0


# Server-sent events ----------------------------------------------------------------------------------------


def event_fields(event: Event | FillEvent) -> dict[str, Any]:
    """An event of an answer, or of a plan, as a JSON object: its fields by their names, `type` among them.

    Messages are without the engine's address.
    `pydantic.TypeAdapter(pasta_async.Event)` reads an answer's again.
    """
    fields: Json = _EVENTS.dump_python(event, mode="json")
    if isinstance(event, ThreadFailed):
        fields["error"]["message"] = without_addresses(event.error.message)
    elif isinstance(event, AnswerDone):
        fields["generation"]["notes"] = _public_notes(event.generation)
    elif isinstance(event, FillDone):
        fields["filled"]["generation"]["notes"] = _public_notes(event.filled.generation)
    return fields


def _public_notes(generation: Generation) -> list[str]:
    """An answer's notes, without the engine's address."""
    return [*map(without_addresses, generation.notes)]


class _EventResponse(StreamingResponse):
    """Server-sent events, until the client goes away. The generators are closed however the response ends.

    `source` is the generator that `events` reads from. It is closed as well: `events` does not do it if it
    has not begun.
    """

    def __init__(
        self,
        request: Request,
        reply: _Reply | EngineReply,
        events: AsyncGenerator[bytes, None],
        source: AsyncGenerator[bytes, None],
    ) -> None:
        # nginx would hold the events back until its buffer is full.
        headers = {"x-pasta-mode": reply.mode, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(events, headers=headers, media_type="text/event-stream")
        self._request = request
        self._reply = reply
        self._generators = (events, source)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events. A client that goes away, or a cancellation, closes the generators.

        An ASGI server that stops cancels open requests. Such a cancellation ends here: instead, the client
        gets a last event.
        """
        open_body = False  # the response has begun, and its body is not complete

        async def watched(message: Message) -> None:
            nonlocal open_body
            open_body = message.get("more_body", True)
            await send(message)

        try:
            await _unless_gone(self._request, self.stream_response(watched))
        except ApiError:  # the client has gone
            pass
        except asyncio.CancelledError:
            if open_body:
                last_event = _data_event(stopping(self._reply.shown).body)
                await send({"type": "http.response.body", "body": last_event})
        finally:
            with anyio.CancelScope(shield=True):
                for generator in self._generators:
                    await generator.aclose()


def _data_event(value: Any) -> bytes:
    """A value as an event of OpenAI's streams."""
    return b"data: %b\n\n" % to_json(value)


async def _streamed(request: Request, reply: _Reply | EngineReply, *, log_text: bool) -> Response:
    """A reply as a stream. It waits for the first event, so that an error before it has an HTTP status.

    A client that goes away, or a cancellation, closes the generator. If an error or the end of the server
    breaks the stream off, clients get the text so far.
    """
    events = reply.events()

    async def rest(first: bytes) -> AsyncGenerator[bytes, None]:
        try:
            yield first
            async for event in events:
                yield event
        except Exception as error:
            failure = reported(error, log_text=log_text)
            if failure.partial is None:
                failure.partial = reply.shown
            yield _data_event(failure.body)

    async def first_event() -> bytes:
        return await anext(events, b"")  # the reply of an engine's own endpoint may be empty

    try:
        first = await _unless_gone(request, first_event())
    except BaseException:
        await events.aclose()
        raise
    return _EventResponse(request, reply, rest(first), source=events)


async def _unless_gone(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """Do some work for a request whose body was read, until its client disconnects.

    Raises:
        ApiError: The client has gone, and the work was cancelled. No client will get this error.

    Cancelling it cancels the work and waits until it is over.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ApiError("the client has gone", 499)
    finally:
        task.cancel()
        gone.cancel()
        over = partial(asyncio.wait, (task, gone))
        if cancelled := await wait_out(lambda: task.done() and gone.done(), over):
            raise cancelled


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _merged(
    answers: Sequence[AsyncGenerator[Event | FillEvent, None]],
) -> AsyncGenerator[tuple[int, Event | FillEvent], None]:
    """The events of several answers as they come, each with its answer's index in the sequence.

    Raises the error that ends any of the answers. Closing it ends them all.
    """
    async with AsyncExitStack() as stack:
        for answer in answers:
            await stack.enter_async_context(aclosing(answer))
        if len(answers) == 1:  # no tasks needed
            async for event in answers[0]:
                yield 0, event
            return
        # A task for each answer waits for its next event; another one follows before the event is passed on.
        waiting = {asyncio.create_task(anext(answer)): index for index, answer in enumerate(answers)}
        try:
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    index = waiting.pop(task)
                    try:
                        event = task.result()
                    except StopAsyncIteration:
                        continue
                    waiting[asyncio.create_task(anext(answers[index]))] = index
                    yield index, event
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)  # several may have failed at the same time
