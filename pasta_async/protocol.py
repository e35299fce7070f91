"""What the interpreter asks of a backend, and nothing more.

The interpreter owns this protocol; `pasta_async.backends` implements it. Tokens travel as ids from end to
end, because a fork must be a token prefix of its parent or the prefix cache misses.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

from pasta_async.load import EngineLoad
from pasta_async.options import Sampling
from pasta_async.results import FinishReason
from pasta_async.tag_tokens import TagGrammar, TagIds

Message = dict[str, Any]
"""A chat message: ``{"role": ..., "content": ...}``, both text. Further fields (``name``,
``reasoning_content``, ``tool_calls``, ...) and a content of several parts are left to the chat template."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a backend knows about its model."""

    name: str
    context_length: int
    """Prompt and output tokens together."""
    vocab_size: int
    """Ids at or above this are refused before they are sent."""
    end_ids: tuple[int, ...]
    """End-of-text ids; generating one ends the thread. Their text is empty."""
    tags: TagIds | None
    """Ids of the tag tokens; None for a model that was not trained to annotate."""
    honours_seeds: bool
    dtype: str | None = None
    """The number format that the engine computes in, where it is known."""
    notes: tuple[str, ...] = ()
    """What an answer's `notes` have to say of it."""


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """Decode one thread (or one stretch of the main thread) from token ids."""

    answer: str
    """Identifies the answer: all its requests should meet the same prefix cache."""
    thread: int
    """0 is the main thread, k the k-th promise."""
    ids: tuple[int, ...]
    """The whole context."""
    max_tokens: int
    sampling: Sampling
    """Temperature and the like. Its stop, seed and max_tokens belong to the answer: use the fields here."""
    seed: int | None = None
    """The thread's own seed."""
    stop_ids: tuple[int, ...] = ()
    """End after generating one of these, which is part of the output. End-of-text ids always end."""
    banned_ids: tuple[int, ...] = ()
    """Never to be chosen: their probability is 0 before anything else is cut from the distribution. A hint: a
    backend that cannot do that ignores it, and the interpreter reads what comes."""
    grammar: TagGrammar | None = None
    """Which tags may come next at each choice, for a trained model's answer with tags. A hint as well."""
    stream: bool = True
    """Whether somebody watches: if not, the output may come in one piece."""
    headers: Mapping[str, str] | None = None
    """What an observer wants sent along, a trace context for instance; a backend without HTTP takes what it
    knows of it."""
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields that only some backends know, like `extra_body` of the OpenAI client. SGLang gets them in the
    request's body (a mapping is merged into the field of that name). The embedded engine knows
    `logits_processor`: called before each choice with the ids decoded so far and the logits `[vocab]`
    (float32, may be changed in place), it returns the logits to choose by; one that raises ends its own
    request. Others ignore all of them."""


class Piece(NamedTuple):
    """Some newly decoded tokens.

    A piece with a tag id holds that id alone, with the tag's written form as its text. Text may lag behind
    the ids (an unfinished character), but is complete before a tag and at the end. End-of-text has no text.
    """

    ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None = None
    """Set on the last piece of a request (which may hold no ids), and only there."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """Tokens of the prompt whose KV came from the prefix cache; at the latest on the last piece."""


@runtime_checkable
class Backend(Protocol):
    """Where tokens come from. Every coroutine may be cancelled at any await."""

    async def connect(self) -> ModelInfo:
        """Load or reach the model, once; later calls return the same.

        Raises:
            BackendError: What is wrong, where, and what to do.
        """
        ...

    async def encode(self, text: str) -> list[int]:
        """Encode text as data: no special token, no tag id; decoding gives `text` back."""
        ...

    async def encode_chat(self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]) -> list[int]:
        """Encode messages by the model's chat template, up to where the answer begins.

        What stands in a message is data, as for `encode`. A model without a template takes one user message.
        """
        ...

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens kept, no spaces added between them."""
        ...

    def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        """Decode; the last piece has `finish_reason` set.

        Closing the generator early, or cancelling a task that iterates it, aborts the request: when
        `aclose()` returns nothing of it is left decoding.
        """
        ...

    async def aclose(self) -> None:
        """Release everything; open requests end."""
        ...


@runtime_checkable
class LoadReporting(Protocol):
    """A backend that knows how busy its engine is. Of others, the client counts its own requests."""

    async def load(self) -> EngineLoad | None:
        """How busy the engine is; None if it does not tell.

        It is asked when an answer starts, at each promise, and twice a second while threads wait for
        room, so a backend that asks a server does that a few times a second at most.

        Raises:
            BackendError: It could not be learned. That ends no answer; the load before it serves for seconds.

        Cancelling it leaves nothing behind.
        """
        ...
