"""SGLang over HTTP: the native `/generate`, token ids in and out."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import uuid
import zlib
from typing import TYPE_CHECKING, Any, cast

import anyio

from pasta_async.backends.sglang.encoding import Encoder
from pasta_async.backends.sglang.events import Increments, PieceReader
from pasta_async.backends.sglang.handshake import end_ids, server_facts, vocab_size
from pasta_async.backends.sglang.transport import DEFAULT_TIMEOUT, Server
from pasta_async.errors import (
    BackendError,
    BackendProtocolError,
    BackendStatusError,
    InvalidRequest,
    UnsupportedModel,
)
from pasta_async.protocol import ModelInfo

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    import httpx

    from pasta_async.backends.sglang.handshake import ServerFacts
    from pasta_async.backends.sglang.transport import EventStream
    from pasta_async.protocol import DecodeRequest, Message, Piece

__all__ = ["SGLangBackend", "checked_ids", "sampling_params"]

ABORT_SECONDS = 5.0
"""How long a cancelled request may take to be aborted before its cancellation goes on regardless."""

MAX_RETRY_AFTER = 60.0
"""Seconds a server's Retry-After is followed at most."""

MAX_STOPS = 32
MAX_STOP_PATTERN = 256
"""Stop patterns that SGLang takes, and characters of one."""


class SGLangBackend:
    """An SGLang server.

    Needs nothing but the URL: prompts and chat templates are encoded by the server.

    Args:
        url: Base URL of the server, a path included where it has one.
        api_key: Sent as a bearer token.
        client: An `httpx.AsyncClient` to use. It is not closed here; its pool must hold `max_connections`.
        timeout: Seconds, or an `httpx.Timeout`; its `read` is the longest wait for a token, queues included.
        retries: How often a request is sent again that failed before its first token.
        backoff: Seconds before the first of them; doubles, jittered. Retry-After wins, up to a minute.
        max_connections: Requests that decode at the same time.
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
        vocab_size: int | None = None,
    ) -> None:
        if retries < 0 or backoff < 0 or max_connections < 1:
            raise InvalidRequest("retries and backoff must be 0 or more, max_connections 1 or more")
        self._server = Server(
            url, api_key=api_key, client=client, timeout=timeout, max_connections=max_connections
        )
        self._tokenizer = _ServerTokenizer(self._server)
        self._encoder = Encoder(self._tokenizer)
        self._retries = retries
        self._backoff = backoff
        self._vocab_size = vocab_size
        self._connecting = asyncio.Lock()
        self._known: tuple[ServerFacts, ModelInfo] | None = None
        # Aborts go by prefix of the id: ids of one length are no prefixes of each other.
        self._rids = (f"pasta-{uuid.uuid4().hex}-{number:012x}" for number in itertools.count())
        self._cleanups: set[asyncio.Task[None]] = set()

    async def connect(self) -> ModelInfo:
        """Reach the server and learn its model, once. Cancelling leaves nothing behind.

        Raises:
            BackendConnectError: Nothing listens there, it is not SGLang, or too old.
            BackendStatusError: The server refused, for want of an `api_key` perhaps.
            UnsupportedModel: The server has no tokenizer, or no model that generates text.
        """
        return (await self._connected())[1]

    async def _connected(self) -> tuple[ServerFacts, ModelInfo]:
        if self._known is None:
            async with self._connecting:
                if self._known is None:
                    self._known = await self._handshake()
        return self._known

    async def _handshake(self) -> tuple[ServerFacts, ModelInfo]:
        facts = await server_facts(self._server)
        if not facts.has_tokenizer:
            raise UnsupportedModel(
                f"{self._server.url} was started with --skip-tokenizer-init: it can neither encode a prompt "
                "nor read an answer. Start it without."
            )
        info = ModelInfo(
            name=facts.name,
            context_length=facts.context_length,
            vocab_size=self._vocab_size or await vocab_size(self._server),
            tags=await self._encoder.find_tags(),
            end_ids=await end_ids(self._server, self._tokenizer),
            honours_seeds=facts.honours_seeds,
        )
        return facts, info

    async def encode(self, text: str) -> list[int]:
        """Encode text as data, through the server. May be cancelled at any point."""
        await self._connected()
        return await self._encoder.encode(text)

    async def encode_chat(self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]) -> list[int]:
        """Encode messages by the server's chat template. May be cancelled at any point."""
        await self._connected()
        return await self._encoder.encode_chat(messages, template_kwargs)

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of ids, through the server. May be cancelled at any point."""
        _, info = await self._connected()
        return await self._encoder.detokenize(checked_ids(ids, info))

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        """Decode a request.

        Closing the generator, or cancelling the task that iterates it, aborts the request on the server and
        closes its connection before it returns, in at most 5 s.

        Raises:
            InvalidRequest: The ids do not fit the model. Nothing was sent.
            BackendError: The server failed; before the first token only after the retries.
        """
        facts, info = await self._connected()
        body = self._body(request, facts, info)
        read = Increments(incremental=facts.incremental if request.stream else False)
        pieces = PieceReader(info.tags, request.stop_ids, self._tokenizer.detokenize)
        call, event = await self._begin(body)
        try:
            while event is not None:
                for piece in await pieces.read(read.take(event)):
                    call.finished = piece.finish is not None
                    yield piece
                event = await call.next()
            if not call.finished:
                raise BackendProtocolError(f"{self._server.url} ended the stream without saying why")
        finally:
            await self._end(call)

    def _body(self, request: DecodeRequest, facts: ServerFacts, info: ModelInfo) -> dict[str, Any]:
        body: dict[str, Any] = {
            "input_ids": checked_ids(request.ids, info),
            "sampling_params": sampling_params(request, info),
            "stream": request.stream,
        }
        if facts.dp_size > 1:  # each rank has a prefix cache of its own
            body["routed_dp_rank"] = zlib.crc32(request.answer.encode()) % facts.dp_size
        return body

    async def _begin(self, body: dict[str, Any]) -> tuple[_Call, dict[str, Any] | None]:
        """Send a request until its first event is there."""
        for attempt in itertools.count():
            call = _Call(self._server, {**body, "rid": next(self._rids)})
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


class _Call:
    """One request on the server."""

    def __init__(self, server: Server, body: dict[str, Any]) -> None:
        self._server = server
        self._body = body
        self._stream: EventStream | None = None
        self.finished = False

    async def start(self) -> dict[str, Any] | None:
        """Send; the first event (the only one if the request does not stream)."""
        if not self._body["stream"]:
            return await self._server.post("/generate", self._body)
        self._stream = await self._server.stream("/generate", self._body)
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
        try:
            await self._server.post("/abort_request", {"rid": self._body["rid"]})
        except BackendError:
            pass


class _ServerTokenizer:
    """The server's tokenizer (`pasta_async.backends.sglang.encoding.Tokenizer`)."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def tokenize(self, texts: Sequence[str], *, special: bool = False) -> list[list[int]]:
        if not texts:
            return []
        body = {"prompt": list(texts), "add_special_tokens": special}
        return cast("list[list[int]]", await self._field("/tokenize", body, "tokens"))

    async def tokenize_chat(
        self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]
    ) -> list[int]:
        body = {
            "messages": list(messages),
            "add_generation_prompt": True,
            "chat_template_kwargs": dict(template_kwargs) or None,
        }
        return cast("list[int]", await self._field("/tokenize", body, "tokens"))

    async def detokenize(self, ids: Sequence[Sequence[int]], *, skip_special: bool = False) -> list[str]:
        texts = [""] * len(ids)
        filled = [at for at, one in enumerate(ids) if one]  # an empty first list is read as no list at all
        if filled:
            body = {"tokens": [list(ids[at]) for at in filled], "skip_special_tokens": skip_special}
            for at, text in zip(filled, await self._field("/detokenize", body, "text"), strict=True):
                texts[at] = str(text)
        return texts

    async def _field(self, path: str, body: Mapping[str, Any], name: str) -> list[Any]:
        answer = await self._server.post(path, body)
        try:
            value: Any = answer[name]
        except (KeyError, TypeError) as error:
            raise BackendProtocolError(f"{self._server.url}{path} answered {answer!r:.200}") from error
        if not isinstance(value, list):
            raise BackendProtocolError(f"{self._server.url}{path} answered {answer!r:.200}")
        return cast("list[Any]", value)


def checked_ids(ids: Sequence[int], info: ModelInfo) -> list[int]:
    """The ids, if the server can take them: one outside the vocabulary kills it.

    Raises:
        InvalidRequest: An id outside the vocabulary, or no ids.
    """
    bad = next((i for i in ids if not 0 <= i < info.vocab_size), None)
    if bad is not None:
        raise InvalidRequest(
            f"token id {bad} is outside the vocabulary of {info.name} (0 to {info.vocab_size - 1})"
        )
    return list(ids)


def sampling_params(request: DecodeRequest, info: ModelInfo) -> dict[str, Any]:
    """SGLang's sampling parameters for a request.

    Everything that a server could have another default for is spelled out.

    Raises:
        InvalidRequest: The context leaves no room for a token.
    """
    room = info.context_length - len(request.ids)
    if not request.ids or room < 1:
        raise InvalidRequest(
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
        "repetition_penalty": 1.0,
        "ignore_eos": False,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "no_stop_trim": True,
    }
    if request.stop_ids:
        params["stop_token_ids"] = list(request.stop_ids)
    if patterns := _stop_patterns(request.stop_text):
        params["stop_regex"] = patterns
    if info.honours_seeds and request.seed is not None:
        params["sampling_seed"] = request.seed
    return params


def _stop_patterns(texts: Sequence[str]) -> list[str]:
    """Stop texts as patterns: behind a stop string SGLang cuts the text but not the ids, here neither."""
    patterns = [f"(?:{re.escape(text)})" for text in texts if text]
    return [pattern for pattern in patterns if len(pattern) <= MAX_STOP_PATTERN][:MAX_STOPS]
