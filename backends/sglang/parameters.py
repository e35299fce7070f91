"""What a request becomes in SGLang's words, over HTTP and in-process alike."""

from __future__ import annotations

import itertools
import json
import pickle
import re
import uuid
from typing import TYPE_CHECKING, Any

from pasta_async.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pasta_async.protocol import DecodeRequest, ModelInfo

__all__ = ["FORCE", "checked_ids", "forcing", "request_ids", "sampling_params"]

MAX_STOPS = 32
MAX_STOP_PATTERN = 256
"""Stop patterns that SGLang takes, and characters of one."""


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


class _Force:
    """What unpickles on the server (sampling/custom_logit_processor.py) as the processor."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return eval, (_FORCE,)


FORCE = json.dumps({"callable": pickle.dumps(_Force()).hex()})
"""A request's `custom_logit_processor`; its `custom_params` then hold `forced`."""


def request_ids() -> Iterator[str]:
    """Names for requests, no two alike in the world.

    SGLang aborts every request whose id *begins* with the one named: ids of one length are no prefixes of
    each other.
    """
    process = uuid.uuid4().hex
    return (f"pasta-{process}-{number:012x}" for number in itertools.count())


def checked_ids(ids: Sequence[int], info: ModelInfo) -> list[int]:
    """The ids, if the server can take them: one outside the vocabulary kills it.

    Raises:
        InvalidRequestError: An id outside the vocabulary, or no ids.
    """
    bad = next((i for i in ids if not 0 <= i < info.vocab_size), None)
    if bad is not None:
        raise InvalidRequestError(
            f"token id {bad} is outside the vocabulary of {info.name} (0 to {info.vocab_size - 1})"
        )
    return list(ids)


def forcing(request: DecodeRequest, info: ModelInfo) -> dict[str, Any]:
    """The fields that dictate a request's tokens: none for a request that is free.

    The server has to allow them (`--enable-custom-logit-processor`), else it answers 400.

    Raises:
        InvalidRequestError: A token is outside the vocabulary.
    """
    if not request.forced:
        return {}
    checked_ids(request.forced, info)
    return {"custom_logit_processor": FORCE}


def sampling_params(request: DecodeRequest, info: ModelInfo) -> dict[str, Any]:
    """SGLang's sampling parameters for a request.

    Everything that a server could have another default for is spelled out.

    Raises:
        InvalidRequestError: The context leaves no room for a token.
    """
    room = info.context_length - len(request.ids)
    if not request.ids or room < 1:
        raise InvalidRequestError(
            f"a context of {len(request.ids)} tokens; {info.name} takes 1 to {info.context_length - 1}, "
            f"since prompt and answer share {info.context_length}"
        )
    sampling = request.sampling
    params: dict[str, Any] = {
        "max_new_tokens": min(request.max_tokens, room),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "ignore_eos": False,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "no_stop_trim": True,
    }
    if request.stop_ids:
        params["stop_token_ids"] = list(request.stop_ids)
    if patterns := _stop_patterns(request.stop_text):
        params["stop_regex"] = patterns
    if request.forced:
        params["custom_params"] = {"forced": list(request.forced)}
    if info.honours_seeds and request.seed is not None:
        params["sampling_seed"] = request.seed
    return params


def _stop_patterns(texts: Sequence[str]) -> list[str]:
    """Stop texts as patterns: behind a stop string SGLang cuts the text but not the ids, here neither."""
    patterns = [f"(?:{re.escape(text)})" for text in texts if text]
    return [pattern for pattern in patterns if len(pattern) <= MAX_STOP_PATTERN][:MAX_STOPS]
