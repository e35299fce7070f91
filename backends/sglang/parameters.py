"""A request in SGLang's form, over HTTP and in-process alike."""

from __future__ import annotations

import itertools
import re
import uuid
from typing import TYPE_CHECKING, Any

from pasta_async.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pasta_async.protocol import DecodeRequest, ModelInfo

__all__ = ["checked_ids", "request_ids", "sampling_params", "with_extra"]

MAX_STOPS = 32
MAX_STOP_PATTERN = 256
"""Stop patterns that SGLang takes, and characters of one."""


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
        InvalidRequestError: Something that is no integer, or outside the vocabulary.
    """
    numbers = set(map(type, ids)) <= {int}
    if not numbers or (ids and not 0 <= min(ids) <= max(ids) < info.vocab_size):
        bad = next(i for i in ids if type(i) is not int or not 0 <= i < info.vocab_size)
        raise InvalidRequestError(f"{bad!r} is no token id of {info.name} (0 to {info.vocab_size - 1})")
    return list(ids)


def with_extra(body: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """A request's body with the fields of `DecodeRequest.extra`; mappings (`sampling_params`) are merged."""
    for name, value in extra.items():
        mine = body.get(name)
        body[name] = {**mine, **value} if isinstance(mine, dict) else value
    return body


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
    # As patterns: behind a stop string SGLang cuts the text but not the ids, here neither.
    patterns = [f"(?:{re.escape(text)})" for text in request.stop_text if text]
    if patterns := [pattern for pattern in patterns if len(pattern) <= MAX_STOP_PATTERN]:
        params["stop_regex"] = patterns[:MAX_STOPS]
    if info.honours_seeds and request.seed is not None:
        params["sampling_seed"] = request.seed
    return params
