"""A server over HTTP as a backend: everything that SGLang and vLLM have in common.

Each request is sent once; the client retries (`Limits.retries`).
"""

from __future__ import annotations

import asyncio
import os
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar, TypeVar

import anyio
import httpx
from pydantic import BaseModel

from pasta_async.backends.http.client import Events, HTTPClient
from pasta_async.backends.options import ServerOptions
from pasta_async.clock import wait_out
from pasta_async.engine_load import EngineLoad
from pasta_async.errors import (
    BackendConnectError,
    BackendError,
    BackendProtocolError,
    BackendStatusError,
    BackendTimeoutError,
    UnsupportedModelError,
)
from pasta_async.protocol import DecodeRequest, Model, Piece
from pasta_async.tokenizer import Tokenizer

_ABORT_SECONDS = 5.0
"""Seconds that the abort of a cancelled request may take before its cancellation goes on regardless."""

FRESH_SECONDS = 0.25
"""Seconds for which a reading of the load, or its failure, is used again. No server is asked more often."""

WAIT_SECONDS = 0.5
"""Seconds that a reading may take: an answer waits for it, and then goes on without it."""

_TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json"),
    *("generation_config.json", "config.json"),
)
"""Files of a model that its tokenizer is made of."""

SAMPLE = "Two wars (1914-1918, 1939-1945):\n  1. causes,\n  2. outcome; na\u00efve, \u6f22\u5b57 \U0001f389."
"""A text that different tokenizers hardly ever encode to the same ids."""

_UNKNOWN = (404, 405)
"""HTTP statuses of a server that does not have an endpoint."""


class ServerInfo(BaseModel):
    """A server's reply that holds its version."""

    version: str


_Info = TypeVar("_Info", bound=ServerInfo)


class _Ids(BaseModel):
    tokens: list[int]


class ServerRequest(ABC):
    """A request on the server: what is sent, how its events are read, and its end."""

    def __init__(
        self,
        url: str,
        body: Mapping[str, Any],
        headers: Mapping[str, str],
        request: DecodeRequest,
        model: Model,
    ) -> None:
        self.url: str = url
        self.body: Mapping[str, Any] = _merged(body, request.extra)
        self.headers: Mapping[str, str] = {**headers, **(request.headers or {})}
        self.events: Events | None = None
        self.is_over = False
        """True once the server works on the request no more: there is nothing to abort."""
        self._ends = {*request.stop_ids, *model.end_ids}
        self._ending: asyncio.Task[None] | None = None

    @abstractmethod
    def pieces(self, event: Mapping[str, Any]) -> Iterable[Piece]:
        """The pieces that an event completes.

        Raises:
            BackendStatusError: The event says that the server gave the request up.
        """

    def read(self, event: Mapping[str, Any]) -> list[Piece]:
        """As `pieces`; `BackendProtocolError` if a field is missing, or of another type."""
        try:
            return [*self.pieces(event)]
        except (KeyError, TypeError) as error:
            raise BackendProtocolError(f"{self.url} sent an event without {error}: {event!s:.300}") from error

    def piece(self, ids: Sequence[int], finish_reason: Any, cached_tokens: int | None = None) -> Piece:
        """A piece of these ids. An end-of-text that only the server knows is left out: it has no text."""
        if finish_reason == "stop" and ids and ids[-1] not in self._ends:
            ids = ids[:-1]
        return Piece(tuple(ids), finish_reason, cached_tokens)

    async def abort(self) -> None:
        """Have the server end the request early; a failure is ignored. Closing the connection does that."""
        if self.events:
            await self.events.break_off()

    async def end(self) -> None:
        """Abort the request, unless it is over, and close its connection.

        A task of its own does that once. It is done when this returns, however often the caller is cancelled.
        """
        self._ending = self._ending or asyncio.create_task(self._end())
        if cancelled := await wait_out(self._ending.done, partial(asyncio.wait, [self._ending])):
            raise cancelled

    async def _end(self) -> None:
        if not self.is_over:
            with anyio.move_on_after(_ABORT_SECONDS):
                await self.abort()
        if self.events:
            with anyio.move_on_after(_ABORT_SECONDS):
                await self.events.aclose()


class ServerBackend(ABC):
    """A server, reached over HTTP.

    Text is encoded and decoded here, by the model's own tokenizer, which is found as the option `tokenizer`
    says.

    Args:
        url: Base URL of the server, a path included where it has one.
        options: See `ServerOptions`.

    Raises:
        InvalidRequestError: The URL is not that of an HTTP server, or the key cannot be sent.
    """

    kind: ClassVar[str]
    """The name of the program that serves."""

    minimum_version: ClassVar[str]
    """The oldest version in the tests."""

    def __init__(self, url: str, options: ServerOptions) -> None:
        self._http = HTTPClient(self.kind, url, options)
        self.url: str = self._http.url
        """Base URL of the server."""
        self._tokenizer = options.get("tokenizer")
        self._connecting = anyio.Lock()
        self._reading = anyio.Lock()
        self._model: Model | None = None
        self._refused: tuple[float, BackendError] | None = None  # the last handshake that failed, and when
        self._open: set[ServerRequest] = set()
        self._latest_load: EngineLoad | BackendError | None = None
        self._fresh_until = 0.0

    async def connect(self) -> Model:
        """Reach the server and learn its model, once; later calls return the same. Cancelling it is safe.

        Calls that wait for another one's try share its failure.

        Raises:
            BackendConnectError: Nothing listens there.
            BackendTimeoutError: Something listens, and says nothing.
            BackendStatusError: The server refused, perhaps because `api_key` is missing.
            UnsupportedModelError: There is no tokenizer, or the server has another one, or its model does not
                generate text.
            BackendError: It is another program, or too old.
        """
        asked = monotonic()
        async with self._connecting:
            self._http.check_open()
            if self._refused and self._refused[0] > asked:
                raise self._refused[1]
            if self._model is None:
                try:
                    self._model = await self._handshake()
                except BackendError as error:
                    self._refused = monotonic(), error
                    raise
            return self._model

    @abstractmethod
    async def _handshake(self) -> Model:
        """Ask the server what it is; the errors are those of `connect`."""

    @abstractmethod
    def _server_request(self, request: DecodeRequest, model: Model) -> ServerRequest:
        """The form in which a request is sent to the server."""

    @abstractmethod
    async def _read_load(self) -> EngineLoad:
        """The server's load, asked now (`BackendError`: it could not be learned)."""

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        """Decode a request.

        Closing the generator, or cancelling the task that iterates it, aborts the request on the server and
        closes its connection before it returns, in at most 6 s.

        Raises:
            BackendError: The server refused or failed, or the backend was closed.
        """
        sent = self._server_request(request, await self.connect())
        self._open.add(sent)
        try:
            sent.events = await self._http.open(sent.url, sent.body, sent.headers)
            async with aclosing(sent.events.read()) as events:
                async for event in events:
                    for piece in sent.read(event):
                        sent.is_over = piece.finish_reason is not None
                        yield piece
        except (BackendStatusError, BackendConnectError):
            sent.is_over = True  # it was refused, or never arrived
            raise
        finally:
            try:
                await sent.end()
            finally:
                self._open.discard(sent)

    async def forward(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[bytes]:
        """The reply of another endpoint of the server, byte for byte, however long it takes.

        Closing it, or cancelling the task that iterates it, closes the connection.

        Raises:
            BackendError: The server refused or failed, or the backend was closed.
        """
        events = await self._http.open(f"{self.url}{path}", body, {}, is_limited=False)
        try:
            async with aclosing(events.chunks()) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            await events.break_off()

    async def load(self) -> EngineLoad | None:
        """The server's load, at most a quarter of a second old; one reading serves all answers.

        Raises:
            BackendError: The latest try failed.

        Cancelling it leaves nothing behind.
        """
        async with self._reading:
            if monotonic() >= self._fresh_until:
                try:
                    with anyio.fail_after(WAIT_SECONDS):
                        self._latest_load = await self._read_load()
                except BackendError as error:
                    self._latest_load = error
                except TimeoutError:
                    message = f"{self.url} did not tell its load in {WAIT_SECONDS:g} s"
                    self._latest_load = BackendTimeoutError(message)
                self._fresh_until = monotonic() + FRESH_SECONDS
        if isinstance(self._latest_load, BackendError):
            raise self._latest_load
        return self._latest_load

    async def aclose(self) -> None:
        """End open requests with an error, abort them on the server, and close the connections.

        Cancelling it closes the connections at once, which ends them too.
        """
        self._http.interrupt()
        try:
            await asyncio.gather(*(asyncio.shield(sent.end()) for sent in self._open))
        finally:
            await self._http.aclose()

    # Handshake ----------------------------------------------------------------------------------------------

    async def _check_version(self, form: type[_Info], url: str) -> _Info:
        """The reply that tells the server's version, at a URL that every server of the kind has.

        Raises:
            BackendError: It is another program, or too old.
        """
        try:
            info = await self._http.ask(form, url)
        except (BackendStatusError, BackendProtocolError) as error:
            if isinstance(error, BackendStatusError) and error.status not in _UNKNOWN:
                raise
            raise BackendError(f"this is no {self.kind} server: {error}. Is the URL right?") from error
        if _numbers(info.version) < _numbers(self.minimum_version):
            raise BackendError(
                f"{url}: this is {self.kind} {info.version}; pasta_async needs {self.minimum_version} or "
                f"newer (pip install -U {self.kind.lower()})"
            )
        return info

    async def _find_tokenizer(
        self, server: str, named: str, *, revision: str | None = None, compare: bool = True
    ) -> Tokenizer:
        """The tokenizer of a server's model. A cancellation does not wait for the thread that loads it.

        Args:
            server: Base URL of the server.
            named: The model's folder or its name on the hub, as the server tells it; the option wins.
            revision: The model's revision on the hub; None: the latest.
            compare: Have the server encode `SAMPLE` as well: the ids must be the same.

        Raises:
            UnsupportedModelError: There is none, or the server has another one.
            BackendError: The server failed.
        """
        source = self._tokenizer or named
        load = partial(_load_tokenizer, source, server, None if self._tokenizer else revision)
        tokenizer = await anyio.to_thread.run_sync(load, abandon_on_cancel=True)
        if compare:
            await self._compare(server, tokenizer, source)
        return tokenizer

    async def _compare(self, server: str, tokenizer: Tokenizer, source: str | Path) -> None:
        """Refuse a tokenizer that gives `SAMPLE` other ids than the server does, if that has `/tokenize`."""
        body = {"prompt": SAMPLE, "add_special_tokens": False}
        try:
            ids = await self._http.ask(_Ids, f"{server}/tokenize", body)
        except BackendStatusError as error:
            if error.status in _UNKNOWN:  # a proxy in front of the server passes on only some endpoints
                return
            raise
        if ids.tokens != tokenizer.encode_unguarded(SAMPLE):
            raise UnsupportedModelError(
                f"{server} encodes text otherwise than the tokenizer at {source}: pass tokenizer= with that "
                "of the model that it serves"
            )


def _load_tokenizer(source: str | Path, server: str, revision: str | None) -> Tokenizer:
    """A tokenizer from a folder, a `tokenizer.json`, or the hub."""
    if os.path.exists(source):  # `Path.exists` raises where it may not look
        return Tokenizer.from_folder(source)
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    hub: Any = huggingface_hub
    try:
        folder = hub.snapshot_download(str(source), revision=revision, allow_patterns=[*_TOKENIZER_FILES])
    except (HfHubHTTPError, httpx.HTTPError, httpx.InvalidURL, ImportError, OSError, ValueError) as error:
        raise UnsupportedModelError(
            f"there is no tokenizer for {server}: {source!r} is no folder here, nor on the hub ({error}). "
            "Pass tokenizer=, or set PASTA_TOKENIZER: a folder, a tokenizer.json or a name on the hub. Or "
            "have the server's model folder on this machine, or start the server by a name on the hub "
            "(HF_TOKEN opens gated models)"
        ) from error
    return Tokenizer.from_folder(folder)


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version: 0.5.23.post1 counts as 0.5.23, and so does its release candidate."""
    release = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, release[0].split("."))) if release else ()


def sampling_fields(request: DecodeRequest, model: Model) -> dict[str, Any]:
    """Fields that both servers know by one name. Defaults differ from server to server, so all are sent."""
    sampling = request.sampling
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "ignore_eos": False,
        "stop_token_ids": [*request.stop_ids, *model.end_ids],
    }


def rank_of(answer: str, ranks: int) -> int:
    """The data-parallel rank of all requests of an answer: each rank has a prefix cache of its own."""
    return zlib.crc32(answer.encode()) % ranks


def _merged(body: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """A request's body with the fields of `DecodeRequest.extra`; mappings in both are merged."""
    result = {**body}
    for name, value in extra.items():
        present = result.get(name)
        result[name] = {**present, **value} if isinstance(present, dict) else value
    return result
