"""`POST /v1/completions`: a text, or token ids, continued without a chat template."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pasta_async.server.answering import Answering, Shape
from pasta_async.server.asking import check, questions
from pasta_async.server.body import read_body
from pasta_async.server.passing import pass_through
from pasta_async.server.problems import Problem
from pasta_async.server.replies import Completion, CompletionChoice, finish_reason
from pasta_async.server.schema import CompletionRequest
from pasta_async.server.service import service_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from pasta_async.results import Generation
    from pasta_async.server.replies import Mode, PastaReply, UsageReply
    from pasta_async.server.service import Service

__all__ = ["completions"]


async def completions(request: Request) -> Response:
    """Continue each prompt."""
    service = service_of(request)
    asked = await read_body(request, CompletionRequest, service.settings)
    if asked.best_of not in (None, asked.choices):
        raise Problem(
            "best_of is not supported: it must equal n", code="unsupported_parameter", param="best_of"
        )
    check(asked, service.info, service.settings)
    if asked.engine_only:
        return await pass_through(request, service, asked)
    ids = [await _ids(prompt, service) for prompt in asked.prompts for _ in range(asked.choices)]
    asking = [{**each, "prompt": prompt} for each, prompt in zip(questions(asked, service), ids, strict=True)]
    return await Answering(
        service, asked, asking, _mode(asked, service), _TextShape("cmpl", asked.model)
    ).respond(request)


async def _ids(prompt: str | list[int], service: Service) -> list[int]:
    ids = await service.client.backend.encode(prompt) if isinstance(prompt, str) else prompt
    if not ids:
        raise Problem("the prompt is empty", param="prompt")
    return ids


def _mode(asked: CompletionRequest, service: Service) -> Mode:
    """A model that must be told about tags is not told by a bare text."""
    if asked.pasta.baseline or (service.info.tags is None and not asked.pasta.prompted):
        return "baseline"
    return "parallel" if asked.pasta.parallel else "sequential"


class _TextShape(Shape):
    def reply(self, generations: Sequence[Generation], usage: UsageReply, pasta: PastaReply) -> Completion:
        choices = [
            CompletionChoice(index=index, text=generation.text, finish_reason=finish_reason(generation))
            for index, generation in enumerate(generations)
        ]
        return self._completion(*choices, usage=usage, pasta=pasta)

    def opening(self, index: int) -> None:
        return None

    def delta(self, index: int, text: str) -> Completion:
        return self._completion(CompletionChoice(index=index, text=text))

    def closing(self, index: int, generation: Generation, pasta: PastaReply) -> Completion:
        choice = CompletionChoice(index=index, text="", finish_reason=finish_reason(generation))
        return self._completion(choice, pasta=pasta)

    def bare(self, *, usage: UsageReply | None = None, pasta: PastaReply | None = None) -> Completion:
        return self._completion(usage=usage, pasta=pasta)

    def _completion(
        self, *choices: CompletionChoice, usage: UsageReply | None = None, pasta: PastaReply | None = None
    ) -> Completion:
        return Completion(**self.envelope, choices=[*choices], usage=usage, pasta=pasta)
