"""Forced decoding: given answers, written out by a real engine token by token.

The engine computes every step, and its KV cache is that of the given document; only the choice of the next
token is not its own. So speed can be measured on real answers with any weights: the time of a step does not
depend on what the weights know.
"""

from __future__ import annotations

import itertools
import json
import pickle
import unicodedata
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field

from pasta_async.backends import WrappingBackend
from pasta_async.backends.http.backend import ServerBackend
from pasta_async.backends.sglang import SGLangBackend
from pasta_async.errors import InvalidRequestError, UnsupportedModelError
from pasta_async.evals.answers import MeasureSettings, sample_of
from pasta_async.lang import Document, views
from pasta_async.options import Limits, Sampling
from pasta_async.protocol import Backend, DecodeRequest, Model, Piece
from pasta_async.tag_tokens import TagIds
from pasta_async.training.data.corpus import read_records

if TYPE_CHECKING:
    from pasta_async.backends.local.batch import Floats

Ids = tuple[int, ...]
_EncodedViews = dict[int, list[tuple[Ids, Ids]]]

_PLAIN = -1

FORCED_LIMITS = Limits(chunk_tokens=2**20, max_threads=256, client_threads=4096, timeout=None)
FORCED_SAMPLING = Sampling(max_tokens=2**40)
"""Options for clients of a `ForcedBackend`: the document ends chunks and the answer, and no limit does."""


class ForcedSettings(MeasureSettings):
    """Settings of a command that times an engine as it writes given answers."""

    documents: Path = Field(description="records (JSON lines) with prompts and written answers")

    def read(self) -> dict[str, Document]:
        """The documents, or a sample of them, by their prompt.

        Raises:
            InvalidRequestError: The file is unreadable or empty.
        """
        documents = {record.prompt: record.document for record in read_records(self.documents)}
        if not documents:
            raise InvalidRequestError(f"{self.documents} holds no record")
        return dict(sample_of([*documents.items()], self.sample))


def texts_of(documents: Mapping[str, Document]) -> list[str]:
    """The prompts and answers that tell a measurement from another one."""
    return [text for prompt, document in documents.items() for text in (prompt, document.format())]


_FORCE = """lambda: lambda logits, requests: (lambda tokens: logits.scatter_add_(
    1,
    logits.argmax(-1, keepdim=True).new_tensor([[max(token, 0)] for token in tokens]),
    logits.new_tensor([[1e6 if token >= 0 else 0.0] for token in tokens]),
))([
    (lambda forced, at: forced[at] if 0 <= at < len(forced) else -1)(
        request["forced"],
        getattr(request["__req__"], "kv", request["__req__"]).kv_allocated_len
        - len(request["__req__"].origin_input_ids),
    )
    for request in requests
])"""
"""SGLang's custom logit processor that raises one token above all others: the next of the request's `forced`.

The number of the request's KV slots tells which one is next (`alloc_for_decode` in mem_cache/allocation.py),
since with overlapped scheduling `output_ids` lags a step behind. It is an expression, as source, because it
travels in a pickle: so the server needs neither this package nor the same Python.
"""


class _ForceOnServer:
    """An object that unpickles on the server (sampling/custom_logit_processor.py) as the processor."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return eval, (_FORCE,)


FORCE = json.dumps({"callable": pickle.dumps(_ForceOnServer()).hex()})
"""The `custom_logit_processor` of a request to SGLang; its `custom_params` then hold `forced`, the tokens.

The server has to allow it (`--enable-custom-logit-processor`), else it answers 400.
"""


def force(backend: Backend, request: DecodeRequest, tokens: Sequence[int]) -> DecodeRequest:
    """The request with its tokens given; behind the last one the engine chooses by itself.

    That is by SGLang's custom logit processor, or by the embedded engine's `logits_processor`.
    """

    def raise_next(generated: Sequence[int], logits: Floats) -> Floats:
        if len(generated) < len(tokens):
            logits[tokens[len(generated)]] = 1e6
        return logits

    if isinstance(backend, SGLangBackend):
        params = {"custom_params": {"forced": list(tokens)}}
        extra: dict[str, Any] = {"custom_logit_processor": FORCE, "sampling_params": params}
    else:
        extra = {"logits_processor": raise_next}
    return replace(request, extra={**request.extra, **extra})


class _BegunAnswer(NamedTuple):
    """An answer whose first request has come."""

    prompt_tokens: int
    views: _EncodedViews
    is_plain: bool
    """True if tags do not end its first request. Later ones of main may run past syncs in any answer."""


class ForcedBackend(WrappingBackend):
    """Another backend whose answers are given documents, by the question in the prompt.

    Each request is matched with the document's views (`pasta_async.lang.views`): its context has to be that
    of its thread there, token by token, and the engine is made to write the rest of the view. An answer
    without tags (`baseline=True`) gets the visible text. The inner backend (see `force`) stays open when this
    one is closed.

    Attributes:
        model: The model of the inner backend, once it is connected.
        plans: The ids for each hole of a template under way, by its prompt; they replace a document.

    Raises:
        InvalidRequestError: A document is not complete.
    """

    model: Model

    def __init__(self, backend: Backend, documents: Mapping[str, Document]) -> None:
        for prompt, document in documents.items():
            if any(promise.chunk is None for promise in document.promises):
                raise InvalidRequestError(f"the answer to {prompt!r:.80} has a promise without its chunk")
        super().__init__(backend)
        self.plans: dict[Ids, Sequence[Ids]] = {}
        self._documents = documents
        self._views: dict[str, _EncodedViews] = {}  # by question
        self._answers: dict[str, _BegunAnswer] = {}  # by id

    async def connect(self) -> Model:
        """Reach or load the inner backend and encode the documents, so that no answer has to wait for that.

        Cancelling it leaves the inner backend as it says there.

        Raises:
            InvalidRequestError: The inner backend is another server than SGLang, or its context cannot hold a
                document.
            UnsupportedModelError: The tags, or an end-of-text, are not in its model's vocabulary.
        """
        if isinstance(self.inner, ServerBackend) and not isinstance(self.inner, SGLangBackend):
            raise InvalidRequestError(
                "this server cannot be forced to write given tokens: take SGLang or `local:`"
            )
        self.model = await self.inner.connect()
        if self.model.tags is None or not self.model.end_ids:
            raise UnsupportedModelError(
                f"{self.model.name} lacks the tag tokens or an end-of-text token: take a model that has them"
            )
        for prompt, document in self._documents.items():
            if prompt not in self._views:
                self._views[prompt] = self._encode_views(document)
            encoded = itertools.chain(*self._views[prompt].values())
            longest = max(len(context) + len(target) for context, target in encoded)
            length = len(self.encode_question(prompt)) + longest
            if length > self.model.context_length:
                raise InvalidRequestError(
                    f"the answer to {prompt!r:.80} has {length} tokens with its prompt, and the model's "
                    f"context holds {self.model.context_length}: leave it out"
                )
        return self.model

    @property
    def tags(self) -> TagIds:
        """Ids of the tags."""
        assert self.model.tags is not None
        return self.model.tags

    @property
    def end(self) -> Ids:
        """End-of-text."""
        return self.model.end_ids[:1]

    def encode(self, text: str) -> Ids:
        """Ids of a text as data."""
        return tuple(self.model.tokenizer.encode(text))

    def encode_question(self, prompt: str, *, plain: bool = True) -> Ids:
        """Ids of a user's message by the chat template; a plain one asks for an answer without tags."""
        form = {"pasta": False} if plain else {}
        return tuple(self.model.tokenizer.encode_chat([{"role": "user", "content": prompt}], form))

    def _encode_views(self, document: Document) -> _EncodedViews:
        """Context and target of each thread's views; the thread `_PLAIN` writes the visible text."""
        encode = self.model.tokenizer.encode_segments
        result: _EncodedViews = {_PLAIN: [((), self.encode(document.text) + self.end)]}
        for view in views(document):
            target = encode(view.target) + (self.end if view.ends_answer else ())
            result.setdefault(view.thread, []).append((encode(view.context), target))
        return result

    def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        """Decode the document's tokens; closing it early aborts the request, as in the inner backend.

        Raises:
            InvalidRequestError: The context is not that of the document.
        """
        plans = (holes for prompt, holes in self.plans.items() if request.ids[: len(prompt)] == prompt)
        holes = next(plans, None)
        tokens = holes[request.thread - 1] if holes else self._next(request)
        # One more than needed: an engine may check the limit before the stop token.
        limit = min(request.max_tokens, len(tokens) + 1)
        # The document decides about its tags, so neither the grammar nor a ban may put another token there.
        free = replace(request, max_tokens=limit, tag_grammar=None, banned_ids=())
        return self.inner.decode(force(self.inner, free, tokens))

    async def aclose(self) -> None:
        """Leave the inner backend open. Never waits."""

    def _next(self, request: DecodeRequest) -> Ids:
        """The document's tokens behind this context."""
        if request.answer not in self._answers:  # its first request is its prompt
            # Qwen's tokenizer composes characters, so both sides are compared composed.
            text = unicodedata.normalize("NFC", self.model.tokenizer.decode(request.ids))
            prompts = ((unicodedata.normalize("NFC", prompt.strip()), prompt) for prompt in self._views)
            candidates = (prompt for composed, prompt in prompts if composed in text)
            question = max(candidates, key=len, default=None)
            if question is None:
                raise InvalidRequestError(f"there is no document to force for the prompt {text!r:.200}")
            is_plain = self.tags.sync not in request.stop_ids
            self._answers[request.answer] = _BegunAnswer(len(request.ids), self._views[question], is_plain)
        answer = self._answers[request.answer]
        written = request.ids[answer.prompt_tokens :]
        thread = _PLAIN if answer.is_plain else request.thread
        # The latest view that fits: an earlier one may be its beginning.
        for context, target in reversed(answer.views.get(thread, [])):
            begun = written[len(context) :]
            fits = written[: len(context)] == context and target[: len(begun)] == begun
            if fits and begun != target:
                return target[len(begun) :]
        raise InvalidRequestError(
            f"thread {request.thread} has {len(written)} tokens in its context that are not the document's: "
            "give the client FORCED_LIMITS and FORCED_SAMPLING"
        )
