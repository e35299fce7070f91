"""Answers a checked request: its choices decode side by side, streamed or at once."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from pasta_async.events import AnswerDone, TextDelta, ThreadDelta
from pasta_async.server.disconnect import unless_gone
from pasta_async.server.event_fields import event_fields
from pasta_async.server.problems import problem_of
from pasta_async.server.replies import PastaReply, UsageReply, pasta_choice
from pasta_async.server.streaming import EventResponse, merged

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Sequence

    from pydantic import BaseModel
    from starlette.requests import Request

    from pasta_async.events import Event
    from pasta_async.results import Generation
    from pasta_async.server.replies import Mode
    from pasta_async.server.schema import GenerateRequest
    from pasta_async.server.service import Service

__all__ = ["Answering", "Shape"]


class Shape(ABC):
    """The form that an endpoint gives its replies."""

    @abstractmethod
    def reply(self, generations: Sequence[Generation], usage: UsageReply, pasta: PastaReply) -> BaseModel:
        """The whole reply of a request that does not stream."""

    @abstractmethod
    def opening(self, index: int) -> BaseModel | None:
        """The first chunk of a choice, if it has one without text."""

    @abstractmethod
    def delta(self, index: int, text: str) -> BaseModel:
        """A chunk with more text of a choice."""

    @abstractmethod
    def closing(self, index: int, generation: Generation, pasta: PastaReply) -> BaseModel:
        """The last chunk of a choice."""

    @abstractmethod
    def bare(self, *, usage: UsageReply | None = None, pasta: PastaReply | None = None) -> BaseModel:
        """A chunk that belongs to no choice."""


class Answering:
    """Answers one request.

    Args:
        service: Of the app.
        asked: The request, checked.
        questions: For each choice the arguments of `Client.generate`.
        prompts: How many prompts these are; each has as many choices.
        mode: How they are decoded.
        shape: The form of the reply.
    """

    def __init__(
        self,
        service: Service,
        asked: GenerateRequest,
        questions: Sequence[dict[str, Any]],
        *,
        prompts: int,
        mode: Mode,
        shape: Shape,
    ) -> None:
        self._service, self._asked, self._questions = service, asked, questions
        self._prompts, self._shape = prompts, shape
        self._mode: Mode = mode

    async def respond(self, request: Request) -> Response:
        """The response; that of a stream is not made before its first text, so that errors have a status.

        A client that goes away, or a cancellation, ends every choice with all its threads.
        """
        headers = {"x-pasta-mode": self._mode}
        if not self._asked.stream:
            generations = await unless_gone(request, self._whole())
            usage = UsageReply.of(generations, prompts=self._prompts)
            reply = self._shape.reply(generations, usage, self._pasta(*enumerate(generations)))
            return Response(reply.model_dump_json(), media_type="application/json", headers=headers)
        settings, chunks = self._service.settings, self._chunks()
        try:
            first = await unless_gone(request, _next(chunks))
        except BaseException:
            await chunks.aclose()
            raise
        stream = _behind(first, chunks)
        return EventResponse(
            stream, headers=headers, ping=settings.ping_seconds, drain=settings.drain_seconds
        )

    async def _whole(self) -> list[Generation]:
        client = self._service.client
        async with self._service.admission.enter(len(self._questions)):
            if len(self._questions) == 1:
                return [await client.generate(**self._questions[0])]
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(client.generate(**each)) for each in self._questions]
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None  # the others were cancelled for it
            return [task.result() for task in tasks]

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        """The stream's chunks; the first item holds all up to the first text."""
        streams = [self._service.client.stream(**each) for each in self._questions]
        held = [chunk for index in range(len(streams)) if (chunk := self._shape.opening(index))]
        done: dict[int, Generation] = {}
        begun = False
        async with self._service.admission.enter(len(streams)), aclosing(merged(streams)) as events:
            async for index, event in events:
                if isinstance(event, AnswerDone):
                    done[index] = event.generation
                begun = begun or isinstance(event, TextDelta | ThreadDelta | AnswerDone)
                held += self._told(index, event)
                if begun and held:
                    yield b"".join(map(_sse, held))
                    held.clear()
        if (options := self._asked.stream_options) and options.include_usage:
            usage = UsageReply.of([done[index] for index in sorted(done)], prompts=self._prompts)
            yield _sse(self._shape.bare(usage=usage))
        yield b"data: [DONE]\n\n"

    def _told(self, index: int, event: Event) -> Generator[BaseModel]:
        """The chunks that tell of an event."""
        if self._asked.pasta.events and not isinstance(event, AnswerDone):
            pasta = PastaReply(mode=self._mode, event=event_fields(event), index=index)
            yield self._shape.bare(pasta=pasta)
        if isinstance(event, TextDelta):
            yield self._shape.delta(index, event.delta)
        elif isinstance(event, AnswerDone):
            yield self._shape.closing(index, event.generation, self._pasta((index, event.generation)))

    def _pasta(self, *choices: tuple[int, Generation]) -> PastaReply:
        record = self._asked.pasta.record
        told = [pasta_choice(generation, index, record=record) for index, generation in choices]
        return PastaReply(mode=self._mode, choices=told)


async def _next(chunks: AsyncGenerator[bytes, None]) -> bytes:
    return await anext(chunks)


async def _behind(first: bytes, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """A stream with its first chunk put back; an error that ends it is its last event."""
    async with aclosing(chunks):
        yield first
        try:
            async for chunk in chunks:
                yield chunk
        except Exception as error:
            yield b"data: %b\n\n" % json.dumps(problem_of(error).body).encode()


def _sse(chunk: BaseModel) -> bytes:
    return b"data: %b\n\n" % chunk.model_dump_json().encode()
