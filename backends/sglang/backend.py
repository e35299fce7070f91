"""SGLang over HTTP: the native `/generate`, token ids in and out."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from pasta_async.backends.sglang.common import ABORT_SECONDS, ServedModel, SGLangProtocol, request_ids
from pasta_async.backends.sglang.handshake import ROUTING_KEY, engines, shake_hands
from pasta_async.backends.sglang.transport import DEFAULT_TIMEOUT, Connections, Server
from pasta_async.backends.single_flight import SingleFlight
from pasta_async.errors import BackendConnectError, BackendStatusError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    import httpx

    from pasta_async.backends.sglang.tokenizers import RemoteTokenizer
    from pasta_async.backends.sglang.transport import EventStream
    from pasta_async.backends.tokenization import AsyncTextCodec
    from pasta_async.protocol import DecodeRequest, ModelInfo

__all__ = ["SGLangBackend"]

_T = TypeVar("_T")


class SGLangBackend(SGLangProtocol):
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
        prefill_ahead: Whether joins are prefilled while main waits for them (docs/interpreter.md).
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
        prefill_ahead: bool = False,
    ) -> None:
        if max_connections < 1:
            raise InvalidRequestError(f"max_connections must be at least 1, not {max_connections}")
        self._connections = Connections(
            api_key=api_key, client=client, timeout=timeout, max_connections=max_connections
        )
        self._server = Server(url, self._connections)
        self._folder = tokenizer
        self._vocab_size, self._prefill_ahead = vocab_size, prefill_ahead
        self._connecting = SingleFlight[ServedModel]()
        self._engines = [self._server]
        self._model: ServedModel | None = None
        self._rids = request_ids()
        self._open: set[_Call] = set()

    async def connect(self) -> ModelInfo:
        """Reach the server and learn its model, once. Cancelling leaves nothing behind.

        Raises:
            BackendConnectError: Nothing listens there, it is not SGLang, or too old.
            BackendTimeoutError: Something listens, and says nothing.
            BackendStatusError: The server refused, for want of an `api_key` perhaps.
            UnsupportedModelError: The server has no tokenizer, or no model that generates text.
        """
        return await super().connect()

    async def check(self) -> ModelInfo:
        """Ask the server anew what it serves, if it lives. Raises as `connect`; cancelling is safe."""
        return (await self._connecting.run(self._learn)).info

    async def _connected(self) -> ServedModel:
        return self._model or await self._connecting.run(self._learn)

    async def _learn(self) -> ServedModel:
        self._engines = await engines(self._server)
        model = await shake_hands(self._engines[0], folder=self._folder, vocab_size=self._vocab_size)
        self._model = replace(model, info=replace(model.info, prefill_ahead=self._prefill_ahead))
        return self._model

    async def _tokenize(self, work: Callable[[AsyncTextCodec | RemoteTokenizer], Awaitable[_T]]) -> _T:
        try:
            return await super()._tokenize(work)
        except BackendConnectError:
            if self._engines == [self._server]:
                raise
        await self.check()  # a router's worker has gone: it knows others
        return await super()._tokenize(work)

    def _send(self, request: DecodeRequest, body: dict[str, Any]) -> AbstractAsyncContextManager[_Call]:
        return self._call("/generate", body, {ROUTING_KEY: request.answer, **(request.headers or {})})

    async def openai(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Send a request to the server's own OpenAI endpoint. See `pasta_async.protocol.PassThrough`.

        Closing the generator, or cancelling the task that iterates it, aborts the request as in `decode`.
        """
        async with self._call(path, {**body, "stream": bool(body.get("stream"))}, {}) as call:
            while (event := await call.next()) is not None:
                yield event
            call.over = True

    @asynccontextmanager
    async def _call(
        self, path: str, body: dict[str, Any], headers: Mapping[str, str]
    ) -> AsyncGenerator[_Call]:
        call = _Call(self._server, path, {**body, "rid": next(self._rids)}, headers, self._engines)
        self._open.add(call)
        try:
            yield call
        finally:
            with anyio.CancelScope(shield=True):
                await call.end()
            self._open.discard(call)

    async def aclose(self) -> None:
        """End open requests with an error, abort them on the server, and close the connections.

        Cancelling it closes the connections at once, which ends them too.
        """
        self._connections.interrupt()
        try:
            await asyncio.gather(*(call.end() for call in self._open))
        finally:
            await self._connections.aclose()


class _Call:
    """One request on the server, which one of the engines knows."""

    def __init__(
        self,
        server: Server,
        path: str,
        body: dict[str, Any],
        headers: Mapping[str, str],
        engines: Sequence[Server],
    ) -> None:
        self._server, self._path, self._engines = server, path, engines
        self._body, self._headers = body, headers
        self._stream: EventStream | None = None
        self._ending: asyncio.Task[None] | None = None
        self.over = False

    async def next(self) -> dict[str, Any] | None:
        """The next event, None at the end. The first call sends the request."""
        if self.over and not self._body["stream"]:
            return None
        sent = self._server, self._path, self._body, self._headers
        try:
            if self._body["stream"]:
                self._stream = self._stream or await Server.stream(*sent)
                return await self._stream.next()
            event = await Server.decode(*sent)
        except (BackendStatusError, BackendConnectError, InvalidRequestError):
            self.over = True  # it was refused, or never arrived
            raise
        self.over = True
        return event

    async def end(self) -> None:
        """Abort it, unless it is over, and close its connection.

        A task does it, once: a second cancellation must not leave the request running.
        """
        self._ending = self._ending or asyncio.create_task(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        if not self.over:
            with anyio.move_on_after(ABORT_SECONDS):
                for engine in self._engines:
                    await engine.abort(self._body["rid"])
        if self._stream:
            with anyio.move_on_after(ABORT_SECONDS):
                await self._stream.aclose()
