"""SGLang over HTTP: the native `/generate`, token ids in and out.

A router (`sglang-router` 0.3.2, sgl-model-gateway) passes `/generate` and the OpenAI endpoints on to one of
its workers, and closes that request when its own connection is closed. It has no `/tokenize` of SGLang's
form, no `/abort_request` and no `/server_info`: for these its workers are asked, at the addresses it tells.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Unpack, cast

from pydantic import BaseModel, Field

from pasta_async.backends.http.backend import (
    ServerBackend,
    ServerInfo,
    ServerRequest,
    rank_of,
    sampling_fields,
)
from pasta_async.backends.http.client import HTTPClient
from pasta_async.backends.options import ServerOptions
from pasta_async.engine_load import EngineLoad, StepTimes
from pasta_async.errors import (
    BackendConnectError,
    BackendError,
    BackendProtocolError,
    BackendStatusError,
    InvalidRequestError,
    UnsupportedModelError,
)
from pasta_async.protocol import DecodeRequest, Model, Piece
from pasta_async_sglang import ON, STATE

_ROUTING_KEY = "X-SMG-Routing-Key"
"""The header by which a router with `--policy manual` keeps requests together; others ignore it."""

NEVER = -1e4
"""Added to the logit of a banned id: its probability becomes 0. Forced decoding adds more, and wins."""


_SPARE_TOKENS = 6


class _SGLangInfo(ServerInfo):
    """The fields of `/server_info` that are used here."""

    revision: str | None = None
    skip_tokenizer_init: bool | None = None
    enable_deterministic_inference: bool | None = None
    disable_overlap_schedule: bool | None = None
    grammar_backend: str | None = None
    dp_size: int = 1
    attn_dp_size: int = 1
    """Ranks of the attention alone (`--enable-dp-attention`), for which `dp_size` is 1."""
    max_req_input_len: int
    """The longest prompt: a little less than the context, or much less if the KV cache is small."""
    speculative_algorithm: str | None = None
    speculative_eagle_topk: int | None = None
    speculative_num_steps: int | None = None
    speculative_num_draft_tokens: int | None = None
    internal_states: list[dict[str, Any]] | None = None
    """The state of each scheduler process; the plug-in adds its own to it."""

    @property
    def constrains(self) -> bool:
        """True if the server can decode by a grammar, for which it needs a tokenizer.

        `outlines` takes no object with keys that its schema does not name.
        """
        return not self.skip_tokenizer_init and self.grammar_backend not in ("none", "outlines")

    @property
    def ranks(self) -> int:
        """The number of data-parallel ranks, each of which has a prefix cache of its own."""
        return self.dp_size * self.attn_dp_size

    @property
    def context_length(self) -> int:
        """Prompt and output of a request together, without what EAGLE reserves for its drafts.

        SGLang leaves `_SPARE_TOKENS` of the context unused in any case (managers/tp_worker.py, utils.py).
        """
        reserved = 0
        if self.speculative_algorithm in ("EAGLE", "EAGLE3", "FROZEN_KV_MTP"):
            drafts = (self.speculative_eagle_topk or 1) * (self.speculative_num_steps or 1)
            reserved = max(drafts, self.speculative_num_draft_tokens or 0)
        return self.max_req_input_len - max(0, reserved - _SPARE_TOKENS)

    @property
    def plugin(self) -> str | None:
        """`ON`, or the reason why the plug-in is off in a scheduler; None if a scheduler lacks it."""
        states: list[str | None] = [state.get(STATE) for state in self.internal_states or [{}]]
        return next((state for state in states if state != ON), ON)


class _PreferredSampling(BaseModel):
    """A server's default sampling (`--preferred-sampling-params`): the fields that belong to the model."""

    repetition_penalty: float = 1.0
    """The penalty of requests that name none."""
    logit_bias: dict[str, float] = {}
    """Numbers that are added to the logits of every request, by token id."""


class _ModelInfo(BaseModel, protected_namespaces=()):
    model_path: str
    tokenizer_path: str | None = None
    served_model_name: str | None = None
    is_generation: bool = True
    preferred_sampling_params: _PreferredSampling | None = None


class _Worker(BaseModel):
    url: str
    is_healthy: bool


class _Workers(BaseModel):
    workers: list[_Worker]


class _Rank(BaseModel):
    """The load of a data-parallel rank (0.5.23: entrypoints/v1_loads.py, managers/load_snapshot.py)."""

    num_running_reqs: int
    num_waiting_reqs: int
    max_running_requests: int
    token_usage: float
    decode_moments: Annotated[list[float], Field(min_length=6, max_length=6)] | None = None
    """The number of decode steps since the server's start, then sums over these steps: requests,
    microseconds, requests squared, requests x microseconds, tokens."""


class _Loads(BaseModel):
    loads: list[_Rank] = Field(min_length=1)


class SGLangBackend(ServerBackend):
    """An SGLang server, or a router (`sglang-router`) in front of some.

    Servers that were started with `--skip-tokenizer-init` work, too. A router aborts nothing, so its workers
    must be reachable, at the addresses that it knows them by. It keeps an answer on one worker under
    `--policy manual`, by the header `X-SMG-Routing-Key`.

    Args:
        url: The server's or the router's.
        options: See `ServerOptions`.
    """

    kind = "SGLang"
    minimum_version = "0.5.23"  # some older ones decode on when their client has gone

    def __init__(self, url: str, **options: Unpack[ServerOptions]) -> None:
        super().__init__(url, options)
        self._engines = [self.url]
        self._info: _SGLangInfo
        self._preferred: _PreferredSampling
        self._request_ids = _request_ids()
        self._steps = StepTimes()

    async def _handshake(self) -> Model:
        try:
            self._engines = await self._find_workers()
        except (BackendStatusError, BackendProtocolError):  # no router; `/server_info` tells what is wrong
            self._engines = [self.url]
        server, info = await self._reachable_engine()
        model_info = await self._http.ask(_ModelInfo, f"{server}/model_info")
        if not model_info.is_generation:
            raise UnsupportedModelError(
                f"{server} serves {model_info.model_path!r}, which does not generate text"
            )
        self._info = info
        self._preferred = model_info.preferred_sampling_params or _PreferredSampling()
        tokenizer = await self._find_tokenizer(
            server,
            model_info.tokenizer_path or model_info.model_path,
            revision=info.revision,
            compare=not info.skip_tokenizer_init,
        )
        return Model(
            name=model_info.served_model_name or model_info.model_path,
            tokenizer=tokenizer,
            context_length=info.context_length,
            vocab_size=tokenizer.vocab_size,
            honours_seeds=bool(info.enable_deterministic_inference),
            grammars=frozenset({"json_schema"} if info.constrains else ()),
            takes_min_p=not info.enable_deterministic_inference,
            schema_refusal=xgrammar_refusal if info.grammar_backend in (None, "xgrammar") else None,
            notes=tuple(self._notes()),
        )

    async def _find_workers(self) -> list[str]:
        """Base URLs of a router's healthy workers.

        Raises:
            BackendConnectError: No worker is healthy, or the router is out of reach.
            BackendStatusError: This is no router.
            BackendProtocolError: This is no router.
        """
        workers = (await self._http.ask(_Workers, f"{self.url}/workers")).workers
        healthy = [worker.url.rstrip("/") for worker in workers if worker.is_healthy]
        if not healthy:
            raise BackendConnectError(f"the router at {self.url} has no healthy worker")
        return healthy

    async def _reachable_engine(self) -> tuple[str, _SGLangInfo]:
        """The first engine that answers: a router lists a worker that has died until its checks fail."""
        *others, last = self._engines
        for engine in others:
            with suppress(BackendConnectError):
                return engine, await self._check_version(_SGLangInfo, f"{engine}/server_info")
        return last, await self._check_version(_SGLangInfo, f"{last}/server_info")

    def _notes(self) -> Iterator[str]:
        info = self._info
        if info.plugin not in (None, ON):
            yield f"the server's plug-in for forks is off: {info.plugin}"
        if self._preferred.repetition_penalty != 1 and info.disable_overlap_schedule is False:
            yield "the server's repetition penalty misses tokens: start it with --disable-overlap-schedule"

    def _server_request(self, request: DecodeRequest, model: Model) -> ServerRequest:
        info = self._info
        if not model.takes_min_p and request.sampling.min_p > 0:
            raise InvalidRequestError("min_p ends an SGLang server with --enable-deterministic-inference")
        name = next(self._request_ids)
        # A fork that names its parent finds the tokens that the parent has decoded (`pasta_async_sglang`).
        # The parent is main's request that decodes now.
        if request.thread and info.plugin == ON:
            mains = (sent for sent in self._open if isinstance(sent, _Generate))
            if parent := next((main.id for main in mains if main.main_of == request.answer), None):
                name = f"{name}:{parent}"
        body: dict[str, Any] = {
            "rid": name,
            "input_ids": request.ids,
            "sampling_params": _sampling_params(request, model, self._preferred),
            "stream": True,
        }
        if info.ranks > 1:
            body["routed_dp_rank"] = rank_of(request.answer, info.ranks)
        return _Generate(self._http, self._engines, body, request, model)

    async def _read_load(self) -> EngineLoad:
        """The load of the server, or of all workers of a router together."""
        reports: list[_Loads] = []
        if self._engines != [self.url]:  # a router's workers come and go
            with suppress(BackendError):
                self._engines = await self._find_workers()
        engines = self._engines
        # All at once: the caller's time is short. All are waited for, also if one fails.
        asked = (self._http.ask(_Loads, f"{server}/v1/loads?include=core") for server in engines)
        for report in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(report, BaseException):
                raise report
            reports.append(report)
        ranks = [rank for report in reports for rank in report.loads]
        for server, report in zip(engines, reports, strict=True):
            for number, rank in enumerate(report.loads):
                growth = self._steps.growth(rank.decode_moments or [0.0] * 6, (server, number))
                steps, requests, micros, squares, products, _ = growth
                self._steps.add(steps, requests, micros / 1e6, squares, products / 1e6)
        return EngineLoad(
            capacity=sum(rank.max_running_requests for rank in ranks),
            running=sum(rank.num_running_reqs for rank in ranks),
            queued=sum(rank.num_waiting_reqs for rank in ranks),
            kv_use=max(rank.token_usage for rank in ranks),
            step_doubles_at=self._steps.doubles_at * len(ranks),
        )


class _Generate(ServerRequest):
    """A request to `/generate`, known to one of the engines."""

    def __init__(
        self,
        http: HTTPClient,
        engines: Sequence[str],
        body: Mapping[str, Any],
        request: DecodeRequest,
        model: Model,
    ) -> None:
        super().__init__(f"{http.url}/generate", body, {_ROUTING_KEY: request.answer}, request, model)
        self.id: str = body["rid"]
        self.main_of = None if request.thread else request.answer
        """The answer whose main thread this request decodes; None for other threads."""
        self._http = http
        self._engines = engines
        self._count = 0  # ids in the events so far

    def pieces(self, event: Mapping[str, Any]) -> Iterable[Piece]:
        """The new tokens of an event; without incremental streaming it has all ids of the request so far.

        Which of the two is told by each event: a server may have been started again in the other form.
        """
        meta: dict[str, Any] = event["meta_info"]
        reason: dict[str, Any] = meta["finish_reason"] or {"type": None}
        if reason["type"] == "abort":
            raise BackendStatusError(
                f"the server ended the request: {reason.get('message')}",
                status=reason.get("status_code") or 503,
            )
        if reason.get("matched") == "NaN happened":  # `schedule_batch.py` calls it a stop
            raise BackendStatusError("the server computed NaN instead of a token", status=500)
        ids: list[int] = event["output_ids"]
        if len(ids) > meta["completion_tokens"] - self._count:
            ids = ids[self._count :]
        self._count += len(ids)
        yield self.piece(ids, reason["type"], meta.get("cached_tokens"))

    async def abort(self) -> None:
        """Ask every engine to end the request; closing its connection asks again."""
        are_told = await asyncio.gather(
            *(self._http.tell(f"{engine}/abort_request", {"rid": self.id}) for engine in self._engines)
        )
        if not any(are_told):  # with an --admin-api-key, say: the connection is all that is left
            await super().abort()


def _request_ids() -> Iterator[str]:
    """Ids for requests, unique among all processes.

    SGLang aborts every request whose id *begins* with the given one. These all have one length, so that none
    is a prefix of another, nor of a fork's id, which is `ID:PARENT` (`pasta_async_sglang`).
    """
    process = uuid.uuid4().hex
    return (f"pasta-{process}-{number:012x}" for number in itertools.count())


def _sampling_params(request: DecodeRequest, model: Model, preferred: _PreferredSampling) -> dict[str, Any]:
    sampling = request.sampling
    params: dict[str, Any] = {
        **sampling_fields(request, model),
        "max_new_tokens": request.max_tokens,
        "top_k": sampling.top_k or -1,
        "repetition_penalty": sampling.repetition_penalty or preferred.repetition_penalty,
        "skip_special_tokens": False,
    }
    if bias := preferred.logit_bias | dict.fromkeys(map(str, request.banned_ids), NEVER):
        params["logit_bias"] = bias
    if model.honours_seeds:  # without a seed all requests would have the same one, 42
        params["sampling_seed"] = random.getrandbits(31) if request.seed is None else request.seed
    if request.grammar:
        params["json_schema"] = request.grammar.text
    return params


_XGRAMMAR_IGNORES = {
    *("contains", "dependentRequired", "dependentSchemas", "else", "if", "maxContains", "minContains"),
    *("multipleOf", "not", "then", "uniqueItems"),
}
_XGRAMMAR_FORMATS = (
    *("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "json-pointer", "time", "uri"),
    *("relative-json-pointer", "uri-reference", "uri-template", "uuid"),
)
# Keywords of schemas: with one schema, or a list of some, and with some by name.
_HOLD_SCHEMAS = (
    *("additionalItems", "additionalProperties", "allOf", "anyOf", "contentSchema", "items", "oneOf"),
    *("prefixItems", "propertyNames", "unevaluatedItems", "unevaluatedProperties"),
)
_HOLD_NAMED_SCHEMAS = ("$defs", "definitions", "dependencies", "patternProperties", "properties")


def xgrammar_refusal(schema: Any) -> str | None:
    """The reason why SGLang refuses a JSON schema for xgrammar, its usual grammars; None if it takes it.

    These are its own rules (constrained/json_schema_validation.py, 0.5.23).
    """
    if isinstance(schema, list):
        return next(filter(None, map(xgrammar_refusal, cast("list[Any]", schema))), None)
    if not isinstance(schema, Mapping):
        return None
    fields = cast("Mapping[str, Any]", schema)
    if ignored := sorted(_XGRAMMAR_IGNORES & fields.keys()):
        return f"SGLang's xgrammar does not keep {ignored[0]}"
    kind = fields.get("type", "string")
    if kind == "string" or (isinstance(kind, list) and "string" in kind):
        if "format" in fields and fields["format"] not in _XGRAMMAR_FORMATS:
            return f"SGLang's xgrammar does not know the format {fields['format']!r}"
        has_length = "minLength" in fields or "maxLength" in fields
        if ("format" in fields) + ("pattern" in fields) + has_length > 1:
            return "SGLang's xgrammar keeps one of format, pattern and length alone"
    parts = [fields[name] for name in _HOLD_SCHEMAS if name in fields]
    for name in _HOLD_NAMED_SCHEMAS:
        if isinstance(named := fields.get(name), Mapping):
            parts += cast("Mapping[str, Any]", named).values()
    return xgrammar_refusal(parts)
