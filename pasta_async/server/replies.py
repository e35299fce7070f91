"""What OpenAI's API answers, made from what the library returns."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from pasta_async.events import AnswerDone, ReasoningDelta, TextDelta
from pasta_async.server.requests import ChatRequest
from pasta_async.server.streaming import event_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pasta_async.events import Event
    from pasta_async.results import Generation
    from pasta_async.server.requests import GenerateRequest

    Json = dict[str, Any]

__all__ = ["Mode", "Replies"]

Mode = Literal["parallel", "sequential", "baseline", "passed-through"]
"""How an answer was decoded; also the header `x-pasta-mode`."""


class Replies:
    """The reply of one request, whole or as the chunks of a stream.

    Args:
        request: What was asked, of either endpoint.
        mode: How its answers are decoded.
    """

    def __init__(self, request: GenerateRequest, mode: Mode) -> None:
        self._request = request
        self._chat = isinstance(request, ChatRequest)
        self.mode: Mode = mode
        self._envelope: Json = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{uuid4().hex}",
            "created": int(time.time()),
            "model": request.model,
            "system_fingerprint": None,
        }

    def whole(self, generations: Sequence[Generation]) -> Json:
        """The reply of a request that does not stream."""
        choices = [self._choice(index, generation) for index, generation in enumerate(generations)]
        return {
            **self._envelope,
            "object": "chat.completion" if self._chat else "text_completion",
            "choices": choices,
            "usage": self.usage(generations),
            "pasta": self._pasta(enumerate(generations)),
        }

    def first(self, index: int) -> list[Json]:
        """What a choice begins with in a stream, before its first text."""
        return [self._chunk(self._delta(index, role="assistant", content=""))] if self._chat else []

    def event(self, index: int, event: Event) -> Iterator[Json]:
        """The chunks for one event of a choice."""
        if self._request.pasta.events and not isinstance(event, AnswerDone):
            pasta: Json = {"mode": self.mode, "choices": [], "event": event_fields(event), "index": index}
            yield self._chunk(pasta=pasta)
        if isinstance(event, TextDelta):
            yield self._chunk(self._delta(index, content=event.delta))
        elif isinstance(event, ReasoningDelta) and self._chat:
            yield self._chunk(self._delta(index, reasoning_content=event.delta))
        elif isinstance(event, AnswerDone):
            last = self._delta(index, finish_reason=_finish_reason(event.generation))
            yield self._chunk(last, pasta=self._pasta([(index, event.generation)]))

    def last(self, generations: Sequence[Generation]) -> list[Json]:
        """What a stream ends with, once all choices are done."""
        options = self._request.stream_options
        if options and options.include_usage:
            return [self._chunk(usage=self.usage(generations))]
        return []

    def usage(self, generations: Sequence[Generation]) -> Json:
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

    def _choice(self, index: int, generation: Generation) -> Json:
        choice: Json = {
            "index": index,
            "logprobs": None,
            "finish_reason": _finish_reason(generation),
        }
        if not self._chat:
            return {**choice, "text": generation.text}
        message: Json = {"role": "assistant", "content": generation.text, "refusal": None}
        if generation.reasoning:
            message["reasoning_content"] = generation.reasoning
        return {**choice, "message": message}

    def _delta(self, index: int, *, finish_reason: str | None = None, **delta: str) -> Json:
        choice = {"index": index, "logprobs": None, "finish_reason": finish_reason}
        if self._chat:
            return {**choice, "delta": delta}
        return {**choice, "text": delta.get("content", "")}

    def _chunk(self, *choices: Json, **more: Any) -> Json:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return {**self._envelope, "object": kind, "choices": choices, **more}

    def _pasta(self, choices: Iterable[tuple[int, Generation]]) -> Json:
        """The field `pasta`: for each choice its summary, or where the request asks for it its record."""
        describe = _record if self._request.pasta.record else _summary
        described = [{"index": index, **describe(generation)} for index, generation in choices]
        return {"mode": self.mode, "choices": described}


def _record(generation: Generation) -> Json:
    return generation.model_dump(mode="json")


def _summary(generation: Generation) -> Json:
    return {
        "threads": len(generation.threads),
        "critical_path": generation.critical_path,
        "text_speedup": generation.text_speedup,
        "elapsed": generation.elapsed,
        "notes": generation.notes,
    }


def _finish_reason(generation: Generation) -> str:
    """Why an answer ended, in OpenAI's words."""
    return "length" if generation.finish_reason == "length" else "stop"


def _cached_tokens(generation: Generation) -> int:
    """Of the prompt's tokens, those whose KV was in the prefix cache when the main thread began."""
    requests = generation.threads[0].requests
    return (requests[0].cached_tokens or 0) if requests else 0
