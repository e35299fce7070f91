"""Answers as server-sent events, for this server and for one's own app."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from typing import Any, TypeVar

import anyio
from pydantic import TypeAdapter
from pydantic_core import to_json
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from pasta_async.errors import PastaError
from pasta_async.events import Event
from pasta_async.server.errors import ApiError, api_error, log_failure, stopping
from pasta_async.server.settings import ServerSettings
from pasta_async.streaming import AnswerStream

Chunks = AsyncGenerator[list[dict[str, Any]], None]

_T = TypeVar("_T")


def event_fields(event: Event) -> dict[str, Any]:
    """An event as a JSON object: its fields by their names, `type` among them.

    `pydantic.TypeAdapter(pasta_async.Event)` reads it again.
    """
    return _EVENTS.dump_python(event, mode="json")


_EVENTS: TypeAdapter[Event] = TypeAdapter(Event)


class _EventResponse(EventSourceResponse):
    """Server-sent events from a generator, which is closed whatever becomes of the response.

    `stopped` makes the last event of a stream that has to end because the server does.
    """

    def __init__(
        self,
        events: AsyncGenerator[Any, None],
        headers: Mapping[str, str],
        ping: float,
        drain: float,
        stopped: Callable[[], bytes],
    ) -> None:
        super().__init__(  # pyright: ignore[reportUnknownMemberType] - its dict has no type arguments
            events, headers=headers, ping=ping, shutdown_grace_period=drain
        )
        self._events, self._stopped = events, stopped

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events. A client that goes away, or a cancellation, closes the generator.

        A cancellation is how an ASGI server ends what is open when it stops. It ends here, since the client
        is told of it.
        """
        open_body = False

        async def watched(message: Message) -> None:
            nonlocal open_body
            open_body = message.get("more_body", True)
            await send(message)

        with suppress(asyncio.CancelledError):
            try:
                await super().__call__(scope, receive, watched)
            finally:
                with anyio.CancelScope(shield=True):
                    await self._events.aclose()
        if open_body and self.active:  # and the client is still there
            await send({"type": "http.response.body", "body": self._stopped()})


class AnswerResponse(_EventResponse):
    """A Starlette or FastAPI response that streams an answer as server-sent events.

    The name of each event is its `type` (`text.delta`, `thread.started`, ...), its data the JSON object that
    `event_fields` makes of it. The last is `answer.done`, or `error` with OpenAI's error object. A reader
    that goes away ends the answer with all its threads; one that reads slowly makes it wait.

        @app.post("/ask")
        async def ask(prompt: str) -> AnswerResponse:
            return AnswerResponse(client.stream(prompt))

    Args:
        answer: A stream that was not entered yet.
        ping: Seconds between comments that keep the connection alive; 0: none.
        drain: Seconds the stream may go on after the process was told to stop; then it ends with an `error`.
            Let it be fewer than your ASGI server waits before it cancels what is open.
    """

    def __init__(self, answer: AnswerStream, *, ping: float = 15.0, drain: float = 30.0) -> None:
        def stopped() -> bytes:
            partial = answer.partial
            return _sse("error", to_json(stopping(partial.text if partial else None).body)).encode()

        super().__init__(_named_events(answer), {}, ping, drain, stopped)


async def _named_events(answer: AnswerStream) -> AsyncGenerator[ServerSentEvent, None]:
    try:
        async with answer:
            async for event in answer:
                yield _sse(event.type, _EVENTS.dump_json(event))
    except PastaError as error:
        yield _sse("error", to_json(api_error(error).body))


def _sse(name: str, data: bytes) -> ServerSentEvent:
    return ServerSentEvent(data.decode(), event=name, sep="\n")


async def stream_response(
    request: Request, chunks: Chunks, headers: Mapping[str, str], settings: ServerSettings
) -> EventSourceResponse:
    """A stream in OpenAI's form, made once its first chunks are there: what fails before has a status.

    A client that goes away, or a cancellation, closes the generator.
    """
    try:
        first = await unless_gone(request, _next(chunks))
    except BaseException:
        await chunks.aclose()
        raise
    shown: list[str] = []
    return _EventResponse(
        _encoded(first, chunks, shown, log_text=settings.log_text),
        headers,
        settings.ping_seconds,
        settings.drain_seconds,
        lambda: _data([stopping("".join(shown)).body]),
    )


async def _next(chunks: AsyncGenerator[_T, None]) -> _T:
    return await anext(chunks)


async def _encoded(
    first: list[dict[str, Any]], chunks: Chunks, shown: list[str], *, log_text: bool
) -> AsyncGenerator[bytes, None]:
    """A stream as bytes, its first chunks put back; an error that ends it is its last event.

    The text of the first choice goes to `shown`.
    """
    async with aclosing(chunks):
        shown += _texts(first)
        yield _data(first)
        try:
            async for more in chunks:
                shown += _texts(more)
                yield _data(more)
            yield b"data: [DONE]\n\n"
        except Exception as error:
            yield _data([log_failure(error, text=log_text).body])


def _texts(chunks: Iterable[dict[str, Any]]) -> Iterator[str]:
    """What chunks add to the text of the first choice."""
    for chunk in chunks:
        match chunk:
            case {
                "choices": [{"index": 0, "delta": {"content": str(text)}} | {"index": 0, "text": str(text)}]
            }:
                yield text
            case _:
                pass


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
        raise ApiError("the client has gone", 499)
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
    waiting: dict[asyncio.Future[Event], int] = {}
    async with AsyncExitStack() as stack:
        for answer in answers:
            await stack.enter_async_context(answer)
        if len(answers) == 1:  # no tasks needed
            async for event in answers[0]:
                yield 0, event
            return
        try:
            waiting |= {asyncio.ensure_future(anext(each)): index for index, each in enumerate(answers)}
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
            await asyncio.gather(*waiting, return_exceptions=True)  # some may have failed at the same time
