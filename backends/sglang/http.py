"""SGLang over HTTP: the native `/generate`, token ids in and out."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import random
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from pasta_async.backends.sglang.events import Increments
from pasta_async.backends.sglang.handshake import server_facts, vocab_size
from pasta_async.backends.sglang.parameters import checked_ids, request_ids, sampling_params, with_extra
from pasta_async.backends.sglang.router import ROUTING_KEY, engines
from pasta_async.backends.sglang.transport import DEFAULT_TIMEOUT, Server
from pasta_async.backends.sglang.words import ServerWords, Words
from pasta_async.errors import (
    BackendConnectError,
    BackendError,
    BackendProtocolError,
    BackendStatusError,
    InvalidRequestError,
    UnsupportedModelError,
)
from pasta_async.protocol import ModelInfo

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    import httpx

    from pasta_async.backends.sglang.handshake import ServerFacts
    from pasta_async.backends.sglang.transport import EventStream
    from pasta_async.protocol import DecodeRequest, Message, Piece

__all__ = ["SGLangBackend"]

_T = TypeVar("_T")

ABORT_SECONDS = 5.0
"""How long a cancelled request may take to be aborted before its cancellation goes on regardless."""

MAX_RETRY_AFTER = 60.0
"""Seconds a server's Retry-After is followed at most."""


class SGLangBackend:
    """An SGLang server, or a router (`sglang-router`) in front of some.

    Needs nothing but the URL: prompts and chat templates are encoded by the server. A router encodes nothing
    and aborts nothing, so its workers must be reachable too, at the addresses that it knows them by. It keeps
    an answer on one worker under `--policy manual`, by the header `X-SMG-Routing-Key`.

    Args:
        url: Base URL of the server, a path included where it has one.
        api_key: Sent as a bearer token.
        client: An `httpx.AsyncClient` to use. It is not closed here; its pool must hold `max_connections`.
        timeout: Seconds, or an `httpx.Timeout`; its `read` is the longest wait for a token, queues included.
        retries: How often a request is sent again that failed before its first token.
        backoff: Seconds before the first of them; doubles, jittered. Retry-After wins, up to a minute.
        max_connections: Requests that decode at the same time.
        tokenizer: A local folder with the model's tokenizer (and chat template), which then saves asking the
            server, and serves for one that was started with `--skip-tokenizer-init`.
        vocab_size: Only for a server that does not tell it.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        client: httpx.AsyncClient | None = None,
        timeout: httpx.Timeout | float = DEFAULT_TIMEOUT,
        retries: int = 2,
        backoff: float = 0.25,
        max_connections: int = 256,
        tokenizer: str | Path | None = None,
        vocab_size: int | None = None,
    ) -> None:
        if retries < 0 or backoff < 0 or max_connections < 1:
            raise InvalidRequestError("retries and backoff must be 0 or more, max_connections 1 or more")
        self._server = Server(
            url, api_key=api_key, client=client, timeout=timeout, max_connections=max_connections
        )
        self._folder = tokenizer
        self._retries = retries
        self._backoff = backoff
        self._vocab_size = vocab_size
        self._connecting = asyncio.Lock()
        self._engines = [self._server]
        self._known: tuple[ServerFacts, ModelInfo, Words] | None = None
        self._rids = request_ids()
        self._cleanups: set[asyncio.Task[None]] = set()

    async def connect(self) -> ModelInfo:
        """Reach the server and learn its model, once. Cancelling leaves nothing behind.

        Raises:
            BackendConnectError: Nothing listens there, it is not SGLang, or too old.
            BackendStatusError: The server refused, for want of an `api_key` perhaps.
            UnsupportedModelError: The server has no tokenizer, or no model that generates text.
        """
        return (await self._connected())[1]

    async def check(self) -> ModelInfo:
        """Ask the server anew what it serves, if it lives. Raises and is cancelled as `connect`."""
        async with self._connecting:
            self._known = await self._handshake()
        return self._known[1]

    async def _connected(self) -> tuple[ServerFacts, ModelInfo, Words]:
        if self._known is None:
            async with self._connecting:
                if self._known is None:
                    self._known = await self._handshake()
        return self._known

    async def _handshake(self) -> tuple[ServerFacts, ModelInfo, Words]:
        self._engines = await engines(self._server)
        engine = self._engines[0]
        facts = await server_facts(engine)
        if not facts.has_tokenizer and self._folder is None:
            raise UnsupportedModelError(
                f"{engine.url} was started with --skip-tokenizer-init: it can neither encode a prompt "
                "nor read an answer. Start it without, or pass tokenizer= with the model's folder."
            )
        size = self._vocab_size or await vocab_size(engine)
        words: Words = ServerWords(engine)
        if self._folder is not None:
            words = await asyncio.to_thread(_local_words, self._folder)
        tags, ends = await words.learn()
        info = ModelInfo(
            name=facts.name,
            context_length=facts.context_length,
            vocab_size=size,
            tags=tags,
            end_ids=ends,
            honours_seeds=facts.honours_seeds,
        )
        return facts, info, words

    async def encode(self, text: str) -> list[int]:
        """Encode text as data. May be cancelled at any point."""
        return await self._by_words(lambda words: words.encode(text))

    async def encode_chat(self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]) -> list[int]:
        """Encode messages by the model's chat template. May be cancelled at any point."""
        return await self._by_words(lambda words: words.encode_chat(messages, template_kwargs))

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of ids. May be cancelled at any point."""
        checked = checked_ids(ids, await self.connect())
        return await self._by_words(lambda words: words.detokenize(checked))

    async def _by_words(self, work: Callable[[Words], Awaitable[_T]]) -> _T:
        _, _, words = await self._connected()
        try:
            return await work(words)
        except BackendConnectError:
            if self._engines == [self._server]:
                raise
        await self.check()  # a router's worker has gone: it knows others
        _, _, words = await self._connected()
        return await work(words)

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        """Decode a request.

        Closing the generator, or cancelling the task that iterates it, aborts the request on the server and
        closes its connection before it returns, in at most 5 s.

        Raises:
            InvalidRequestError: The ids do not fit the model. Nothing was sent.
            BackendError: The server failed; before the first token only after the retries.
        """
        facts, info, words = await self._connected()
        body = self._body(request, facts, info)
        form = facts.incremental if request.stream else False
        read = Increments(incremental=form, has_text=facts.has_tokenizer)
        pieces = words.reader(request.stop_ids)
        headers = {ROUTING_KEY: request.answer, **(request.headers or {})}
        call, event = await self._begin(body, headers=headers)
        try:
            while event is not None:
                for piece in await pieces.read(read.take(event)):
                    call.finished = piece.finish_reason is not None
                    yield piece
                event = await call.next()
            if not call.finished:
                raise BackendProtocolError(f"{self._server.url} ended the stream without saying why")
        finally:
            await self._end(call)

    async def openai(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Send a request to the server's own OpenAI endpoint. See `pasta_async.protocol.PassThrough`.

        Closing the generator, or cancelling the task that iterates it, aborts the request as in `decode`.
        """
        call, event = await self._begin({**body, "stream": bool(body.get("stream"))}, path)
        try:
            while event is not None:
                yield event
                event = await call.next()
            call.finished = True
        finally:
            await self._end(call)

    def _body(self, request: DecodeRequest, facts: ServerFacts, info: ModelInfo) -> dict[str, Any]:
        body: dict[str, Any] = {
            "input_ids": checked_ids(request.ids, info),
            "sampling_params": sampling_params(request, info),
            "stream": request.stream,
        }
        if not facts.has_tokenizer:  # it could not tell what the text is
            body["sampling_params"].pop("stop_regex", None)
        if facts.dp_size > 1:  # each rank has a prefix cache of its own
            body["routed_dp_rank"] = zlib.crc32(request.answer.encode()) % facts.dp_size
        return with_extra(body, request.extra)

    async def _begin(
        self, body: dict[str, Any], path: str = "/generate", headers: Mapping[str, str] | None = None
    ) -> tuple[_Call, dict[str, Any] | None]:
        """Send a request until its first event is there."""
        for attempt in itertools.count():
            call = _Call(self._server, path, {**body, "rid": next(self._rids)}, headers, self._engines)
            try:
                return call, await call.start()
            except BackendError as error:
                await self._end(call)
                if attempt >= self._retries or not error.retryable:
                    raise
                await asyncio.sleep(self._delay(attempt, error))
            except BaseException:
                await self._end(call)
                raise
        raise AssertionError("unreachable")

    def _delay(self, attempt: int, error: BackendError) -> float:
        if isinstance(error, BackendStatusError) and error.retry_after is not None:
            return min(error.retry_after, MAX_RETRY_AFTER)
        return self._backoff * 2**attempt * random.uniform(0.5, 1.0)

    async def _end(self, call: _Call) -> None:
        """Close a request, aborting it first where it is not finished.

        A task of its own, since a second cancellation must not leave the request running on the server.
        """
        task = asyncio.create_task(call.end())
        self._cleanups.add(task)
        task.add_done_callback(self._cleanups.discard)
        with anyio.CancelScope(shield=True):
            await asyncio.shield(task)

    async def aclose(self) -> None:
        """Wait for aborts under way, then close the connections."""
        if self._cleanups:
            await asyncio.wait(self._cleanups)
        await self._server.aclose()


def _local_words(folder: str | Path) -> Words:
    tokenization = importlib.import_module("pasta_async.backends.tokenization")
    local_text = importlib.import_module("pasta_async.backends.sglang.local_text")
    return local_text.LocalWords(tokenization.TextCodec.from_folder(folder))


class _Call:
    """One request on the server."""

    def __init__(
        self,
        server: Server,
        path: str,
        body: dict[str, Any],
        headers: Mapping[str, str] | None,
        engines: Sequence[Server],
    ) -> None:
        self._server, self._path, self._engines = server, path, engines
        self._body, self._headers = body, headers
        self._stream: EventStream | None = None
        self.finished = False

    async def start(self) -> dict[str, Any] | None:
        """Send; the first event (the only one if the request does not stream)."""
        if not self._body["stream"]:
            return await self._server.post(self._path, self._body, self._headers)
        self._stream = await self._server.stream(self._path, self._body, self._headers)
        return await self._stream.next()

    async def next(self) -> dict[str, Any] | None:
        return await self._stream.next() if self._stream else None

    async def end(self) -> None:
        with anyio.move_on_after(ABORT_SECONDS):
            if not self.finished:
                await self._abort()
        with anyio.move_on_after(ABORT_SECONDS):
            if self._stream:
                await self._stream.aclose()

    async def _abort(self) -> None:
        """Ask for the request's end; closing its connection asks again, so no failure matters here."""
        for engine in self._engines:  # only one knows it
            with suppress(BackendError):
                await engine.post("/abort_request", {"rid": self._body["rid"]})
