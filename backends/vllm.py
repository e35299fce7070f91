"""vLLM as a backend: a stock server's `/v1/completions` over HTTP, token ids in and out.

Its token-in token-out endpoint (`/inference/v1/generate`) is off unless the server was started with
`--enable-scale-out`. A request ends when its connection is closed: a stock server has no other way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Unpack

from pydantic import BaseModel

from pasta_async.backends.http.backend import (
    ServerBackend,
    ServerInfo,
    ServerRequest,
    rank_of,
    sampling_fields,
)
from pasta_async.backends.options import VLLMOptions
from pasta_async.engine_load import EngineLoad, StepTimes
from pasta_async.errors import BackendError, BackendProtocolError, BackendStatusError, UnsupportedModelError
from pasta_async.protocol import DecodeRequest, Model, Piece

_SESSION = "X-Session-ID"
"""The header by which vLLM's router keeps requests together; a server takes it as a label."""

_RANK = "X-data-parallel-rank"
"""The header that names the data-parallel engine which decodes a request."""

NEVER = -100.0
"""Added to the logit of a banned id: the lowest bias that vLLM accepts."""

_Metrics = Mapping[str, list[tuple[dict[str, str], float]]]
"""Labels and value of each sample, by the metric's name without `vllm:`. Each engine has one or more."""

_SAMPLE = re.compile(r"^vllm:(\w+)\{(.*)\} (\S+)$", re.MULTILINE)  # in Prometheus's text form
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class _Card(BaseModel):
    """A model, or an adapter, of a server."""

    id: str
    root: str | None = None
    parent: str | None = None
    """The model that an adapter is for; None if this is no adapter."""
    max_model_len: int | None = None


class _Cards(BaseModel):
    data: list[_Card]


class VLLMBackend(ServerBackend):
    """A vLLM server, as it is started by `vllm serve MODEL`.

    With `--enable-prompt-tokens-details` it also tells how much of a context it found in its prefix cache.

    Args:
        url: Base URL of the server.
        options: See `VLLMOptions`.
    """

    kind = "vLLM"
    minimum_version = "0.32.0"

    def __init__(self, url: str, **options: Unpack[VLLMOptions]) -> None:
        super().__init__(url, options)
        self._name = options.get("model")
        self._engines = 1  # each has a prefix cache of its own
        self._takes_bias = True
        self._most_running = 0  # requests, in any reading of the load
        self._steps = StepTimes()

    async def _handshake(self) -> Model:
        await self._check_version(ServerInfo, f"{self.url}/version")
        cards = (await self._http.ask(_Cards, f"{self.url}/v1/models")).data
        names = [card.id for card in cards]
        if self._name not in (None, *names):
            raise UnsupportedModelError(
                f"{self.url} does not serve {self._name!r}; there is {', '.join(names)}"
            )
        base = next((card for card in cards if card.parent is None), None)
        if base is None or base.max_model_len is None:
            raise BackendProtocolError(f"{self.url}/v1/models names no base model with its max_model_len")
        tokenizer = await self._find_tokenizer(self.url, base.root or base.id)
        metrics: _Metrics = {}
        with suppress(BackendError):  # a proxy may not pass them on
            metrics = await self._metrics()
        caches = _caches(metrics)
        self._engines = max(1, len(caches))
        # With drafts it refuses every request with a bias (sampling_params.py), also one that bans tags.
        self._takes_bias = not any(name.startswith("spec_decode") for name in metrics)
        notes: list[str] = []
        if any(cache.get("enable_prefix_caching") != "True" for cache in caches):
            notes.append("the server computes every fork anew: start it with --enable-prefix-caching")
        if tokenizer.tags:
            notes.append("vLLM holds tags to no grammar, and a repetition penalty counts them")
        return Model(
            name=self._name or base.id,
            tokenizer=tokenizer,
            context_length=base.max_model_len,
            vocab_size=tokenizer.vocab_size,
            honours_seeds=True,
            grammars=frozenset({"json_schema"}),
            notes=tuple(notes),
        )

    def _server_request(self, request: DecodeRequest, model: Model) -> ServerRequest:
        headers = {_SESSION: request.answer}
        if self._engines > 1:
            headers[_RANK] = str(rank_of(request.answer, self._engines))
        body = _body(request, model)
        if request.banned_ids and self._takes_bias:
            body["logit_bias"] = dict.fromkeys(map(str, request.banned_ids), NEVER)
        return _Completion(f"{self.url}/v1/completions", body, headers, request, model)

    async def _metrics(self) -> _Metrics:
        samples: dict[str, list[tuple[dict[str, str], float]]] = {}
        for name, labels, value in _SAMPLE.findall(await self._http.text(f"{self.url}/metrics")):
            samples.setdefault(name, []).append((dict(_LABEL.findall(labels)), float(value)))
        return samples

    async def _read_load(self) -> EngineLoad:
        metrics = await self._metrics()
        if not metrics.keys() >= {"num_requests_running", "kv_cache_usage_perc"}:
            raise BackendProtocolError(f"{self.url}/metrics has none of vLLM's metrics")
        running = int(_sum(metrics, "num_requests_running"))
        waiting = metrics.get("num_requests_waiting_by_reason", [])
        lacks_room = any(value for labels, value in waiting if labels["reason"] == "capacity")
        self._most_running = max(self._most_running, running)
        self._count_steps(metrics)
        blocks = [cache.get("num_gpu_blocks", "") for cache in _caches(metrics)]
        return EngineLoad(
            # vLLM does not tell --max-num-seqs. If requests wait for room (others wait for a grammar, say),
            # no more can run than ever did. Otherwise the KV cache is the limit, in which each request holds
            # at least one block.
            capacity=(self._most_running if lacks_room else 0)
            or sum(map(int, filter(str.isdigit, blocks)))
            or self._most_running,
            running=running,
            queued=int(_sum(metrics, "num_requests_waiting")),
            kv_use=max(value for _, value in metrics["kv_cache_usage_perc"]),
            step_doubles_at=self._steps.doubles_at * self._engines,
        )

    def _count_steps(self, metrics: _Metrics) -> None:
        """Count the steps since the last reading, at their mean batch size, unless one of them prefilled.

        Every request in a decode step waits for its token as long as the step takes. So the number of waits
        per step is the batch size, and the mean wait is the step's time.
        """
        names = ("iteration_tokens_total_count", "prompt_tokens_total")
        waits = ("inter_token_latency_seconds_count", "inter_token_latency_seconds_sum")
        counters = [_sum(metrics, name) for name in (*names, *waits)]
        steps, prefilled, requests, seconds = self._steps.growth(counters)
        if min(steps, requests, seconds) > 0 and not prefilled:
            batch = requests / steps
            step_seconds = seconds / requests
            self._steps.add(steps, requests, steps * step_seconds, requests * batch, requests * step_seconds)


def _caches(metrics: _Metrics) -> list[dict[str, str]]:
    """The labels that describe the KV cache of each engine."""
    return [labels for labels, _ in metrics.get("cache_config_info", [])]


def _sum(metrics: _Metrics, name: str) -> float:
    return sum(value for _, value in metrics.get(name, []))


class _Completion(ServerRequest):
    """A request to `/v1/completions`."""

    _last: Piece | None = None

    def pieces(self, event: Mapping[str, Any]) -> Iterable[Piece]:
        """The new tokens of an event. The last ones wait for the usage, which says what was cached."""
        for choice in event["choices"]:
            reason = choice["finish_reason"]
            piece = self.piece(choice["token_ids"], reason)
            if reason is None:
                yield piece
            elif reason in ("stop", "length"):
                self._last = piece
            else:
                raise BackendStatusError(f"the server ended the request: {reason}", status=503)
        # With --enable-force-include-usage events with tokens have one, too, but not of what was cached.
        if self._last and not event["choices"] and (usage := event.get("usage")):
            details: dict[str, int] = usage.get("prompt_tokens_details") or {}
            yield self._last._replace(cached_tokens=details.get("cached_tokens"))


def _body(request: DecodeRequest, model: Model) -> dict[str, Any]:
    sampling = request.sampling
    body: dict[str, Any] = {
        **sampling_fields(request, model),
        "model": model.name,
        "prompt": request.ids,
        "max_tokens": request.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "top_k": sampling.top_k or 0,
    }
    if sampling.repetition_penalty is not None:  # else as the model's generation_config.json says
        body["repetition_penalty"] = sampling.repetition_penalty
    if request.seed is not None:
        body["seed"] = request.seed
    if request.grammar:
        body["structured_outputs"] = {"json": request.grammar.text}
    return body
