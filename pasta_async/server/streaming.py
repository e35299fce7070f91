"""Answers as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any, TypeVar

import anyio
from pydantic import TypeAdapter
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from pasta_async.events import Event
from pasta_async.plans import FillEvent
from pasta_async.server.errors import ApiError, log_failure, stopping
from pasta_async.server.settings import ServerSettings

_T = TypeVar("_T")


def event_fields(event: Event | FillEvent) -> dict[str, Any]:
    """An event of an answer, or of a plan, as a JSON object: its fields by their names, `type` among them.

    `pydantic.TypeAdapter(pasta_async.Event)` reads an answer's again.
    """
    return _EVENTS.dump_python(event, mode="json")


_EVENTS: TypeAdapter[Event | FillEvent] = TypeAdapter(Event | FillEvent)


class _EventResponse(StreamingResponse):
    """Server-sent events, until the client goes away. The generators are closed however the response ends.

    `last_words` returns the last event of a stream that ends because the server stops. `source` is the
    generator that `events` reads from. It is closed as well: `events` does not do it if it has not begun.
    """

    def __init__(
        self,
        request: Request,
        events: AsyncGenerator[bytes, None],
        headers: Mapping[str, str],
        last_words: Callable[[], bytes],
        source: AsyncGenerator[bytes, None],
    ) -> None:
        # nginx would hold the events back until its buffer is full.
        headers = {**headers, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(events, headers=headers, media_type="text/event-stream")
        self._request = request
        self._generators = (events, source)
        self._last_words = last_words

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events. A client that goes away, or a cancellation, closes the generators.

        An ASGI server that stops cancels open requests. Such a cancellation ends here: instead, the client
        gets the last words.
        """
        open_body = False  # the response has begun, and its body is not complete

        async def watched(message: Message) -> None:
            nonlocal open_body
            open_body = message.get("more_body", True)
            await send(message)

        try:
            await unless_gone(self._request, self.stream_response(watched))
        except ApiError:  # the client has gone
            pass
        except asyncio.CancelledError:
            if open_body:
                await send({"type": "http.response.body", "body": self._last_words()})
        finally:
            with anyio.CancelScope(shield=True):
                for generator in self._generators:
                    await generator.aclose()


def data_event(value: Any) -> bytes:
    """A value as an event of OpenAI's streams."""
    return b"data: %b\n\n" % to_json(value)


async def stream_response(
    request: Request,
    events: AsyncGenerator[bytes, None],
    headers: Mapping[str, str],
    settings: ServerSettings,
    partial: Callable[[], str | None],
) -> StreamingResponse:
    """A stream in OpenAI's form. It waits for the first event, so that an error before it has an HTTP status.

    A client that goes away, or a cancellation, closes the generator. `partial` returns the text so far, which
    clients get if an error or the end of the server breaks the stream off.
    """

    async def rest(first: bytes) -> AsyncGenerator[bytes, None]:
        try:
            yield first
            async for event in events:
                yield event
        except Exception as error:
            failure = log_failure(error, text=settings.log_text)
            if failure.partial is None:
                failure.partial = partial()
            yield data_event(failure.body)

    async def first_event() -> bytes:
        return await anext(events, b"")  # the reply of an engine's own endpoint may be empty

    try:
        first = await unless_gone(request, first_event())
    except BaseException:
        await events.aclose()
        raise
    return _EventResponse(
        request, rest(first), headers, lambda: data_event(stopping(partial()).body), source=events
    )


async def unless_gone(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
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
        with anyio.CancelScope(shield=True):
            await asyncio.wait((task, gone))


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def merged(
    answers: Sequence[AsyncGenerator[Event | FillEvent, None]],
) -> AsyncGenerator[tuple[int, Event | FillEvent], None]:
    """The events of several answers as they come, each with its answer's index in the sequence.

    Raises the error that ends any of the answers. Closing it ends them all.
    """
    waiting: dict[asyncio.Task[Event | FillEvent], int] = {}

    def wait_for_next(index: int) -> None:
        waiting[asyncio.create_task(anext(answers[index]))] = index

    async with AsyncExitStack() as stack:
        for answer in answers:
            await stack.enter_async_context(aclosing(answer))
        if len(answers) == 1:  # no tasks needed
            async for event in answers[0]:
                yield 0, event
            return
        # A task for each answer waits for its next event; another one follows before the event is passed on.
        try:
            for index in range(len(answers)):
                wait_for_next(index)
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    index = waiting.pop(task)
                    try:
                        event = task.result()
                    except StopAsyncIteration:
                        continue
                    wait_for_next(index)
                    yield index, event
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)  # several may have failed at the same time
