"""Forced decoding: given answers, written out by a real engine token by token.

The engine computes every step, and its KV is that of the given document; only the choice of the next token
is not its own. So speed can be measured on real answers with any weights: what takes time does not depend on
what the weights know.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pasta_async.backends import WrappingBackend
from pasta_async.backends.local import LocalBackend
from pasta_async.backends.sglang import SGLangBackend
from pasta_async.errors import InvalidRequestError, UnsupportedModelError
from pasta_async.lang import TAG_TOKENS, Document, Segment, views
from pasta_async.options import Limits, Sampling
from pasta_async.prompting import USER_PROBE
from pasta_async.protocol import Backend, DecodeRequest, Message, ModelInfo, Piece
from pasta_async.tag_tokens import TagIds

if TYPE_CHECKING:
    import torch

Ids = tuple[int, ...]
_EncodedViews = dict[int, list[tuple[Ids, Ids]]]

_PLAIN = -1

FORCED_LIMITS = Limits(chunk_tokens=2**20, max_threads=256, client_threads=4096)
FORCED_SAMPLING = Sampling(max_tokens=2**40)
"""What clients of a `ForcedBackend` need: the document ends a chunk and the answer, no limit does."""


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

Which one is next is told by the request's KV slots (`alloc_for_decode` in mem_cache/allocation.py), since
with overlapped scheduling `output_ids` lags a step behind. An expression, for it travels in a pickle: as
source it needs neither this package nor the same Python on the server.
"""


class _ForceOnServer:
    """What unpickles on the server (sampling/custom_logit_processor.py) as the processor."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return eval, (_FORCE,)


FORCE = json.dumps({"callable": pickle.dumps(_ForceOnServer()).hex()})
"""The `custom_logit_processor` of a request to SGLang; its `custom_params` then hold `forced`, the tokens.

The server has to allow it (`--enable-custom-logit-processor`), else it answers 400.
"""


def force(backend: Backend, request: DecodeRequest, tokens: Sequence[int]) -> DecodeRequest:
    """The request with its tokens given; behind the last one the engine chooses by itself.

    The backend is the embedded engine, SGLang, or a simulated engine.
    """

    def raise_next(generated: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        if len(generated) < len(tokens):
            logits[tokens[len(generated)]] = 1e6
        return logits

    inner = unwrapped(backend)
    if isinstance(inner, LocalBackend):
        extra = {"logits_processor": raise_next}
    elif isinstance(inner, SGLangBackend):
        params = {"custom_params": {"forced": list(tokens)}}
        extra = {"custom_logit_processor": FORCE, "sampling_params": params}
    else:
        extra = {"forced": tuple(tokens)}
    return replace(request, extra={**request.extra, **extra})


def unwrapped(backend: Backend) -> Backend:
    """What is inside of all wrapping backends."""
    while isinstance(backend, WrappingBackend):
        backend = backend.inner
    return backend


class ForcedBackend(WrappingBackend):
    """Another backend whose answers are given documents, one for each prompt.

    Each request is matched with the document's views (`pasta_async.lang.views`): its context has to be that
    of its thread there, token by token, and the rest of the view is what the engine is made to write. An
    answer without tags (`baseline=True`) gets the visible text. Documents are by prompt: the text of the last
    message. The inner backend (see `force`; SGLang started with `--enable-custom-logit-processor`) stays open
    when this one is closed.

    Raises:
        InvalidRequestError: A document is not complete.
    """

    def __init__(self, backend: Backend, documents: Mapping[str, Document]) -> None:
        for prompt, document in documents.items():
            if any(promise.chunk is None for promise in document.promises):
                raise InvalidRequestError(f"the answer to {prompt!r:.80} has a promise without its chunk")
        super().__init__(backend)
        self._documents = documents
        self._encoded: dict[str, _EncodedViews] = {}  # by prompt, as text
        self._prompts: dict[Ids, _EncodedViews] = {}
        self._chats: dict[tuple[str, bool], list[int]] = {}  # prompts that are encoded, plain or not
        self._answers: dict[str, Ids] = {}  # the prompt of each answer
        self._sync = -1  # the id of `<sync/>`

    async def connect(self) -> ModelInfo:
        """Reach or load the inner backend and encode the documents, so that no answer has to wait for that.

        Cancelling it leaves the inner backend as it says there.

        Raises:
            UnsupportedModelError: The tags are not in its model's vocabulary, so no engine could write them.
        """
        info = await self.inner.connect()
        self._sync = tags_of(info).sync
        for prompt, document in self._documents.items():
            if prompt not in self._encoded:
                self._encoded[prompt] = await _encode(self.inner, info, document)
        return info

    async def encode_chat(self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]) -> list[int]:
        """As the inner backend does, cancellation included; a prompt that was prepared is encoded already.

        Raises:
            InvalidRequestError: There is no document for this prompt.
        """
        prompt = messages[-1]["content"]
        if ids := self._chats.pop((prompt, template_kwargs.get("pasta") is False), None):
            return ids
        ids = await self.inner.encode_chat(messages, template_kwargs)
        if prompt == USER_PROBE:  # by which a client looks into the chat template
            return ids
        if prompt not in self._encoded:
            raise InvalidRequestError(f"there is no document to force for the prompt {prompt!r:.80}")
        self._prompts[tuple(ids)] = self._encoded[prompt]
        return ids

    async def prepare(self, prompt: str, known: str, *, plain: bool) -> list[int]:
        """Encode a prompt before it is asked, with or without tags; its answer is a known prompt's document.

        Cancelling it is safe.
        """
        self._encoded[prompt] = self._encoded[known]
        form = {"pasta": False} if plain else {}
        ids = await self.encode_chat([{"role": "user", "content": prompt}], form)
        self._chats[prompt, plain] = ids
        return ids

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        """Decode what the document says here; closing it early aborts the request, as in the inner backend.

        Raises:
            InvalidRequestError: The context is not that of the document.
        """
        forced = self._next(request)
        # one more than needed: an engine may look at the limit before it looks at the stop token
        limit = min(request.max_tokens, len(forced) + 1)
        request = force(self.inner, replace(request, max_tokens=limit), forced)
        async with aclosing(self.inner.decode(request)) as pieces:
            async for piece in pieces:
                yield piece

    async def aclose(self) -> None:
        """Leave the inner backend open. Never waits."""

    def _next(self, request: DecodeRequest) -> Ids:
        """What the document has behind this context."""
        prompt = self._answers.setdefault(request.answer, request.ids)
        if prompt not in self._prompts:
            raise InvalidRequestError("a forced answer begins with a prompt that went through encode_chat")
        written = request.ids[len(prompt) :]
        plain = request.thread == 0 and self._sync not in request.stop_ids  # nobody reads tags: the baseline
        found = self._prompts[prompt].get(_PLAIN if plain else request.thread, [])
        for context, target in reversed(found):  # the latest that fits: an earlier one may be its beginning
            begun = written[len(context) :]
            if written[: len(context)] == context and target[: len(begun)] == begun != target:
                return target[len(begun) :]
        raise InvalidRequestError(
            f"thread {request.thread} has {len(written)} tokens in its context that are not the document's: "
            "give the client FORCED_LIMITS and FORCED_SAMPLING"
        )


async def _encode(backend: Backend, info: ModelInfo, document: Document) -> _EncodedViews:
    """Context and target of each thread's views, and the visible text as if a thread `_PLAIN` wrote it."""
    tags, end = tags_of(info), info.end_ids[:1]
    encoded: dict[Segment, Ids] = {}
    found: _EncodedViews = {_PLAIN: [((), (*await backend.encode(document.text), *end))]}

    async def ids(segments: Sequence[Segment]) -> Ids:
        for segment in segments:
            if segment not in encoded:
                encoded[segment] = await encode_segments(backend, tags, [segment])
        return tuple(token for segment in segments for token in encoded[segment])

    for view in views(document):
        target = await ids(view.target) + (end if view.ends_answer else ())
        found.setdefault(view.thread, []).append((await ids(view.context), target))
    return found


def tags_of(info: ModelInfo) -> TagIds:
    """The ids of a model's tags.

    Raises:
        UnsupportedModelError: They, or an end-of-text token, are not in its vocabulary.
    """
    if info.tags is None or not info.end_ids:
        raise UnsupportedModelError(
            f"{info.name} lacks the tag tokens or an end-of-text token, so documents cannot be forced on it: "
            "take a model folder whose tokenizer has them; python -m pasta_async.evals.random_model makes one"
        )
    return info.tags


async def encode_segments(backend: Backend, tags: TagIds, segments: Sequence[Segment]) -> Ids:
    """Ids of segments: one for a tag, each run of text encoded alone. Cancelling it is safe."""
    ids = list[int]()
    for segment in segments:
        if segment.is_tag:
            ids.append(tags[TAG_TOKENS.index(segment.text)])
        else:
            ids += await backend.encode(segment.text)
    return tuple(ids)
