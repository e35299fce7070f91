"""SGLang over HTTP: the native `/generate`, token ids in and out."""

from __future__ import annotations

import asyncio
import itertools
import uuid
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import anyio
import httpx
from pydantic import Field, InstanceOf, StrictInt, StrictStr

from pasta_async.backends.sglang.events import Increments
from pasta_async.backends.sglang.handshake import ROUTING_KEY, ServedModel, engines, shake_hands
from pasta_async.backends.sglang.load import LoadReader
from pasta_async.backends.sglang.tokenizers import RemoteTokenizer
from pasta_async.backends.sglang.transport import DEFAULT_TIMEOUT, Connections, EventStream, Server
from pasta_async.backends.single_flight import SingleFlight
from pasta_async.clock import wait_out
from pasta_async.errors import (
    BackendConnectError,
    BackendProtocolError,
    BackendStatusError,
    InvalidRequestError,
)
from pasta_async.load import EngineLoad
from pasta_async.options import Options
from pasta_async.protocol import DecodeRequest, Message, ModelInfo, Piece

if TYPE_CHECKING:
    from pasta_async.backends.tokenization import AsyncTextCodec

_T = TypeVar("_T")

ABORT_SECONDS = 5.0
"""How long a cancelled request may take to be aborted before its cancellation goes on regardless."""

NEVER = -1e4
"""Added to the logits of what is banned: a probability of 0, and less than what forces a token."""


class SGLangOptions(Options):
    """What may be set, for the check of types and ranges alone."""

    api_key: Annotated[StrictStr, Field(pattern=r"^[!-~]*$")] | None
    """What a header can hold, without white space: a key from a file often ends with a line break."""
    timeout: InstanceOf[httpx.Timeout] | Annotated[float, Field(gt=0, strict=True)]
    max_connections: Annotated[StrictInt, Field(ge=1)]
    tokenizer: StrictStr | Path | None
    vocab_size: Annotated[StrictInt, Field(ge=1)] | None


class SGLangBackend:
    """An SGLang server, or a router (`sglang-router`) in front of some.

    Needs nothing but the URL: prompts and chat templates are encoded by the server. A router encodes nothing
    and aborts nothing, so its workers must be reachable too, at the addresses that it knows them by. It keeps
    an answer on one worker under `--policy manual`, by the header `X-SMG-Routing-Key`.

    Each request is sent once: retries are the client's business (`Limits.retries`).

    Args:
        url: Base URL of the server, a path included where it has one.
        api_key: Sent as a bearer token.
        client: An `httpx.AsyncClient` to use. It is not closed here; its pool must hold `max_connections`.
        timeout: Seconds, or an `httpx.Timeout`; its `read` is the longest wait for a token, queues included.
            Whatever else the server does may take at most 30 seconds.
        max_connections: Requests that decode at the same time.
        tokenizer: A local folder with the model's tokenizer (and chat template), which then saves asking the
            server, and serves for one that was started with `--skip-tokenizer-init`.
        vocab_size: Only for a server that does not tell it.

    Raises:
        InvalidRequestError: The URL, or an option, is of the wrong type or out of range.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        client: httpx.AsyncClient | None = None,
        timeout: httpx.Timeout | float = DEFAULT_TIMEOUT,
        max_connections: int = 256,
        tokenizer: str | Path | None = None,
        vocab_size: int | None = None,
    ) -> None:
        SGLangOptions(
            api_key=api_key,
            timeout=timeout,
            max_connections=max_connections,
            tokenizer=tokenizer,
            vocab_size=vocab_size,
        )
        self._connections = Connections(api_key, client, timeout, max_connections)
        self._server = Server(url, self._connections)
        self._folder, self._vocab_size = tokenizer, vocab_size
        self._connecting = SingleFlight[ServedModel]()
        self._engines = [self._server]
        self._load = LoadReader()
        self._model: ServedModel | None = None
        self._rids = _request_ids()
        self._open: set[_Call] = set()

    @property
    def url(self) -> str:
        """Base URL of the server."""
        return self._server.url

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers that the server wants with each request: its key."""
        return self._connections.headers

    async def connect(self) -> ModelInfo:
        """Reach the server and learn its model, once. Cancelling leaves nothing behind.

        Raises:
            BackendConnectError: Nothing listens there, it is not SGLang, or too old.
            BackendTimeoutError: Something listens, and says nothing.
            BackendStatusError: The server refused, for want of an `api_key` perhaps.
            UnsupportedModelError: The server has no tokenizer, or no model that generates text.
        """
        return (await self._connected()).info

    async def check(self) -> ModelInfo:
        """Ask the server anew what it serves, if it lives. Cancelling it is safe.

        Raises:
            BackendError: One of the errors of `connect`.
        """
        return (await self._connecting.run(self._learn)).info

    async def _connected(self) -> ServedModel:
        return self._model or await self._connecting.run(self._learn)

    async def _learn(self) -> ServedModel:
        with self._connections.key_hidden():
            self._engines = await engines(self._server)
            self._model = await shake_hands(
                self._engines[0], folder=self._folder, vocab_size=self._vocab_size
            )
        return self._model

    async def encode(self, text: str) -> list[int]:
        """Encode text as data. It may be cancelled at any point.

        Raises:
            InvalidRequestError: The text is no valid Unicode, or cannot be encoded as data.
            PromptTooLongError: It has far more tokens than the model takes.
            BackendError: The server failed.
        """
        return await self._tokenize(lambda tokenizer: tokenizer.encode(text))

    async def encode_chat(self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]) -> list[int]:
        """Encode messages by the model's chat template. May be cancelled at any point.

        Raises:
            PastaError: As `encode`, and a `BackendError` (400) where the template refused the messages.
        """
        return await self._tokenize(lambda tokenizer: tokenizer.encode_chat(messages, template_kwargs))

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens kept. May be cancelled at any point."""
        checked = _checked_ids(ids, await self.connect())
        return await self._tokenize(lambda tokenizer: tokenizer.detokenize(checked))

    async def _tokenize(self, work: Callable[[AsyncTextCodec | RemoteTokenizer], Awaitable[_T]]) -> _T:
        with self._connections.key_hidden():
            try:
                return await work((await self._connected()).tokenizer)
            except BackendConnectError:
                self._forget_workers()
                raise

    def _forget_workers(self) -> None:
        """One of a router's has gone: whoever comes next asks which there are."""
        if self._engines != [self._server]:
            self._model = None

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        """Decode a request.

        Closing the generator, or cancelling the task that iterates it, aborts the request on the server and
        closes its connection before it returns, in at most 6 s.

        Raises:
            InvalidRequestError: The ids do not fit the model. Nothing was sent.
            BackendError: The server refused or failed, or the backend was closed.
        """
        model = await self._connected()
        reader = model.reader()
        headers = {ROUTING_KEY: request.answer, **(request.headers or {})}
        parent = None
        if request.thread and model.publishes:  # what its main thread decodes now, it forks from
            parent = next((call.rid for call in self._open if call.main_of == request.answer), None)
        async with self._call("/generate", _body(request, model), headers, parent) as call:
            increments = Increments(
                model.info.vocab_size,
                incremental=bool(model.about.incremental_streaming_output) and request.stream,
                has_text=isinstance(model.tokenizer, RemoteTokenizer),
                stop_ids=request.stop_ids,
                request=call.rid,
            )
            call.main_of = None if request.thread else request.answer
            while (event := await call.next()) is not None:
                for piece in await reader.read(increments.take(event)):
                    call.over |= piece.finish_reason is not None
                    yield piece
            if not call.over:
                raise BackendProtocolError(f"{self._server.url} ended the stream without a finish reason")

    async def load(self) -> EngineLoad | None:
        """What the server says of its batches, not older than a quarter of a second.

        Of a router, what its workers say, together.

        Raises:
            BackendError: It could not be learned.

        Cancelling it leaves nothing behind.
        """
        try:
            return await self._load.read(self._engines)
        except BackendConnectError:
            self._forget_workers()
            raise

    @asynccontextmanager
    async def _call(
        self, path: str, body: dict[str, Any], headers: Mapping[str, str], parent: str | None = None
    ) -> AsyncGenerator[_Call]:
        rid = f"{next(self._rids)}:{parent}" if parent else next(self._rids)
        call = _Call(self._server, path, {**body, "rid": rid}, headers, self._engines, rid)
        self._open.add(call)
        try:
            with self._connections.key_hidden():
                yield call
        finally:
            try:
                await call.end()
            finally:
                self._open.discard(call)

    async def aclose(self) -> None:
        """End open requests with an error, abort them on the server, and close the connections.

        Cancelling it closes the connections at once, which ends them too.
        """
        self._connections.interrupt()
        try:
            await asyncio.gather(*(asyncio.shield(call.end()) for call in self._open))
        finally:
            await self._connections.aclose()


@dataclass(eq=False)
class _Call:
    """One request on the server, which one of the engines knows."""

    server: Server
    path: str
    body: dict[str, Any]
    headers: Mapping[str, str]
    engines: Sequence[Server]
    rid: str
    main_of: str | None = None
    """The answer whose main thread it decodes, if it does."""
    over: bool = False
    """Whether nothing of it is left to abort."""
    stream: EventStream | None = None
    ending: asyncio.Task[None] | None = None

    async def next(self) -> dict[str, Any] | None:
        """The next event, None at the end. The first call sends the request."""
        if self.over and not self.stream:
            return None
        try:
            if not self.stream:
                reply = await self.server.decode(self.path, self.body, self.headers)
                if isinstance(reply, dict):
                    self.over = True
                    return reply
                self.stream = reply
            return await self.stream.next()
        except (BackendStatusError, BackendConnectError, InvalidRequestError):
            self.over = True  # it was refused, or never arrived
            raise

    async def end(self) -> None:
        """Abort it, unless it is over, and close its connection.

        A task does it, once. It has when this returns, however often that is cancelled.
        """
        self.ending = self.ending or asyncio.create_task(self._end())
        if cancelled := await wait_out(self.ending.done, partial(asyncio.wait, [self.ending])):
            raise cancelled

    async def _end(self) -> None:
        if not self.over:
            with anyio.move_on_after(ABORT_SECONDS):
                await asyncio.gather(*(engine.abort(self.rid) for engine in self.engines))
        if self.stream:
            with anyio.move_on_after(ABORT_SECONDS):
                await self.stream.aclose()


def _request_ids() -> Iterator[str]:
    """Names for requests, no two alike in the world.

    SGLang aborts every request whose id *begins* with the one named: ids of one length are no prefixes of
    each other, nor of a fork's, which is one of these and behind it its parent's (`pasta_async_sglang`).
    """
    process = uuid.uuid4().hex
    return (f"pasta-{process}-{number:012x}" for number in itertools.count())


def _body(request: DecodeRequest, model: ServedModel) -> dict[str, Any]:
    """A request in the form of `/generate`; mappings in `request.extra` are merged into its fields."""
    body: dict[str, Any] = {
        "input_ids": _checked_ids(request.ids, model.info),
        "sampling_params": _sampling_params(request, model),
        "stream": request.stream,
    }
    if (ranks := model.about.dp_size) > 1:  # each has a prefix cache of its own
        body["routed_dp_rank"] = zlib.crc32(request.answer.encode()) % ranks
    for name, value in request.extra.items():
        mine = body.get(name)
        body[name] = {**mine, **value} if isinstance(mine, dict) else value
    return body


def _checked_ids(ids: Sequence[int], info: ModelInfo) -> list[int]:
    """The ids, if the server can take them: one outside the vocabulary kills it."""
    numbers = set(map(type, ids)) <= {int}
    if not numbers or (ids and not 0 <= min(ids) <= max(ids) < info.vocab_size):
        bad = next(i for i in ids if type(i) is not int or not 0 <= i < info.vocab_size)
        raise InvalidRequestError(f"{bad!r} is no token id of {info.name} (0 to {info.vocab_size - 1})")
    return list(ids)


def _sampling_params(request: DecodeRequest, model: ServedModel) -> dict[str, Any]:
    """SGLang's sampling parameters; what a server could have another default for is spelled out."""
    info = model.info
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
        "repetition_penalty": sampling.repetition_penalty or model.preferred.repetition_penalty,
        "ignore_eos": False,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "no_stop_trim": True,
    }
    if request.stop_ids:
        params["stop_token_ids"] = list(request.stop_ids)
    if bias := model.preferred.logit_bias | dict.fromkeys(map(str, request.banned_ids), NEVER):
        params["logit_bias"] = bias
    if info.honours_seeds and request.seed is not None:
        params["sampling_seed"] = request.seed
    return params
