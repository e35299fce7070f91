"""The handshake with an SGLang server: its version, model and tokenizer, or the reason why it cannot be used.

A router (`sglang-router` 0.3.2, sgl-model-gateway) passes `/generate` and the OpenAI endpoints on to one of
its workers, and closes that request when its own connection is closed. It has no `/tokenize` of SGLang's
form, no `/abort_request` and no `/server_info`: for these its workers are asked, at the addresses it tells.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from pasta_async.backends.http import ServedModel
from pasta_async.backends.http.client import HTTPClient
from pasta_async.backends.http.handshake import check_version, expecting, find_tokenizer
from pasta_async.errors import (
    BackendConnectError,
    BackendProtocolError,
    BackendStatusError,
    UnsupportedModelError,
)
from pasta_async.protocol import Model
from pasta_async_sglang import ON, STATE

MINIMUM_VERSION = "0.5.23"
"""The oldest SGLang in the tests. Some older ones decode on when their client has gone."""


class About(BaseModel):
    """The fields of `/server_info` that are used here."""

    version: str
    revision: str | None = None
    skip_tokenizer_init: bool | None = None
    incremental_streaming_output: bool | None = None
    enable_deterministic_inference: bool | None = None
    disable_overlap_schedule: bool | None = None
    grammar_backend: str | None = None
    dp_size: int = 1
    max_req_input_len: int | None = None
    internal_states: list[dict[str, Any]] | None = None
    """The state of each scheduler process; the plug-in adds its own to it."""


class PreferredSampling(BaseModel):
    """A server's default sampling (`--preferred-sampling-params`): the fields that belong to the model."""

    repetition_penalty: float = 1.0
    """The penalty of requests that name none."""
    logit_bias: dict[str, float] = Field(default_factory=dict[str, float])
    """Numbers that are added to the logits of every request, by token id."""


class _ModelInfo(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(protected_namespaces=())

    model_path: str | None = None
    tokenizer_path: str | None = None
    served_model_name: str | None = None
    is_generation: bool = True
    preferred_sampling_params: PreferredSampling | None = None


class _Card(BaseModel):
    max_model_len: int


class _Cards(BaseModel):
    data: list[_Card] = Field(min_length=1)
    """The model, then its adapters."""


class _Worker(BaseModel):
    url: str
    is_healthy: bool


class _Workers(BaseModel):
    workers: list[_Worker]


@dataclass(frozen=True, slots=True)
class SGLangModel(ServedModel):
    """A server's model, and the settings of the server that change a request."""

    about: About
    preferred: PreferredSampling
    publishes: bool
    """A fork that names its parent finds the tokens that the parent has decoded (`pasta_async_sglang`)."""


async def shake_hands(http: HTTPClient, server: str, tokenizer: str | Path | None) -> SGLangModel:
    """Ask a server, or a router's worker, what it is, and what it serves.

    Args:
        http: The connections.
        server: Base URL of the server, or of the worker.
        tokenizer: Where the model's tokenizer is, as for `SGLangBackend`.

    Raises:
        BackendConnectError: Nothing listens, or it is no SGLang server, or too old a one.
        UnsupportedModelError: The model does not generate text, or there is no tokenizer, or another one.
    """
    about = await _about(http, server)
    info = await http.ask(_ModelInfo, f"{server}/model_info")
    if not info.is_generation:
        raise UnsupportedModelError(f"{server} serves {info.model_path!r}, which does not generate text")
    length = (await http.ask(_Cards, f"{server}/v1/models")).data[0].max_model_len
    source = tokenizer or info.tokenizer_path or info.model_path or ""
    model_tokenizer = await find_tokenizer(
        http,
        server,
        source,
        revision=None if tokenizer else about.revision,
        compare=not about.skip_tokenizer_init,
    )
    plugin = _plugin_state(about)
    preferred = info.preferred_sampling_params or PreferredSampling()
    model = Model(
        name=info.served_model_name or info.model_path or "unknown",
        tokenizer=model_tokenizer,
        # The longest prompt is a little shorter than the context, or much shorter if the KV cache is small.
        context_length=min(length, about.max_req_input_len or length),
        vocab_size=model_tokenizer.vocab_size,
        end_ids=model_tokenizer.end_ids,
        tags=model_tokenizer.tags,
        honours_seeds=bool(about.enable_deterministic_inference),
        grammars=frozenset({"json_schema"} if _constrains(about) else ()),
        notes=tuple(_notes(about, plugin, preferred)),
    )
    return SGLangModel(model, about, preferred, publishes=plugin == ON)


def _constrains(about: About) -> bool:
    """True if the server can decode by a grammar, for which it needs a tokenizer."""
    return not about.skip_tokenizer_init and about.grammar_backend != "none"


def _notes(about: About, plugin: str | None, preferred: PreferredSampling) -> Iterator[str]:
    if plugin not in (None, ON):
        yield f"the server's plug-in for forks is off: {plugin}"
    if preferred.repetition_penalty != 1 and about.disable_overlap_schedule is False:
        yield "the server's repetition penalty misses tokens: start it with --disable-overlap-schedule"


async def find_engines(http: HTTPClient) -> list[str]:
    """Base URLs of a router's healthy workers (`BackendConnectError`: none), or of the server itself."""
    try:
        workers = (await http.ask(_Workers, f"{http.url}/workers")).workers
    except (BackendStatusError, BackendProtocolError):  # no router; `/server_info` tells what is wrong
        return [http.url]
    healthy = [worker.url.rstrip("/") for worker in workers if worker.is_healthy]
    if not healthy:
        raise BackendConnectError(f"the router at {http.url} has no healthy worker")
    return healthy


async def _about(http: HTTPClient, server: str) -> About:
    with expecting("an SGLang", server):
        about = await http.ask(About, f"{server}/server_info")
    check_version(server, http.kind, about.version, MINIMUM_VERSION, "sglang")
    return about


def _plugin_state(about: About) -> str | None:
    """`ON`, or the reason why the plug-in is off in a scheduler; None if a scheduler lacks it."""
    states: list[str | None] = [state.get(STATE) for state in about.internal_states or [{}]]
    return next((state for state in states if state != ON), ON)
