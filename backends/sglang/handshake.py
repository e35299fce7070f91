"""What must be known of an SGLang server before the first request, and what is wrong with it.

SGLang tells neither the size of its vocabulary nor its end-of-text ids. Both are learned by asking: a logit
bias on an id beyond the vocabulary is refused with its size, and a biased end-of-text id ends a request.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import httpx

from pasta_async.errors import (
    BackendConnectError,
    BackendProtocolError,
    BackendStatusError,
    UnsupportedModelError,
)

if TYPE_CHECKING:
    from pasta_async.backends.sglang.encoding import Tokenizer
    from pasta_async.backends.sglang.transport import Server

__all__ = ["MINIMUM_VERSION", "ServerFacts", "end_ids", "server_facts", "vocab_size"]

MINIMUM_VERSION = "0.5.23"
"""The oldest SGLang this was tested with. Some older ones decode on when their client has gone."""

_FAR_ID = 2**31 - 1
_VOCABULARY = re.compile(r"\[0, (\d+)\]")
_KNOWN_ENDS = (
    "</s>", "<|endoftext|>", "<|im_end|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|end|>",
    "<|return|>", "<eos>", "<end_of_turn>", "<turn|>", "<|user|>", "<|observation|>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)  # fmt: skip
"""Usual end-of-text tokens, beside those of the chat template."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server tells of itself."""

    version: str
    name: str
    context_length: int
    incremental: bool | None
    """Whether streams hold only what is new; None if it does not say."""
    dp_size: int
    honours_seeds: bool
    has_tokenizer: bool


async def server_facts(server: Server) -> ServerFacts:
    """Ask the server what it is.

    Raises:
        BackendConnectError: Nothing listens, or it is no SGLang server, or too old a one.
        UnsupportedModelError: The model does not generate text.
    """
    info = await _about(server)
    version = info.get("version")
    if not isinstance(version, str):
        raise _not_sglang(server, "its /server_info names no version")
    if _parts(version) < _parts(MINIMUM_VERSION):
        raise _final(
            BackendConnectError(
                f"{server.url} runs SGLang {version}; pasta_async needs {MINIMUM_VERSION} or newer "
                "(pip install -U sglang)"
            )
        )
    model = await server.get("/model_info")
    if not model.get("is_generation", True):
        raise UnsupportedModelError(
            f"{server.url} serves {model.get('model_path')!r}, which does not generate text"
        )
    return ServerFacts(
        version=version,
        name=str(model.get("served_model_name") or model.get("model_path") or "unknown"),
        context_length=await _context_length(server, info),
        incremental=_flag(info.get("incremental_streaming_output")),
        dp_size=_positive(info.get("dp_size"), 1),
        honours_seeds=bool(info.get("enable_deterministic_inference")),
        has_tokenizer=not info.get("skip_tokenizer_init"),
    )


async def _about(server: Server) -> dict[str, Any]:
    try:
        return await server.get("/server_info")
    except BackendStatusError as error:
        if error.status not in (404, 405):
            raise
    except BackendProtocolError as error:
        if isinstance(error.__cause__, httpx.RequestError):
            raise
        raise _not_sglang(server, str(error)) from error
    try:  # what older servers had; they are refused for their version
        return await server.get("/get_server_info")
    except (BackendStatusError, BackendProtocolError) as error:
        raise _not_sglang(server, "it has no /server_info") from error


def _not_sglang(server: Server, why: str) -> BackendConnectError:
    return _final(BackendConnectError(f"{server.url} is not an SGLang server: {why}. Is the URL right?"))


def _final(error: BackendConnectError) -> BackendConnectError:
    error.retryable = False
    return error


def _parts(version: str) -> tuple[int, ...]:
    """The numbers of a version: 0.5.23.post1 counts as 0.5.23, and so does its release candidate."""
    release = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, release[0].split("."))) if release else ()


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _positive(value: Any, default: int) -> int:
    return value if isinstance(value, int) and value > 0 else default


async def _context_length(server: Server, info: dict[str, Any]) -> int:
    models = (await server.get("/v1/models")).get("data")
    first = cast("list[dict[str, Any]]", models)[0] if isinstance(models, list) and models else {}
    length = _positive(first.get("max_model_len"), 0) or _positive(info.get("context_length"), 0)
    if not length:
        raise BackendProtocolError(f"{server.url} does not tell its context length in /v1/models")
    # The longest prompt it takes is a little shorter, or much so where memory is scarce.
    return min(length, _positive(info.get("max_req_input_len"), length))


async def vocab_size(server: Server) -> int:
    """Ids that the server's model knows.

    Raises:
        BackendProtocolError: The server does not tell.
    """
    params = {"max_new_tokens": 1, "logit_bias": {str(_FAR_ID): 0.0}}
    try:
        await server.post("/generate", {"input_ids": [0], "sampling_params": params})
    except BackendStatusError as error:
        if error.status == 400 and (size := _VOCABULARY.search(str(error))):
            return int(size[1]) + 1
        raise
    raise BackendProtocolError(
        f"{server.url} does not tell the size of its vocabulary, which no id may exceed (it would kill the "
        "server). Pass vocab_size=."
    )


async def end_ids(server: Server, tokenizer: Tokenizer) -> tuple[int, ...]:
    """End-of-text ids: of the special tokens that may be, those that end a request."""
    candidates = await _end_candidates(tokenizer)
    if not candidates:
        return ()
    greedy = {"temperature": 0.0, "max_new_tokens": 2}
    answers = await server.post(
        "/generate",
        {
            "input_ids": [[0]] * len(candidates),
            "sampling_params": [{**greedy, "logit_bias": {str(i): 1000.0}} for i in candidates],
        },
    )
    return tuple(i for i, answer in zip(candidates, _answers(answers), strict=True) if _ended_by(answer) == i)


async def _end_candidates(tokenizer: Tokenizer) -> list[int]:
    """Special tokens that are usual ends, or stand in the chat template."""
    found = {one[0] for one in await tokenizer.tokenize(_KNOWN_ENDS) if len(one) == 1}
    chat = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}]
    with suppress(BackendStatusError):  # no chat template, or one that refuses this
        found.update(await tokenizer.tokenize_chat(chat, {}))
    ids = [[i] for i in sorted(found)]
    bare = await tokenizer.detokenize(ids, skip_special=True)
    return [one[0] for one, text in zip(ids, bare, strict=True) if not text]


def _answers(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, list):
        return cast("list[dict[str, Any]]", value)
    raise BackendProtocolError(f"/generate answered a batch with {value!r:.200}")


def _ended_by(answer: dict[str, Any]) -> int | None:
    try:
        reason = answer["meta_info"]["finish_reason"]
        return reason["matched"] if reason["type"] == "stop" else None
    except (KeyError, TypeError) as error:
        raise BackendProtocolError(f"/generate answered {answer!r:.200}") from error
