"""`POST /v1/chat/completions`."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from pasta_async.server.answering import Answering, Shape
from pasta_async.server.asking import (
    answer_limits,
    check,
    messages_of,
    mode_of,
    refuse_engine_only,
    sampling_of,
)
from pasta_async.server.body import read_body
from pasta_async.server.problems import Problem
from pasta_async.server.replies import (
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatDelta,
    ChatMessageReply,
    ChunkChoice,
    finish_reason,
)
from pasta_async.server.schema import ChatRequest
from pasta_async.server.service import service_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from pasta_async.results import Generation
    from pasta_async.server.replies import PastaReply, UsageReply

__all__ = ["chat_completions"]


async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    service = service_of(request)
    asked = await read_body(request, ChatRequest, service.settings)
    check(asked, service.info, service.settings)
    refuse_engine_only(asked)
    if asked.max_tokens and asked.max_completion_tokens:
        raise Problem("max_tokens and max_completion_tokens exclude each other", param="max_tokens")
    max_tokens = asked.max_completion_tokens or asked.max_tokens
    question = {
        "prompt": messages_of(asked),
        "limits": answer_limits(asked.pasta.limits, service.limits),
        "prompted": asked.pasta.prompted,
        "baseline": asked.pasta.baseline,
        "parallel": asked.pasta.parallel,
        "fork": asked.pasta.fork,
        "chat_template_kwargs": asked.chat_template_kwargs,
    }
    questions = [
        {**question, "sampling": sampling_of(asked, service.settings, max_tokens=max_tokens, index=index)}
        for index in range(asked.n or 1)
    ]
    shape = _ChatShape(asked.model)
    answering = Answering(service, asked, questions, prompts=1, mode=mode_of(asked), shape=shape)
    return await answering.respond(request)


class _ChatShape(Shape):
    def __init__(self, model: str) -> None:
        self._id, self._model = f"chatcmpl-{uuid4().hex}", model

    def reply(
        self, generations: Sequence[Generation], usage: UsageReply, pasta: PastaReply
    ) -> ChatCompletion:
        choices = [
            ChatChoice(
                index=index,
                message=ChatMessageReply(content=generation.text),
                finish_reason=finish_reason(generation),
            )
            for index, generation in enumerate(generations)
        ]
        return ChatCompletion(id=self._id, model=self._model, choices=choices, usage=usage, pasta=pasta)

    def opening(self, index: int) -> ChatChunk:
        return self._chunk(ChunkChoice(index=index, delta=ChatDelta(role="assistant", content="")))

    def delta(self, index: int, text: str) -> ChatChunk:
        return self._chunk(ChunkChoice(index=index, delta=ChatDelta(content=text)))

    def closing(self, index: int, generation: Generation, pasta: PastaReply) -> ChatChunk:
        choice = ChunkChoice(index=index, delta=ChatDelta(), finish_reason=finish_reason(generation))
        return self._chunk(choice, pasta=pasta)

    def bare(self, *, usage: UsageReply | None = None, pasta: PastaReply | None = None) -> ChatChunk:
        return self._chunk(usage=usage, pasta=pasta)

    def _chunk(
        self, *choices: ChunkChoice, usage: UsageReply | None = None, pasta: PastaReply | None = None
    ) -> ChatChunk:
        return ChatChunk(id=self._id, model=self._model, choices=[*choices], usage=usage, pasta=pasta)
