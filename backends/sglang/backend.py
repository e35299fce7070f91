"""SGLang over HTTP: the native `/generate`, token ids in and out."""

from __future__ import annotations

import asyncio
import itertools
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Unpack

from pasta_async.backends.http import Call, ServerBackend, ServerOptions, checked_ids, merged
from pasta_async.backends.http.client import HTTPClient
from pasta_async.backends.sglang.handshake import SGLangModel, find_engines, shake_hands
from pasta_async.backends.sglang.load import LoadReader
from pasta_async.errors import BackendConnectError, BackendStatusError
from pasta_async.load import EngineLoad
from pasta_async.protocol import DecodeRequest, Piece

ROUTING_KEY = "X-SMG-Routing-Key"
"""The header by which a router with `--policy manual` keeps requests together; others ignore it."""

NEVER = -1e4
"""Added to the logit of a banned id: its probability becomes 0. Forced decoding adds more, and wins."""


class SGLangBackend(ServerBackend[SGLangModel]):
    """An SGLang server, or a router (`sglang-router`) in front of some.

    Servers that were started with `--skip-tokenizer-init` work, too. A router aborts nothing, so its workers
    must be reachable, at the addresses that it knows them by. It keeps an answer on one worker under
    `--policy manual`, by the header `X-SMG-Routing-Key`. The arguments are those of `ServerBackend`.
    """

    kind = "SGLang"

    def __init__(self, url: str, **options: Unpack[ServerOptions]) -> None:
        super().__init__(url, **options)
        self._engines = [self.url]
        self._load = LoadReader(self._http)
        self._request_ids = _request_ids()

    async def _learn(self) -> SGLangModel:
        self._engines = await find_engines(self._http)
        return await shake_hands(self._http, self._engines[0], self._tokenizer)

    async def _read_load(self) -> EngineLoad:
        """The load of the server, or of all workers of a router together."""
        try:
            return await self._load.read(self._engines)
        except BackendConnectError:
            if self._engines != [self.url]:
                self._served = None  # a router's worker has gone: the next request asks which there are
            raise

    def _call(self, request: DecodeRequest, served: SGLangModel) -> Call:
        name = next(self._request_ids)
        parent = None
        if request.thread and served.publishes:  # the parent of a fork is main's request that decodes now
            mains = (call for call in self._open if isinstance(call, _Generate))
            parent = next((main.id for main in mains if main.main_of == request.answer), None)
        return _Generate(f"{name}:{parent}" if parent else name, request, served, self._http, self._engines)


class _Generate(Call):
    """A request to `/generate`, known to one of the engines."""

    def __init__(
        self,
        name: str,
        request: DecodeRequest,
        served: SGLangModel,
        http: HTTPClient,
        engines: Sequence[str],
    ) -> None:
        body = {**_body(request, served), "rid": name}
        headers = {ROUTING_KEY: request.answer, **(request.headers or {})}
        super().__init__(f"{http.url}/generate", body, headers)
        self.id = name
        self.main_of = None if request.thread else request.answer
        """The answer whose main thread this request decodes; None for other threads."""
        self._http = http
        self._engines = engines
        self._incremental = bool(served.about.incremental_streaming_output) and request.stream
        self._ends = {*request.stop_ids, *served.model.end_ids}
        self._count = 0  # ids in the events so far

    def pieces(self, event: Mapping[str, Any]) -> Iterable[Piece]:
        """The new tokens of an event; without incremental streaming it has all ids of the request so far.

        An end-of-text id that only the server knows is left out: it has no text.
        """
        meta: dict[str, Any] = event["meta_info"]
        reason: dict[str, Any] = meta.get("finish_reason") or {}
        kind = reason.get("type")
        matched = reason.get("matched")  # the stop id that ended the request
        ids: tuple[int, ...] = tuple(event["output_ids"][0 if self._incremental else self._count :])
        self._count += len(ids)
        if kind not in (None, "stop", "length"):
            raise BackendStatusError(
                f"the server ended the request: {reason.get('message') or kind}",
                status=reason.get("status_code") or 503,
            )
        if matched is not None and ids[-1:] == (matched,) and matched not in self._ends:
            ids = ids[:-1]
        yield Piece(ids, kind, meta.get("cached_tokens"))

    async def abort(self) -> None:
        """Ask every engine to end the request; closing its connection asks again."""
        await asyncio.gather(
            *(self._http.tell(f"{engine}/abort_request", {"rid": self.id}) for engine in self._engines)
        )


def _request_ids() -> Iterator[str]:
    """Ids for requests, unique among all processes.

    SGLang aborts every request whose id *begins* with the given one. These all have one length, so that none
    is a prefix of another, nor of a fork's id, which is `ID:PARENT` (`pasta_async_sglang`).
    """
    process = uuid.uuid4().hex
    return (f"pasta-{process}-{number:012x}" for number in itertools.count())


def _body(request: DecodeRequest, served: SGLangModel) -> dict[str, Any]:
    """The body for `/generate`; mappings in `request.extra` are merged into its fields."""
    body: dict[str, Any] = {
        "input_ids": checked_ids(request.ids, served.model),
        "sampling_params": _sampling_params(request, served),
        "stream": request.stream,
    }
    if (ranks := served.about.dp_size) > 1:  # each has a prefix cache of its own
        body["routed_dp_rank"] = zlib.crc32(request.answer.encode()) % ranks
    return merged(body, request.extra)


def _sampling_params(request: DecodeRequest, served: SGLangModel) -> dict[str, Any]:
    """SGLang's sampling parameters, including those whose default may differ from server to server."""
    model = served.model
    sampling = request.sampling
    params: dict[str, Any] = {
        "max_new_tokens": min(request.max_tokens, model.context_length - len(request.ids)),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": sampling.repetition_penalty or served.preferred.repetition_penalty,
        "ignore_eos": False,
        "skip_special_tokens": False,
        "stop_token_ids": [*request.stop_ids, *model.end_ids],
    }
    if bias := served.preferred.logit_bias | dict.fromkeys(map(str, request.banned_ids), NEVER):
        params["logit_bias"] = bias
    if model.honours_seeds and request.seed is not None:
        params["sampling_seed"] = request.seed
    if request.grammar:
        params["json_schema"] = request.grammar.text
    return params
