"""Answers a checked request: its choices decode side by side, streamed or at once."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from contextlib import aclosing
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from starlette.responses import Response

from pasta_async.events import AnswerDone, TextDelta, ThreadDelta
from pasta_async.server.disconnect import unless_gone
from pasta_async.server.event_fields import event_fields
from pasta_async.server.replies import PastaReply, UsageReply, pasta_choice
from pasta_async.server.streaming import merged, respond_with

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
    """The form that an endpoint gives its replies.

    Args:
        prefix: What ids begin with.
        model: The name that the model was asked by.
    """

    def __init__(self, prefix: str, model: str) -> None:
        self.envelope: dict[str, Any] = {
            "id": f"{prefix}-{uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }

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
        mode: How they are decoded.
        shape: The form of the reply.
    """

    def __init__(
        self,
        service: Service,
        asked: GenerateRequest,
        questions: Sequence[dict[str, Any]],
        mode: Mode,
        shape: Shape,
    ) -> None:
        self._service, self._asked, self._questions = service, asked, questions
        self._mode: Mode = mode
        self._shape = shape

    async def respond(self, request: Request) -> Response:
        """The response; that of a stream is not made before its first text, so that errors have a status.

        A client that goes away, or a cancellation, ends every choice with all its threads.
        """
        headers = {"x-pasta-mode": self._mode}
        if self._asked.stream:
            return await respond_with(request, self._chunks(), headers, self._service.settings)
        generations = await unless_gone(request, self._whole())
        reply = self._shape.reply(generations, self._usage(generations), self._pasta(*enumerate(generations)))
        return Response(reply.model_dump_json(), media_type="application/json", headers=headers)

    async def _whole(self) -> list[Generation]:
        client = self._service.client
        async with self._service.admission.enter(len(self._questions)):
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
            yield _sse(self._shape.bare(usage=self._usage([done[index] for index in sorted(done)])))
        yield b"data: [DONE]\n\n"

    def _told(self, index: int, event: Event) -> Generator[BaseModel]:
        """The chunks that tell of an event."""
        if self._asked.pasta.events and not isinstance(event, AnswerDone):
            yield self._shape.bare(pasta=PastaReply(mode=self._mode, event=event_fields(event), index=index))
        if isinstance(event, TextDelta):
            yield self._shape.delta(index, event.delta)
        elif isinstance(event, AnswerDone):
            yield self._shape.closing(index, event.generation, self._pasta((index, event.generation)))

    def _usage(self, generations: Sequence[Generation]) -> UsageReply:
        return UsageReply.of(generations, prompts=len(self._asked.prompts))

    def _pasta(self, *choices: tuple[int, Generation]) -> PastaReply:
        record = self._asked.pasta.record
        told = [pasta_choice(generation, index, record=record) for index, generation in choices]
        return PastaReply(mode=self._mode, choices=told)


def _sse(chunk: BaseModel) -> bytes:
    return b"data: %b\n\n" % chunk.model_dump_json().encode()
