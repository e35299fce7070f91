"""Answers as server-sent events, for this server and for one's own app."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, aclosing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from pydantic_core import to_json
from sse_starlette import EventSourceResponse, ServerSentEvent

from pasta_async.errors import PastaError
from pasta_async.events import (
    AnswerDone,
    DiagnosticFound,
    TextDelta,
    ThreadDelta,
    ThreadDone,
    ThreadFailed,
)
from pasta_async.server.errors import ApiError, api_error, log_failure

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping, Sequence

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from pasta_async.events import Event
    from pasta_async.server.settings import ServerSettings
    from pasta_async.streaming import AnswerStream

__all__ = [
    "DRAIN_SECONDS",
    "AnswerResponse",
    "EventResponse",
    "event_fields",
    "merged",
    "stream_response",
    "unless_gone",
]

_T = TypeVar("_T")

DRAIN_SECONDS = 30.0
"""How long a stream may go on after the process was told to stop."""


def event_fields(event: Event) -> dict[str, Any]:
    """An event as a JSON object: its fields by their names, `type` among them.

    Records and the generation are objects as `model_dump` makes them; errors by class and message.
    """
    match event:
        case TextDelta():
            return {"type": event.type, "delta": event.delta}
        case ThreadDelta():
            return {"type": event.type, "thread": event.thread, "delta": event.delta}
        case ThreadDone():
            record = event.record.model_dump(mode="json")
            return {"type": event.type, "thread": event.thread, "record": record}
        case ThreadFailed():
            error = {"type": type(event.error).__name__, "message": str(event.error)}
            return {"type": event.type, "thread": event.thread, "error": error, "action": event.action}
        case DiagnosticFound():
            return {"type": event.type, "diagnostic": asdict(event.diagnostic)}
        case AnswerDone():
            return {"type": event.type, "generation": event.generation.model_dump(mode="json")}
        case _:
            return asdict(event)


class EventResponse(EventSourceResponse):
    """Server-sent events from a generator, which is closed whatever becomes of the response.

    Args:
        events: The events, as bytes or in any form that sse-starlette takes.
        headers: Further headers.
        ping: Seconds between comments that keep the connection alive; 0: none.
        drain: Seconds the stream may go on after the process was told to stop.
    """

    def __init__(
        self,
        events: AsyncGenerator[Any, None],
        *,
        headers: Mapping[str, str] | None = None,
        ping: float = 15.0,
        drain: float = DRAIN_SECONDS,
    ) -> None:
        super().__init__(  # pyright: ignore[reportUnknownMemberType] - its dict has no type arguments
            events, headers=headers, ping=ping, shutdown_grace_period=drain
        )
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events. A client that goes away, or a cancellation, closes the generator."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            with anyio.CancelScope(shield=True):
                await self._events.aclose()


class AnswerResponse(EventResponse):
    """A Starlette or FastAPI response that streams an answer as server-sent events.

    The name of each event is its `type` (`text.delta`, `thread.started`, ...), its data the JSON object that
    `event_fields` makes of it. The last is `answer.done`, or `error` with OpenAI's error object. A reader
    that goes away ends the answer with all its threads; one that reads slowly makes it wait.

        @app.post("/ask")
        async def ask(prompt: str) -> AnswerResponse:
            return AnswerResponse(client.stream(prompt))

    Args:
        answer: A stream that was not entered yet.
        text_only: Leave out everything but the visible text and the last event.
        ping: Seconds between comments that keep the connection alive; 0: none.
        drain: Seconds the stream may go on after the process was told to stop.
    """

    def __init__(
        self,
        answer: AnswerStream,
        *,
        text_only: bool = False,
        ping: float = 15.0,
        drain: float = DRAIN_SECONDS,
    ) -> None:
        super().__init__(_named_events(answer, text_only=text_only), ping=ping, drain=drain)


async def _named_events(answer: AnswerStream, *, text_only: bool) -> AsyncGenerator[ServerSentEvent, None]:
    try:
        async with answer:
            async for event in answer:
                if not text_only or isinstance(event, TextDelta | AnswerDone):
                    yield ServerSentEvent(json.dumps(event_fields(event)), event=event.type, sep="\n")
    except PastaError as error:
        yield ServerSentEvent(json.dumps(api_error(error).body), event="error", sep="\n")


async def stream_response(
    request: Request,
    chunks: AsyncGenerator[list[dict[str, Any]], None],
    headers: Mapping[str, str],
    settings: ServerSettings,
) -> EventResponse:
    """A stream in OpenAI's form, made once its first chunks are there: what fails before has a status.

    A client that goes away, or a cancellation, closes the generator.
    """
    try:
        first = await unless_gone(request, _next(chunks))
    except BaseException:
        await chunks.aclose()
        raise
    stream = _encoded(first, chunks, settings)
    return EventResponse(stream, headers=headers, ping=settings.ping_seconds, drain=settings.drain_seconds)


async def _next(chunks: AsyncGenerator[_T, None]) -> _T:
    return await anext(chunks)


async def _encoded(
    first: list[dict[str, Any]], chunks: AsyncGenerator[list[dict[str, Any]], None], settings: ServerSettings
) -> AsyncGenerator[bytes, None]:
    """A stream as bytes, its first chunks put back; an error that ends it is its last event."""
    async with aclosing(chunks):
        yield _data(first)
        try:
            async for more in chunks:
                yield _data(more)
            yield b"data: [DONE]\n\n"
        except Exception as error:
            yield _data([log_failure(error, text=settings.log_text).body])


def _data(chunks: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(b"data: %b\n\n" % to_json(chunk) for chunk in chunks)


async def unless_gone(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """Do some work for a request whose body was read, until its client disconnects.

    Raises:
        ApiError: The client has gone, and the work was cancelled. Nobody will read that.

    Cancelling it cancels the work and waits until it is over.
    """
    task, gone = asyncio.create_task(work), asyncio.create_task(_gone(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ApiError("the client has gone", status=499)
    finally:
        task.cancel()
        gone.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait((task, gone))


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def merged(answers: Sequence[AnswerStream]) -> AsyncGenerator[tuple[int, Event], None]:
    """The events of several answers as they come, each with its answer's place in the sequence.

    Raises what ends any of the answers. Closing it ends them all.
    """
    async with AsyncExitStack() as stack:
        for answer in answers:
            await stack.enter_async_context(answer)
        if len(answers) == 1:  # no tasks needed
            async for event in answers[0]:
                yield 0, event
            return
        async with aclosing(_interleaved(answers)) as events:
            async for item in events:
                yield item


async def _interleaved(answers: Sequence[AnswerStream]) -> AsyncGenerator[tuple[int, Event], None]:
    waiting = {asyncio.ensure_future(anext(answer)): index for index, answer in enumerate(answers)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                index = waiting.pop(task)
                try:
                    event = task.result()
                except StopAsyncIteration:
                    continue
                waiting[asyncio.ensure_future(anext(answers[index]))] = index
                yield index, event
    finally:
        for task in waiting:
            task.cancel()
        if waiting:
            await asyncio.wait(waiting)
