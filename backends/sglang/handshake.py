"""What must be known of an SGLang server before the first request, and what is wrong with it.

SGLang tells neither the size of its vocabulary nor its end-of-text ids. Both are learned by asking: a logit
bias on an id beyond the vocabulary is refused with its size, and a biased end-of-text id ends a request.

A router (`sglang-router` 0.3.2, sgl-model-gateway) passes `/generate` and the OpenAI endpoints on to one of
its workers, and closes that request when its own connection is closed. It has no `/tokenize` of SGLang's
form, no `/abort_request` and no `/server_info`: for these its workers are asked, at the addresses it tells.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, RootModel

from pasta_async.backends.sglang.events import Finish, LocalReader, RemoteReader
from pasta_async.backends.sglang.replies import Listed, Named, Reply, Size, read
from pasta_async.backends.sglang.tokenizers import RemoteTokenizer
from pasta_async.backends.sglang.transport import Server
from pasta_async.errors import (
    BackendConnectError,
    BackendProtocolError,
    BackendStatusError,
    InvalidRequestError,
    UnsupportedModelError,
)
from pasta_async.protocol import ModelInfo
from pasta_async_sglang import ON, STATE

if TYPE_CHECKING:
    from pasta_async.backends.tokenization import AsyncTextCodec

ROUTING_KEY = "X-SMG-Routing-Key"
"""The header by which a router with `--policy manual` keeps requests together; others ignore it."""

MINIMUM_VERSION = "0.5.23"
"""The oldest SGLang this was tested with. Some older ones decode on when their client has gone."""

_FAR_ID = 2**31 - 1
_VOCABULARY = re.compile(r"\[0, (\d{1,10})\]")
_KNOWN_ENDS = (
    "</s>", "<|endoftext|>", "<|im_end|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|end|>",
    "<|return|>", "<eos>", "<end_of_turn>", "<turn|>", "<|user|>", "<|observation|>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)  # fmt: skip
"""Usual end-of-text tokens, beside those of the chat template."""


class _Worker(Reply):
    """One that a router knows."""

    url: str = ""
    is_healthy: bool


class _Workers(Reply):
    workers: Listed[_Worker] | None = None


class About(Reply):
    """`/server_info`, as far as it matters."""

    version: Annotated[str, Field(max_length=100)]
    skip_tokenizer_init: bool | None = None
    incremental_streaming_output: bool | None = None
    enable_deterministic_inference: bool | None = None
    disable_overlap_schedule: bool | None = None
    dp_size: Size = 1
    max_req_input_len: Size | None = None
    internal_states: Listed[dict[str, Any]] | None = None
    """Of each scheduler."""


class PreferredSampling(Reply):
    """What a server was told to prefer (`--preferred-sampling-params`), as far as it is the model's own."""

    repetition_penalty: float = Field(default=1.0, gt=0, le=2)
    """Where a request asks for none."""
    logit_bias: Named[float] = Field(default_factory=dict[str, float])
    """Added to the logits in every request, by token id."""


class _Model(Reply):
    """`/model_info`."""

    model_path: str | None = None
    served_model_name: str | None = None
    is_generation: bool = True
    preferred_sampling_params: PreferredSampling | None = None


class _Card(Reply):
    max_model_len: Size | None = None


class _Cards(Reply):
    """`/v1/models`: the model, then its adapters."""

    data: Annotated[Listed[_Card], Field(min_length=1)]


class _Ended(Reply):
    finish_reason: Finish


class _Sample(Reply):
    meta_info: _Ended


class _Samples(RootModel[Listed[_Sample]]):
    """What `/generate` says to several prompts."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What was learned of a server."""

    info: ModelInfo
    tokenizer: AsyncTextCodec | RemoteTokenizer
    about: About
    preferred: PreferredSampling
    publishes: bool
    """Whether a fork that names its parent finds what that has decoded so far (`pasta_async_sglang`)."""

    def reader(self) -> LocalReader | RemoteReader:
        """A reader for one request."""
        if isinstance(self.tokenizer, RemoteTokenizer):
            return RemoteReader(self.info.tags, self.tokenizer.detokenize_for_reader)
        return LocalReader(self.tokenizer.detokenizer(), self.info.tags)


async def shake_hands(server: Server, *, folder: str | Path | None, vocab_size: int | None) -> ServedModel:
    """Ask a server, or a router's worker, what it is, and what it serves.

    It is not asked for what is known: the `folder` of the model's tokenizer here, or `vocab_size`.

    Raises:
        BackendConnectError: Nothing listens, or it is no SGLang server, or too old a one.
        UnsupportedModelError: The model does not generate text, or there is no tokenizer.
    """
    about = await _about(server)
    model = await server.ask(_Model, "/model_info")
    if not model.is_generation:
        raise UnsupportedModelError(f"{server.url} serves {model.model_path!r}, which does not generate text")
    if about.skip_tokenizer_init and folder is None:
        raise UnsupportedModelError(
            f"{server.url} was started with --skip-tokenizer-init: it can neither encode a prompt "
            "nor read an answer. Start it without, or pass tokenizer= with the model's folder."
        )
    context_length = await _context_length(server, about)
    vocab_size = vocab_size or await _vocab_size(server)
    tokenizer, ends = await _tokenizer(server, context_length, folder)
    plugin, preferred = _plugin_state(about), model.preferred_sampling_params or PreferredSampling()
    info = ModelInfo(
        name=model.served_model_name or model.model_path or "unknown",
        context_length=context_length,
        vocab_size=vocab_size,
        end_ids=ends,
        tags=tokenizer.tags,
        honours_seeds=bool(about.enable_deterministic_inference),
        notes=tuple(_notes(about, plugin, preferred)),
    )
    return ServedModel(info, tokenizer, about, preferred, publishes=plugin == ON)


def _notes(about: About, plugin: str | None, preferred: PreferredSampling) -> Iterator[str]:
    if plugin not in (None, ON):
        yield f"the server's plug-in for forks is off: {plugin}"
    if preferred.repetition_penalty != 1 and about.disable_overlap_schedule is False:
        yield "the server's repetition penalty misses tokens: start it with --disable-overlap-schedule"


async def _tokenizer(
    server: Server, context_length: int, folder: str | Path | None
) -> tuple[AsyncTextCodec | RemoteTokenizer, tuple[int, ...]]:
    """Where text is encoded, and the end-of-text ids."""
    if folder is None:
        remote = RemoteTokenizer(server, context_length)
        await remote.learn()
        return remote, await _end_ids(server, remote)
    from pasta_async.backends.tokenization import AsyncTextCodec, TextCodec

    codec = await asyncio.to_thread(TextCodec.from_folder, folder)
    return AsyncTextCodec(codec, context_length), tuple(sorted(codec.end_ids))


async def engines(server: Server) -> list[Server]:
    """The healthy workers of a router (`BackendConnectError`: it has none); else the server itself."""
    said = None
    with suppress(BackendStatusError, BackendProtocolError):  # whoever asks next will say what is wrong
        said = await server.send("/workers")
    if not isinstance(said, dict):
        return [server]
    listed = read(_Workers, said, f"{server.url}/workers: a reply").workers
    if listed is None:
        return [server]
    try:
        workers = [Server(worker.url, server.connections) for worker in listed if worker.is_healthy]
    except InvalidRequestError as error:
        raise BackendProtocolError(f"{server.url}/workers names a bad address: {error}") from error
    if not workers:
        raise BackendConnectError(f"the router at {server.url} has no healthy worker")
    return workers


async def _about(server: Server) -> About:
    try:
        about = await server.ask(About, "/server_info")
    except (BackendStatusError, BackendProtocolError) as error:
        if isinstance(error, BackendStatusError) and error.status not in (404, 405):
            raise
        unusable = BackendConnectError(f"{server.url} is not an SGLang server: {error}. Is the URL right?")
        unusable.retryable = error.retryable  # a malformed reply may be the only one, a 404 is not
        raise unusable from error
    if _parts(about.version) < _parts(MINIMUM_VERSION):
        old = BackendConnectError(
            f"{server.url} runs SGLang {about.version}; pasta_async needs {MINIMUM_VERSION} or newer "
            "(pip install -U sglang)"
        )
        old.retryable = False
        raise old
    return about


def _plugin_state(about: About) -> str | None:
    """`ON`, or why the plug-in is off in a scheduler; None if a scheduler has none."""
    states: list[str | None] = [one.get(STATE) for one in about.internal_states or [{}]]
    return next((state for state in states if state != ON), ON)


def _parts(version: str) -> tuple[int, ...]:
    """The numbers of a version: 0.5.23.post1 counts as 0.5.23, and so does its release candidate."""
    release = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, release[0].split("."))) if release else ()


async def _context_length(server: Server, about: About) -> int:
    length = (await server.ask(_Cards, "/v1/models")).data[0].max_model_len
    if length is None:
        raise BackendProtocolError(f"{server.url} does not tell its context length in /v1/models")
    # The longest prompt it takes is a little shorter, or much so where memory is scarce.
    return min(length, about.max_req_input_len or length)


async def _vocab_size(server: Server) -> int:
    """Ids that the server's model knows."""
    params = {"max_new_tokens": 1, "logit_bias": {str(_FAR_ID): 0.0}}
    try:
        await server.send("/generate", {"input_ids": [0], "sampling_params": params})
    except BackendStatusError as error:
        if error.status == 400 and (size := _VOCABULARY.search(str(error))):
            return int(size[1]) + 1
        raise
    raise BackendProtocolError(
        f"{server.url} does not tell the size of its vocabulary, which no id may exceed (it would kill the "
        "server). Pass vocab_size=."
    )


async def _end_ids(server: Server, tokenizer: RemoteTokenizer) -> tuple[int, ...]:
    """End-of-text ids: of the special tokens that may be, those that end a request."""
    candidates = await _end_candidates(tokenizer)
    if not candidates:
        return ()
    params = [{"temperature": 0.0, "max_new_tokens": 2, "logit_bias": {str(i): 1000.0}} for i in candidates]
    body = {"input_ids": [[0]] * len(candidates), "sampling_params": params}
    reasons = [one.meta_info.finish_reason for one in (await server.ask(_Samples, "/generate", body)).root]
    server.check_count("/generate", reasons, candidates)
    stopped = zip(candidates, reasons, strict=True)
    return tuple(i for i, reason in stopped if reason.type == "stop" and reason.matched == i)


async def _end_candidates(tokenizer: RemoteTokenizer) -> list[int]:
    """Special tokens that are usual ends, or stand in the chat template."""
    found = {one[0] for one in await tokenizer.tokenize(_KNOWN_ENDS) if len(one) == 1}
    chat = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}]
    with suppress(BackendStatusError):  # a chat template that refuses this
        found.update(await tokenizer.tokenize_chat(chat, {}) or ())
    ids = [[i] for i in sorted(found)]
    bare = await tokenizer.detokenize_all(ids, skip_special=True)
    return [one[0] for one, text in zip(ids, bare, strict=True) if not text]
