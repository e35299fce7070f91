"""What OpenAI's API answers, as pydantic models, made from what the library returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasta_async.results import Generation

__all__ = [
    "ChatChoice",
    "ChatChunk",
    "ChatCompletion",
    "ChatDelta",
    "ChatMessageReply",
    "ChunkChoice",
    "Completion",
    "CompletionChoice",
    "FinishReason",
    "Mode",
    "PastaReply",
    "PromptDetails",
    "UsageReply",
    "finish_reason",
    "pasta_choice",
]

FinishReason = Literal["stop", "length"]

_T = TypeVar("_T")

Mode = Literal["parallel", "sequential", "baseline", "passed-through"]
"""How an answer was decoded; also the header `x-pasta-mode`."""


_Absent = Annotated[_T | None, Field(exclude_if=lambda value: value is None)]
"""Left out of the JSON where there is nothing to tell, as OpenAI does."""


class _Reply(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


class PromptDetails(_Reply):
    """More about the tokens of a prompt."""

    cached_tokens: int = 0
    """Of the prompt's tokens, those whose KV was in the prefix cache when the main thread began."""


class UsageReply(_Reply):
    """Tokens of a request, over all its choices. Tags count, since they were decoded."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails

    @classmethod
    def of(cls, generations: Sequence[Generation], *, prompts: int = 1) -> UsageReply:
        """The usage of answers, equally many for each prompt in turn; a prompt counts once."""
        firsts = generations[:: len(generations) // prompts]
        prompt = sum(generation.usage.prompt_tokens for generation in firsts)
        completion = sum(generation.usage.completion_tokens for generation in generations)
        return cls(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=PromptDetails(cached_tokens=sum(map(_cached, firsts))),
        )


def _cached(generation: Generation) -> int:
    requests = generation.threads[0].requests
    return (requests[0].cached_tokens or 0) if requests else 0


class PastaReply(_Reply):
    """The field `pasta` of a reply: how its answers came about."""

    mode: Mode
    because: tuple[str, ...] = ()
    """What in the request made it pass through to the engine."""
    choices: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    """For each choice its summary, or its whole record where the request asked for it."""
    event: _Absent[dict[str, Any]] = None
    """In a stream with `events`: what happened, to the choice `index`."""
    index: _Absent[int] = None


class ChatMessageReply(_Reply):
    """The message of a choice."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(_Reply):
    """One answer."""

    index: int
    message: ChatMessageReply
    logprobs: None = None
    finish_reason: FinishReason


class ChatDelta(_Reply):
    """What a chunk adds."""

    role: _Absent[Literal["assistant"]] = None
    content: _Absent[str] = None


class ChunkChoice(_Reply):
    """One answer's part of a chunk."""

    index: int
    delta: ChatDelta
    logprobs: None = None
    finish_reason: FinishReason | None = None


class CompletionChoice(_Reply):
    """One answer, or in a stream a part of it."""

    index: int
    text: str
    logprobs: None = None
    finish_reason: FinishReason | None = None


class _Envelope(_Reply):
    id: str
    created: int
    model: str
    usage: _Absent[UsageReply] = None
    system_fingerprint: None = None
    pasta: _Absent[PastaReply] = None


class ChatCompletion(_Envelope):
    """The reply of `/v1/chat/completions`."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]


class ChatChunk(_Envelope):
    """A chunk of its stream."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChunkChoice]


class Completion(_Envelope):
    """The reply of `/v1/completions`, and a chunk of its stream."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]


def finish_reason(generation: Generation) -> FinishReason:
    """Why an answer ended, in OpenAI's words."""
    return "length" if generation.finish_reason == "length" else "stop"


def pasta_choice(generation: Generation, index: int, *, record: bool) -> dict[str, Any]:
    """What the field `pasta` tells of a choice."""
    if record:
        return {"index": index, **generation.model_dump(mode="json")}
    return {
        "index": index,
        "threads": len(generation.threads),
        "critical_path": generation.critical_path,
        "text_speedup": generation.text_speedup,
        "elapsed": generation.elapsed,
        "notes": generation.notes,
    }
