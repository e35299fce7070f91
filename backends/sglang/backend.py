"""SGLang over HTTP: the native `/generate`, token ids in and out."""

from __future__ import annotations

import asyncio
import itertools
import uuid
import zlib
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx

from pasta_async.backends.sglang.client import DEFAULT_TIMEOUT, Events, HTTPClient
from pasta_async.backends.sglang.handshake import ServedModel, find_engines, shake_hands
from pasta_async.backends.sglang.load import LoadReader
from pasta_async.clock import wait_out
from pasta_async.errors import (
    BackendConnectError,
    BackendProtocolError,
    BackendStatusError,
    InvalidRequestError,
    InvalidStateError,
)
from pasta_async.load import EngineLoad
from pasta_async.protocol import DecodeRequest, Model, Piece

ROUTING_KEY = "X-SMG-Routing-Key"
"""The header by which a router with `--policy manual` keeps requests together; others ignore it."""

ABORT_SECONDS = 5.0
"""Seconds that the abort of a cancelled request may take before its cancellation goes on regardless."""

NEVER = -1e4
"""Added to the logits of what is banned: a probability of 0, and less than what forces a token."""


class SGLangBackend:
    """An SGLang server, or a router (`sglang-router`) in front of some.

    Text is encoded and decoded here, by the model's own tokenizer, which is found in `tokenizer`, or else in
    the folder that the server loaded, if that is on this machine, or else on the Hugging Face hub by the name
    that the server was started with. Servers that were started with `--skip-tokenizer-init` serve, too.

    A router aborts nothing, so its workers must be reachable, at the addresses that it knows them by. It
    keeps an answer on one worker under `--policy manual`, by the header `X-SMG-Routing-Key`.

    Each request is sent once: retries are the client's business (`Limits.retries`).

    Args:
        url: Base URL of the server, a path included where it has one.
        api_key: Sent as a bearer token.
        client: An `httpx.AsyncClient` to use. It is not closed here; its pool must hold a
            connection for each request at a time.
        timeout: Seconds, or an `httpx.Timeout`; its `read` is the longest wait for a token, queues included.
            Whatever else the server does may take at most 30 seconds.
        tokenizer: The model's tokenizer: a folder, a `tokenizer.json`, or a name on the hub.

    Raises:
        InvalidRequestError: The URL is none of an HTTP server, the key cannot be sent, or the proxy settings
            of the environment cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        client: httpx.AsyncClient | None = None,
        timeout: httpx.Timeout | float = DEFAULT_TIMEOUT,
        tokenizer: str | Path | None = None,
    ) -> None:
        self._http = HTTPClient(url, api_key, client, timeout)
        self._tokenizer = tokenizer
        self._connecting = anyio.Lock()
        self._engines = [self._http.url]
        self._load = LoadReader(self._http)
        self._model: ServedModel | None = None
        self._request_ids = _request_ids()
        self._open: set[_Call] = set()

    @property
    def url(self) -> str:
        """Base URL of the server."""
        return self._http.url

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of every request: the key, if there is one."""
        return self._http.headers

    async def connect(self) -> Model:
        """Reach the server and learn its model, once; later calls return the same. Cancelling it is safe.

        Raises:
            BackendConnectError: Nothing listens there, it is not SGLang, or too old.
            BackendTimeoutError: Something listens, and says nothing.
            BackendStatusError: The server refused, for want of an `api_key` perhaps.
            UnsupportedModelError: There is no tokenizer, or the server has another one, or its model does not
                generate text.
        """
        return (await self._connected()).model

    async def _connected(self) -> ServedModel:
        async with self._connecting:
            self._http.check_open()
            if self._model is None:
                self._model = await self._learn()
            return self._model

    async def _learn(self) -> ServedModel:
        self._engines = await find_engines(self._http)
        return await shake_hands(self._http, self._engines[0], self._tokenizer)

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        """Decode a request.

        Closing the generator, or cancelling the task that iterates it, aborts the request on the server and
        closes its connection before it returns, in at most 6 s.

        Raises:
            InvalidRequestError: The ids do not fit the model. Nothing was sent.
            BackendError: The server refused or failed, or the backend was closed.
        """
        served = await self._connected()
        body = _body(request, served)
        headers = {ROUTING_KEY: request.answer, **(request.headers or {})}
        parent = None
        if request.thread and served.publishes:  # what its main thread decodes now, it forks from
            parent = next((call.id for call in self._open if call.main_of == request.answer), None)
        async with self._call(parent, None if request.thread else request.answer) as call:
            call.events = await self._http.open(f"{self.url}/generate", {**body, "rid": call.id}, headers)
            incremental = bool(served.about.incremental_streaming_output) and request.stream
            ends = {*request.stop_ids, *served.model.end_ids}
            count = 0  # of ids so far
            async for event in call.events:
                piece = _piece(event, 0 if incremental else count, ends)
                count += len(piece.ids)
                call.is_over = piece.finish_reason is not None
                yield piece
            if not call.is_over:
                raise BackendProtocolError(f"{self.url} ended the stream without a finish reason")

    async def load(self) -> EngineLoad | None:
        """The server's load, at most a quarter of a second old; of a router, that of its workers together.

        Raises:
            BackendError: It could not be learned.

        Cancelling it leaves nothing behind.
        """
        try:
            return await self._load.read(self._engines)
        except BackendConnectError:
            if self._engines != [self.url]:
                self._model = None  # a router's worker has gone: the next request asks which there are
            raise

    @asynccontextmanager
    async def _call(self, parent: str | None, main_of: str | None) -> AsyncGenerator[_Call]:
        """A request, which is aborted if it is left before its end."""
        name = next(self._request_ids)
        call = _Call(f"{name}:{parent}" if parent else name, main_of, self._http, self._engines)
        self._open.add(call)
        try:
            yield call
        except (BackendStatusError, BackendConnectError, InvalidRequestError, InvalidStateError):
            call.is_over = True  # it was refused, or never arrived
            raise
        finally:
            try:
                await call.end()
            finally:
                self._open.discard(call)

    async def aclose(self) -> None:
        """End open requests with an error, abort them on the server, and close the connections.

        Cancelling it closes the connections at once, which ends them too.
        """
        self._http.interrupt()
        try:
            await asyncio.gather(*(asyncio.shield(call.end()) for call in self._open))
        finally:
            await self._http.aclose()


@dataclass(eq=False)
class _Call:
    """A request on the server, known to one of the engines."""

    id: str
    main_of: str | None
    """The answer whose main thread it decodes, if it does."""
    http: HTTPClient
    engines: Sequence[str]
    is_over: bool = False
    """Nothing of it is left to abort."""
    events: Events | None = None
    ending: asyncio.Task[None] | None = None

    async def end(self) -> None:
        """Abort it, unless it is over, and close its connection.

        A task does it, once. It has when this returns, however often that is cancelled.
        """
        self.ending = self.ending or asyncio.create_task(self._end())
        if cancelled := await wait_out(self.ending.done, partial(asyncio.wait, [self.ending])):
            raise cancelled

    async def _end(self) -> None:
        if not self.is_over:
            with anyio.move_on_after(ABORT_SECONDS):
                await asyncio.gather(*(self.http.abort(engine, self.id) for engine in self.engines))
        if self.events:
            with anyio.move_on_after(ABORT_SECONDS):
                await self.events.aclose()


def _request_ids() -> Iterator[str]:
    """Names for requests, no two alike in the world.

    SGLang aborts every request whose id *begins* with the one named: ids of one length are no prefixes of
    each other, nor of a fork's, which is one of these and behind it its parent's (`pasta_async_sglang`).
    """
    process = uuid.uuid4().hex
    return (f"pasta-{process}-{number:012x}" for number in itertools.count())


def _piece(event: Mapping[str, Any], start: int, ends: Collection[int]) -> Piece:
    """The new tokens of an event.

    Args:
        event: The event.
        start: Where they begin among its ids, which may be all of the request's so far.
        ends: Stop ids and end-of-text ids that are known here. One that only the server knows is left out: it
            has no text.
    """
    try:
        meta: dict[str, Any] = event["meta_info"]
        reason: dict[str, Any] = meta.get("finish_reason") or {}
        kind, matched = reason.get("type"), reason.get("matched")
        ids: tuple[int, ...] = tuple(event["output_ids"][start:])
    except (AttributeError, KeyError, TypeError) as error:
        raise BackendProtocolError(f"an event of another form than SGLang's ({error!r})") from error
    if kind not in (None, "stop", "length"):
        raise BackendStatusError(
            f"the server ended the request: {reason.get('message') or kind}",
            status=reason.get("status_code") or 503,
        )
    if matched is not None and ids[-1:] == (matched,) and matched not in ends:
        ids = ids[:-1]
    return Piece(ids, kind, meta.get("cached_tokens"))


def _body(request: DecodeRequest, served: ServedModel) -> dict[str, Any]:
    """A request in the form of `/generate`; mappings in `request.extra` are merged into its fields."""
    body: dict[str, Any] = {
        "input_ids": _checked_ids(request.ids, served.model),
        "sampling_params": _sampling_params(request, served),
        "stream": request.stream,
    }
    if (ranks := served.about.dp_size) > 1:  # each has a prefix cache of its own
        body["routed_dp_rank"] = zlib.crc32(request.answer.encode()) % ranks
    for name, value in request.extra.items():
        present = body.get(name)
        body[name] = {**present, **value} if isinstance(present, dict) else value
    return body


def _checked_ids(ids: Sequence[int], model: Model) -> list[int]:
    """The ids, if the server can take them: one outside the vocabulary kills it."""
    if set(map(type, ids)) - {int} or (ids and not 0 <= min(ids) <= max(ids) < model.vocab_size):
        bad = next(i for i in ids if type(i) is not int or not 0 <= i < model.vocab_size)
        raise InvalidRequestError(f"{bad!r} is no token id of {model.name} (0 to {model.vocab_size - 1})")
    if not 0 < len(ids) < model.context_length:
        raise InvalidRequestError(
            f"a context of {len(ids)} tokens; {model.name} takes 1 to {model.context_length - 1}, "
            f"since prompt and answer share {model.context_length}"
        )
    return list(ids)


def _sampling_params(request: DecodeRequest, served: ServedModel) -> dict[str, Any]:
    """SGLang's sampling parameters; what a server could have another default for is spelled out."""
    model, sampling = served.model, request.sampling
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
    return params
