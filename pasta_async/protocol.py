"""The protocol between the interpreter and a backend: token ids in, token ids out.

Text is made in the client, by the model's `Tokenizer`. Only ids are sent, because a fork must begin with the
same tokens as its parent, or the prefix cache misses.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

from pasta_async.engine_load import EngineLoad
from pasta_async.grammar import Grammar, GrammarKind
from pasta_async.options import Sampling
from pasta_async.tag_tokens import TagGrammar, TagIds

if TYPE_CHECKING:
    from pasta_async.tokenizer import Tokenizer


Message = Mapping[str, Any]
"""A chat message: ``{"role": ..., "content": ...}``, both text; a content of several text parts is joined.
Further fields (``name``, ``reasoning_content``, ``tool_calls``, ...) are left to the chat template."""


@dataclass(frozen=True, slots=True)
class Model:
    """A backend's model, with its tokenizer."""

    name: str
    tokenizer: Tokenizer
    context_length: int
    """Prompt and output tokens together."""
    vocab_size: int
    """Number of ids: an id at or above this is refused before it is sent."""
    honours_seeds: bool
    grammars: frozenset[GrammarKind] = frozenset()
    """Kinds of grammars that its requests may have."""
    takes_min_p: bool = True
    """False if a request with `min_p` would do harm."""
    schema_refusal: Callable[[Mapping[str, Any]], str | None] | None = None
    """The reason why the engine refuses a JSON schema that could be kept; None if it takes it."""
    notes: tuple[str, ...] = ()
    """Remarks for the `notes` of its answers."""

    @property
    def end_ids(self) -> tuple[int, ...]:
        """End-of-text ids; generating one ends the thread. They have no text."""
        return self.tokenizer.end_ids

    @property
    def tags(self) -> TagIds | None:
        """Ids of the tag tokens; None for a model that was not trained to annotate."""
        return self.tokenizer.tags


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """A request to decode one thread, or one stretch of the main thread, from token ids."""

    answer: str
    """Id of the answer: all its requests should reach the same prefix cache."""
    thread: int
    """0 is the main thread, k the k-th promise, or the k-th thread of a plan, which has no main thread."""
    ids: tuple[int, ...]
    """The whole context, of ids below `Model.vocab_size`."""
    max_tokens: int
    """At least 1, and with the context at most `Model.context_length`."""
    sampling: Sampling
    """Temperature and the like. Its stop, seed and max_tokens are the answer's: use the fields here."""
    seed: int | None = None
    """The thread's own seed."""
    stop_ids: tuple[int, ...] = ()
    """Ids that end the request and are part of its output. End-of-text ids always end it."""
    banned_ids: tuple[int, ...] = ()
    """Ids that must not be chosen: their probability is set to 0 before top_p and the like apply. A hint: a
    backend that cannot do that ignores it, and the interpreter copes with such ids."""
    tag_grammar: TagGrammar | None = None
    """Rules for the tags that may come next, for a trained model's answer with tags. A hint as well."""
    grammar: Grammar | None = None
    """The form of the output, of a kind in `Model.grammars`. The request ends when no token may follow."""
    headers: Mapping[str, str] | None = None
    """Headers that an observer wants sent along, a trace context for instance; for backends over HTTP."""
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields that only some backends know, like `extra_body` of the OpenAI client. Servers get them in the
    request's body (a mapping is merged into the field of that name). The embedded engine knows
    `logits_processor`: called before each choice with the ids decoded so far and the logits, a float32 array
    `[vocab]` that may be changed in place, it returns the logits to choose by; one that raises ends its own
    request. Others ignore all of them."""


RequestEnd = Literal["stop", "length"]
"""The end of a request by itself: a stop id, end-of-text or the end of its grammar, or `max_tokens`."""


class Piece(NamedTuple):
    """Newly decoded tokens, as many as came at once."""

    ids: tuple[int, ...]
    """Their ids, with those of tags, stop ids and end-of-text."""
    finish_reason: RequestEnd | None = None
    """Set on the last piece of a request (which may hold no ids), and only there."""
    cached_tokens: int | None = None
    """Tokens of the prompt whose KV came from the prefix cache; at the latest on the last piece."""


@runtime_checkable
class Backend(Protocol):
    """A source of tokens. Every coroutine may be cancelled at any await."""

    async def connect(self) -> Model:
        """Load or reach the model, once; later calls, and calls that come meanwhile, return the same.

        Raises:
            BackendError: It cannot be used; the message says what to do.
        """
        ...

    def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        """Decode; the last piece has `finish_reason` set.

        Closing the generator early, or cancelling a task that iterates it, aborts the request: when
        `aclose()` returns nothing of it is left decoding.
        """
        ...

    async def load(self) -> EngineLoad | None:
        """Read the engine's load; None if it does not report one: then the client counts its own requests.

        The client calls this when an answer starts and at each promise, so a backend should ask its server a
        few times a second at most.

        Raises:
            BackendError: The load could not be read. That ends no answer.

        Cancelling it leaves nothing behind.
        """
        ...

    async def aclose(self) -> None:
        """Release everything; open requests end."""
        ...
