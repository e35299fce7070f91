"""SGLang over HTTP: the native `/generate`, token ids in and out."""

from __future__ import annotations

import asyncio
import zlib
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from pasta_async.backends.sglang.events import Increments
from pasta_async.backends.sglang.handshake import ROUTING_KEY, Handshake, engines, shake_hands
from pasta_async.backends.sglang.parameters import checked_ids, request_ids, sampling_params, with_extra
from pasta_async.backends.sglang.transport import DEFAULT_TIMEOUT, Connections, Server
from pasta_async.backends.single_flight import SingleFlight
from pasta_async.errors import (
    BackendConnectError,
    BackendProtocolError,
    BackendStatusError,
    InvalidRequestError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    import httpx

    from pasta_async.backends.sglang.tokenizers import Tokenizer
    from pasta_async.backends.sglang.transport import EventStream
    from pasta_async.protocol import DecodeRequest, Message, ModelInfo, Piece

__all__ = ["SGLangBackend"]

_T = TypeVar("_T")

ABORT_SECONDS = 5.0
"""How long a cancelled request may take to be aborted before its cancellation goes on regardless."""


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
        self._connecting = SingleFlight[Handshake]()
        self._engines = [self._server]
        self._known: Handshake | None = None
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
        return (await self._connected()).info

    async def check(self) -> ModelInfo:
        """Ask the server anew what it serves, if it lives. Raises as `connect`; cancelling is safe."""
        return (await self._connecting.run(self._handshake)).info

    async def _connected(self) -> Handshake:
        return self._known or await self._connecting.run(self._handshake)

    async def _handshake(self) -> Handshake:
        self._engines = await engines(self._server)
        known = await shake_hands(self._engines[0], folder=self._folder, vocab_size=self._vocab_size)
        self._known = replace(known, info=replace(known.info, prefill_ahead=self._prefill_ahead))
        return self._known

    async def encode(self, text: str) -> list[int]:
        """Encode text as data. Raises as `encode_chat`; may be cancelled at any point."""
        return await self._tokenize(lambda tokenizer: tokenizer.encode(text))

    async def encode_chat(self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]) -> list[int]:
        """Encode messages by the model's chat template. May be cancelled at any point.

        Raises:
            InvalidRequestError: The text is no valid Unicode, or cannot be encoded as data.
            PromptTooLongError: It has far more tokens than the model takes.
            BackendError: The server failed, or its template refused the messages (400).
        """
        return await self._tokenize(lambda tokenizer: tokenizer.encode_chat(messages, template_kwargs))

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of ids. May be cancelled at any point."""
        checked = checked_ids(ids, await self.connect())
        return await self._tokenize(lambda tokenizer: tokenizer.detokenize(checked))

    async def _tokenize(self, work: Callable[[Tokenizer], Awaitable[_T]]) -> _T:
        known = await self._connected()
        try:
            return await work(known.tokenizer)
        except BackendConnectError:
            if self._engines == [self._server]:
                raise
        await self.check()  # a router's worker has gone: it knows others
        return await work((await self._connected()).tokenizer)

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        """Decode a request.

        Closing the generator, or cancelling the task that iterates it, aborts the request on the server and
        closes its connection before it returns, in at most 5 s.

        Raises:
            InvalidRequestError: The ids do not fit the model. Nothing was sent.
            BackendError: The server refused or failed, or the backend was closed.
        """
        known = await self._connected()
        events = Increments(
            known.info.vocab_size,
            incremental=known.incremental if request.stream else False,
            has_text=known.has_tokenizer,
        )
        reader = known.tokenizer.reader(request.stop_ids)
        headers = {ROUTING_KEY: request.answer, **(request.headers or {})}
        async with self._call("/generate", self._body(request, known), headers) as call:
            while (event := await call.next()) is not None:
                for piece in await reader.read(events.take(event)):
                    call.over = call.over or piece.finish_reason is not None
                    yield (
                        piece if request.max_tokens else piece._replace(ids=(), text="")
                    )  # a dummy, or sampled
            if not call.over:
                raise BackendProtocolError(f"{self._server.url} ended the stream without a finish reason")

    async def openai(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Send a request to the server's own OpenAI endpoint. See `pasta_async.protocol.PassThrough`.

        Closing the generator, or cancelling the task that iterates it, aborts the request as in `decode`.
        """
        async with self._call(path, {**body, "stream": bool(body.get("stream"))}, {}) as call:
            while (event := await call.next()) is not None:
                yield event
            call.over = True

    def _body(self, request: DecodeRequest, known: Handshake) -> dict[str, Any]:
        body: dict[str, Any] = {
            "input_ids": checked_ids(request.ids, known.info),
            "sampling_params": sampling_params(request, known.info),
            "stream": request.stream,
        }
        if not known.has_tokenizer:  # it could not tell what the text is
            body["sampling_params"].pop("stop_regex", None)
        if known.dp_size > 1:  # each rank has a prefix cache of its own
            body["routed_dp_rank"] = zlib.crc32(request.answer.encode()) % known.dp_size
        return with_extra(body, request.extra)

    @asynccontextmanager
    async def _call(
        self, path: str, body: dict[str, Any], headers: Mapping[str, str]
    ) -> AsyncGenerator[_Call]:
        """A request, which is aborted and closed on the way out."""
        call = _Call(self._server, path, {**body, "rid": next(self._rids)}, headers, self._engines)
        self._open.add(call)
        try:
            yield call
        finally:
            with anyio.CancelScope(shield=True):
                await self._end(call)

    async def _end(self, call: _Call) -> None:
        """End a request in a task of its own, once: a second cancellation must not leave it running."""
        if call.ending is None:
            call.ending = asyncio.create_task(call.end())
            call.ending.add_done_callback(lambda _: self._open.discard(call))
        await asyncio.shield(call.ending)

    async def aclose(self) -> None:
        """End open requests with an error, abort them on the server, and close the connections.

        Cancelling it closes the connections at once, which ends them too.
        """
        self._connections.interrupt()
        try:
            await asyncio.gather(*(self._end(call) for call in self._open))
        finally:
            await self._connections.aclose()


class _Call:
    """One request on the server."""

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
        self.ending: asyncio.Task[None] | None = None
        """What aborts and closes it."""
        self.over = False
        """Whether nothing of it is left to abort."""

    async def next(self) -> dict[str, Any] | None:
        """The next event, None at the end. The first call sends the request."""
        try:
            if self._body["stream"]:
                self._stream = self._stream or await self._server.stream(
                    self._path, self._body, self._headers
                )
                return await self._stream.next()
            if self.over:
                return None
            event = await self._server.decode(self._path, self._body, self._headers)
        except (BackendStatusError, BackendConnectError, InvalidRequestError):
            self.over = True  # it was refused, or never arrived
            raise
        self.over = True
        return event

    async def end(self) -> None:
        """Abort it, unless it is over, and close its connection."""
        if not self.over:
            with anyio.move_on_after(ABORT_SECONDS):
                for engine in self._engines:  # only one knows it
                    await engine.abort(self._body["rid"])
        if self._stream:
            with anyio.move_on_after(ABORT_SECONDS):
                await self._stream.aclose()
