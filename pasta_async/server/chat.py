"""`POST /v1/chat/completions`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pasta_async.server.answering import Answering, Shape
from pasta_async.server.asking import check, messages_of, questions
from pasta_async.server.body import read_body
from pasta_async.server.passing import pass_through
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
    from pasta_async.server.replies import Mode, PastaReply, UsageReply

__all__ = ["chat_completions"]


async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    service = service_of(request)
    asked = await read_body(request, ChatRequest, service.settings)
    if asked.max_tokens and asked.max_completion_tokens:
        raise Problem("max_tokens and max_completion_tokens exclude each other", param="max_tokens")
    check(asked, service.info, service.settings)
    if asked.engine_only:
        return await pass_through(request, service, asked)
    question = {"prompt": messages_of(asked.messages), "chat_template_kwargs": asked.chat_template_kwargs}
    asking = [{**each, **question} for each in questions(asked, service)]
    return await Answering(service, asked, asking, _mode(asked), _ChatShape("chatcmpl", asked.model)).respond(
        request
    )


def _mode(asked: ChatRequest) -> Mode:
    if asked.pasta.baseline:
        return "baseline"
    return "parallel" if asked.pasta.parallel else "sequential"


class _ChatShape(Shape):
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
        return ChatCompletion(**self.envelope, choices=choices, usage=usage, pasta=pasta)

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
        return ChatChunk(**self.envelope, choices=[*choices], usage=usage, pasta=pasta)
