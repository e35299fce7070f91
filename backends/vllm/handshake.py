"""The handshake with a vLLM server: its version, model and tokenizer, or the reason why it cannot be used."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, Field

from pasta_async.backends.http import ServedModel
from pasta_async.backends.http.client import HTTPClient
from pasta_async.backends.http.handshake import check_version, expecting, find_tokenizer
from pasta_async.backends.vllm.metrics import read_metrics
from pasta_async.errors import BackendError, BackendProtocolError, UnsupportedModelError
from pasta_async.protocol import Model

MINIMUM_VERSION = "0.32.0"
"""The oldest vLLM in the tests."""


class _Version(BaseModel):
    version: str


class _Card(BaseModel):
    """A model, or an adapter, of a server."""

    id: str
    owned_by: str
    root: str | None = None
    parent: str | None = None
    """The model that an adapter is for; None if this is no adapter."""
    max_model_len: int | None = None


class _Cards(BaseModel):
    data: list[_Card] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class VLLMModel(ServedModel):
    """A server's model, and how many engines decode it."""

    engines: int


async def shake_hands(http: HTTPClient, tokenizer: str | Path | None, name: str | None) -> VLLMModel:
    """Ask a server what it is, and what it serves.

    Args:
        http: The connections.
        tokenizer: Where the model's tokenizer is, as for `ServerBackend`.
        name: The model, or the adapter, that is to answer; None: the model that it was started with.

    Raises:
        BackendConnectError: Nothing listens, or it is no vLLM server, or too old a one.
        UnsupportedModelError: It does not serve that model, or there is no tokenizer, or another one.
    """
    cards = await _cards(http)
    base = next((card for card in cards if card.parent is None), cards[0])
    if name not in (None, *(card.id for card in cards)):
        names = ", ".join(card.id for card in cards)
        raise UnsupportedModelError(f"{http.url} does not serve {name!r}; there is {names}")
    source = tokenizer or base.root or base.id
    model_tokenizer = await find_tokenizer(http, http.url, source)
    if base.max_model_len is None:
        raise BackendProtocolError(f"{http.url}/v1/models does not tell the length of the context")
    engines, notes = await _cache(http)
    if model_tokenizer.tags:
        notes = (*notes, "vLLM holds tags to no grammar, and a repetition penalty counts them")
    model = Model(
        name=name or base.id,
        tokenizer=model_tokenizer,
        context_length=base.max_model_len,
        vocab_size=model_tokenizer.vocab_size,
        end_ids=model_tokenizer.end_ids,
        tags=model_tokenizer.tags,
        honours_seeds=True,
        grammars=frozenset({"json_schema"}),
        notes=notes,
    )
    return VLLMModel(model, engines)


async def _cards(http: HTTPClient) -> list[_Card]:
    """The models of the server, after a check of its version."""
    with expecting("a vLLM", http.url):
        version = (await http.ask(_Version, f"{http.url}/version")).version
        cards = (await http.ask(_Cards, f"{http.url}/v1/models")).data
    check_version(http.url, http.kind, version, MINIMUM_VERSION, "vllm")
    return cards


async def _cache(http: HTTPClient) -> tuple[int, tuple[str, ...]]:
    """The number of engines (1 if the server has no metrics), and a note if their prefix cache is off."""
    try:
        metrics = await read_metrics(http)
    except BackendError:
        return 1, ()
    caches = metrics.labels("cache_config_info")
    shares = all(cache.get("enable_prefix_caching") == "True" for cache in caches)
    note = f"{http.url} computes every fork anew: start it with --enable-prefix-caching"
    return max(1, len(caches)), () if shares else (note,)
