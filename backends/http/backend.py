"""A server over HTTP as a backend: everything that SGLang and vLLM have in common.

Each request is sent once; the client retries (`Limits.retries`).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar, Generic, TypedDict, TypeVar

import anyio
import httpx

from pasta_async.backends.http.client import DEFAULT_TIMEOUT, Events, HTTPClient
from pasta_async.clock import wait_out
from pasta_async.errors import (
    BackendConnectError,
    BackendError,
    BackendProtocolError,
    BackendStatusError,
    BackendTimeoutError,
    InvalidRequestError,
    InvalidStateError,
)
from pasta_async.load import EngineLoad
from pasta_async.protocol import DecodeRequest, Model, Piece

ABORT_SECONDS = 5.0
"""Seconds that the abort of a cancelled request may take before its cancellation goes on regardless."""

FRESH_SECONDS = 0.25
"""Seconds for which a reading of the load, or its failure, is used again. No server is asked more often."""

WAIT_SECONDS = 0.5
"""Seconds that a reading may take: an answer waits for it, and then goes on without it."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A server's model; subclasses add the settings of the server that change a request."""

    model: Model


class ServerOptions(TypedDict, total=False):
    """Options of every backend for a server; `ServerBackend` says what they mean."""

    api_key: str | None
    client: httpx.AsyncClient | None
    timeout: httpx.Timeout | float
    tokenizer: str | Path | None


_Served = TypeVar("_Served", bound=ServedModel)


class Call(ABC):
    """A request on the server: what is sent, how its events are read, and its end."""

    def __init__(self, url: str, body: dict[str, Any], headers: Mapping[str, str]) -> None:
        self.url: str = url
        self.body: dict[str, Any] = body
        self.headers: Mapping[str, str] = headers
        self.events: Events | None = None
        self.is_over = False
        """True once the server works on the request no more: there is nothing to abort."""
        self._ending: asyncio.Task[None] | None = None

    @abstractmethod
    def pieces(self, event: Mapping[str, Any]) -> Iterable[Piece]:
        """The pieces that an event completes.

        Raises:
            BackendStatusError: The event says that the server gave the request up.
            LookupError, TypeError, ValueError, AttributeError: It has not the form of the server's events.
        """

    @abstractmethod
    async def abort(self) -> None:
        """Have the server end the request early. A failure is ignored."""

    async def end(self) -> None:
        """Abort the request, unless it is over, and close its connection.

        A task of its own does that once. It is done when this returns, however often the caller is cancelled.
        """
        self._ending = self._ending or asyncio.create_task(self._end())
        if cancelled := await wait_out(self._ending.done, partial(asyncio.wait, [self._ending])):
            raise cancelled

    async def _end(self) -> None:
        if not self.is_over:
            with anyio.move_on_after(ABORT_SECONDS):
                await self.abort()
        if self.events:
            with anyio.move_on_after(ABORT_SECONDS):
                await self.events.aclose()


class ServerBackend(ABC, Generic[_Served]):
    """A server, reached over HTTP.

    Text is encoded and decoded here, by the model's own tokenizer, which is found in `tokenizer`, or else in
    the folder that the server loaded, if that is on this machine, or else on the Hugging Face hub by the name
    that the server was started with.

    Args:
        url: Base URL of the server, a path included where it has one.
        api_key: Sent as a bearer token.
        client: An `httpx.AsyncClient` to use. It is not closed here; its pool must hold a
            connection for each request at a time.
        timeout: Seconds, or an `httpx.Timeout`; its `read` is the longest wait for a token, queues included.
            Whatever else the server does may take at most 30 seconds.
        tokenizer: The model's tokenizer: a folder, a `tokenizer.json`, or a name on the hub.

    Raises:
        InvalidRequestError: The URL is not that of an HTTP server, the key cannot be sent, or the proxy
            settings of the environment cannot be used.
    """

    kind: ClassVar[str]
    """The name of the program that serves."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        client: httpx.AsyncClient | None = None,
        timeout: httpx.Timeout | float = DEFAULT_TIMEOUT,
        tokenizer: str | Path | None = None,
    ) -> None:
        self._http = HTTPClient(self.kind, url, api_key, client, timeout)
        self._tokenizer = tokenizer
        self._connecting = anyio.Lock()
        self._reading = anyio.Lock()
        self._served: _Served | None = None
        self._open: set[Call] = set()
        self._latest_load: EngineLoad | BackendError | None = None
        self._fresh_until = 0.0

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
            BackendConnectError: Nothing listens there, it is another program, or too old.
            BackendTimeoutError: Something listens, and says nothing.
            BackendStatusError: The server refused, perhaps because `api_key` is missing.
            UnsupportedModelError: There is no tokenizer, or the server has another one, or its model does not
                generate text.
        """
        return (await self._connected()).model

    async def _connected(self) -> _Served:
        async with self._connecting:
            self._http.check_open()
            if self._served is None:
                self._served = await self._learn()
            return self._served

    @abstractmethod
    async def _learn(self) -> _Served:
        """Ask the server what it is; the errors are those of `connect`."""

    @abstractmethod
    def _call(self, request: DecodeRequest, served: _Served) -> Call:
        """The call that sends a request (`InvalidRequestError`: it does not fit the model)."""

    @abstractmethod
    async def _read_load(self) -> EngineLoad:
        """The server's load, asked now (`BackendError`: it could not be learned)."""

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        """Decode a request.

        Closing the generator, or cancelling the task that iterates it, aborts the request on the server and
        closes its connection before it returns, in at most 6 s.

        Raises:
            InvalidRequestError: The ids do not fit the model. Nothing was sent.
            BackendError: The server refused or failed, or the backend was closed.
        """
        call = self._call(request, await self._connected())
        async with self._under_way(call):
            call.events = await self._http.open(call.url, call.body, call.headers)
            async for event in call.events:
                for piece in self._pieces(call, event):
                    call.is_over = piece.finish_reason is not None
                    yield piece
            if not call.is_over:
                raise BackendProtocolError(f"{self.url} ended the stream without a finish reason")

    def _pieces(self, call: Call, event: Any) -> list[Piece]:
        try:
            return [*call.pieces(event)]
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            message = f"{self.url} sent an event of another form than {self.kind}'s ({error!r})"
            raise BackendProtocolError(message) from error

    @asynccontextmanager
    async def _under_way(self, call: Call) -> AsyncGenerator[None]:
        """Keep a request among the open ones; abort it if the block is left before the request is over."""
        self._open.add(call)
        try:
            yield
        except (BackendStatusError, BackendConnectError, InvalidRequestError, InvalidStateError):
            call.is_over = True  # it was refused, or never arrived
            raise
        finally:
            try:
                await call.end()
            finally:
                self._open.discard(call)

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
            await asyncio.gather(*(asyncio.shield(call.end()) for call in self._open))
        finally:
            await self._http.aclose()


def checked_ids(ids: Sequence[int], model: Model) -> list[int]:
    """The ids of a request, if the model can take them: an id outside the vocabulary can crash a server.

    Raises:
        InvalidRequestError: They do not fit the vocabulary, or the context.
    """
    if set(map(type, ids)) - {int} or (ids and not 0 <= min(ids) <= max(ids) < model.vocab_size):
        bad = next(i for i in ids if type(i) is not int or not 0 <= i < model.vocab_size)
        raise InvalidRequestError(f"{bad!r} is no token id of {model.name} (0 to {model.vocab_size - 1})")
    if not 0 < len(ids) < model.context_length:
        raise InvalidRequestError(
            f"a context of {len(ids)} tokens; {model.name} takes 1 to {model.context_length - 1}, "
            f"since prompt and answer share {model.context_length}"
        )
    return list(ids)


def merged(body: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """A request's body with the fields of `DecodeRequest.extra`; mappings in both are merged."""
    for name, value in extra.items():
        present = body.get(name)
        body[name] = {**present, **value} if isinstance(present, dict) else value
    return body
