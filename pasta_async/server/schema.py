"""What OpenAI's API is asked, as pydantic models.

Fields are those of OpenAI's reference, and a few of SGLang's. `ENGINE_ONLY` names those that only an engine's
own endpoint can honour; a request that sets one is passed through to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

from pydantic import BaseModel, ConfigDict, Field

from pasta_async.interpreter import Fork  # noqa: TC001 - pydantic needs it at run time

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "ENGINE_ONLY",
    "ChatMessage",
    "ChatRequest",
    "CompletionRequest",
    "GenerateRequest",
    "PastaLimits",
    "PastaOptions",
    "StreamOptions",
]

_Stop = Annotated[str, Field(min_length=1)]
_Count = Annotated[int, Field(ge=1)]


class _Wire(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class PastaLimits(_Wire):
    """Limits of one answer (`pasta_async.Limits`); none may be above the server's own."""

    max_threads: _Count | None = None
    chunk_tokens: _Count | None = None
    timeout: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    retries: int | None = Field(default=None, ge=0)
    on_failure: Literal["fail", "sequence"] | None = None
    """What becomes of an answer one of whose threads fails."""


class PastaOptions(_Wire):
    """`extra_body={"pasta": {...}}`: what OpenAI's API has no words for."""

    parallel: bool = True
    """False: decode the same views one after another."""
    baseline: bool = False
    """Answer without any tag, for comparison."""
    prompted: bool | None = None
    """Whether the model is told about the tags; None: what it needs."""
    fork: Fork = "stream"
    limits: PastaLimits = PastaLimits()
    record: bool = False
    """Ask for the whole record: threads, timeline, written form."""
    events: bool = False
    """In a stream, ask for every event as it happens, in chunks without choices."""


class StreamOptions(_Wire):
    """Options of a stream."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class TextPart(_Wire):
    """Text in a message's content."""

    type: Literal["text"]
    text: str


class ForeignPart(BaseModel):
    """An image, a sound, a file, a refusal: for the engine's own endpoint."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow", frozen=True)
    type: str


class ChatMessage(_Wire):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[TextPart | ForeignPart] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    annotations: Any = None
    audio: Any = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    function_call: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """The text of the content, its parts joined."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content if isinstance(part, TextPart))
        return self.content or ""

    @property
    def foreign(self) -> bool:
        """Whether it is for the engine's own endpoint: calls and results of tools, images, sound."""
        parts = self.content if isinstance(self.content, list) else []
        calls = self.role in ("tool", "function") or self.tool_calls or self.function_call
        return bool(calls) or not all(isinstance(part, TextPart) for part in parts)


class GenerateRequest(_Wire):
    """What both endpoints take."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    max_tokens: _Count | None = None
    stop: _Stop | list[_Stop] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    user: str | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[str, float] | None = None

    top_k: int | None = None
    """SGLang's; -1 is all."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: float | None = None
    regex: str | None = None
    ebnf: str | None = None

    pasta: PastaOptions = PastaOptions()

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop texts."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def choices(self) -> int:
        """Answers for each prompt."""
        return self.n or 1

    @property
    def prompts(self) -> Sequence[Any]:
        """What is to be answered, each with as many choices."""
        raise NotImplementedError

    @property
    def token_limit(self) -> int | None:
        """Tokens that an answer may have."""
        return self.max_tokens

    @property
    def engine_only(self) -> tuple[str, ...]:
        """Fields that ask for what only the engine's own endpoint does."""
        given = (name for name in ENGINE_ONLY if hasattr(self, name))
        return tuple(name for name in given if getattr(self, name) not in ENGINE_ONLY[name])


class ChatRequest(GenerateRequest):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: _Count | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """SGLang's: for the model's chat template."""
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None

    modalities: list[Literal["text"]] | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: Literal[False] | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    @property
    def prompts(self) -> Sequence[list[ChatMessage]]:
        """The one conversation."""
        return [self.messages]

    @property
    def token_limit(self) -> int | None:
        """`max_completion_tokens`, or what it was called before."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def engine_only(self) -> tuple[str, ...]:
        """As for every request, and `messages` if one of them holds such things."""
        foreign = any(message.foreign for message in self.messages)
        return (*super().engine_only, *(["messages"] if foreign else []))


class CompletionRequest(GenerateRequest):
    """`POST /v1/completions`."""

    prompt: str | Annotated[list[str] | list[int] | list[list[int]], Field(min_length=1)]
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None

    @property
    def prompts(self) -> Sequence[str | list[int]]:
        """Texts, or lists of token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if all(isinstance(item, int) for item in self.prompt):
            return [cast("list[int]", self.prompt)]
        return cast("list[str] | list[list[int]]", self.prompt)

    @property
    def token_limit(self) -> int:
        """OpenAI's default for this endpoint is 16."""
        return self.max_tokens or 16


ENGINE_ONLY: dict[str, tuple[Any, ...]] = {
    "tools": (None, []),
    "tool_choice": (None, "auto", "none"),
    "parallel_tool_calls": (None, True, False),
    "response_format": (None, {"type": "text"}),
    "reasoning_effort": (None,),
    "logprobs": (None, False),
    "top_logprobs": (None,),
    "logit_bias": (None, {}),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "regex": (None,),
    "ebnf": (None,),
    "echo": (None, False),
    "suffix": (None, ""),
}
"""Fields that the interpreter cannot honour, with the values that ask for nothing."""
