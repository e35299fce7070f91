"""HTTP with SGLang servers: JSON in, JSON or events out, every failure as an error of pasta_async."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import AsyncGenerator, Generator, Mapping, Sized
from contextlib import aclosing, contextmanager, suppress
from typing import Any, TypeVar, cast

import anyio
import httpx
from pydantic import BaseModel

from pasta_async.backends.guard import replace_texts
from pasta_async.backends.sglang.replies import read
from pasta_async.errors import (
    BackendConnectError,
    BackendError,
    BackendProtocolError,
    BackendStatusError,
    BackendTimeoutError,
    BackendTransportError,
    InvalidRequestError,
    PastaError,
)

_Form = TypeVar("_Form", bound=BaseModel)

DEFAULT_TIMEOUT = httpx.Timeout(10.0, read=300.0, write=60.0, pool=None)
"""Seconds to connect, between two tokens (a busy server queues), to send, and for a free connection."""

SHORT_READ = 30.0
"""Seconds that a server may take over anything but decoding: telling what it is, encoding, aborting."""

KEEPALIVE = 2.0
"""Seconds an idle connection is kept; below the 5 s after which the server closes it under our hands."""

DRAIN_SECONDS = 1.0
"""How long the rest of a stream is read before its connection is closed."""

SPARE_CONNECTIONS = 8
"""Connections beside those of decoding requests: aborts and tokenizing must not wait for an answer to end."""

MAX_REPLY = 64 * 2**20
"""Bytes of one event, or of one reply; more than this is no answer of a language model."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class Connections:
    """The HTTP connections of a backend, to one server or to several.

    Its arguments are those of `SGLangBackend`.
    """

    def __init__(
        self,
        api_key: str | None,
        client: httpx.AsyncClient | None,
        timeout: httpx.Timeout | float,
        max_connections: int,
    ) -> None:
        self._key = api_key
        self.headers: dict[str, str] = {"Accept-Encoding": "identity"}  # or a byte could become a thousand
        if api_key:
            self.headers["Authorization"] = f"Bearer {api_key}"
        self.timeout: httpx.Timeout = httpx.Timeout(timeout)
        self.short_timeout: httpx.Timeout = httpx.Timeout(**self.timeout.as_dict())
        self.short_timeout.read = min(self.timeout.read or SHORT_READ, SHORT_READ)
        self._owned = client is None
        count = max_connections + SPARE_CONNECTIONS
        self.client: httpx.AsyncClient = client or httpx.AsyncClient(
            # No limit: the client's slots are one, and requests whose readers are behind hold none of these.
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=count, keepalive_expiry=KEEPALIVE
            )
        )
        self._waits: set[anyio.CancelScope] = set()
        self._closed = False

    @contextmanager
    def waiting(self, where: str) -> Generator[None]:
        """Wait for a server: failures become errors of pasta_async, and `interrupt` ends the wait."""
        if not self._closed and not self.client.is_closed:
            with anyio.CancelScope() as scope:
                self._waits.add(scope)
                try:
                    yield
                except httpx.RequestError as error:
                    raise _transport_error(error, where) from error
                finally:
                    self._waits.discard(scope)
            if not scope.cancelled_caught:
                return
        raise BackendError(f"{where}: the backend is closed")

    @contextmanager
    def key_hidden(self) -> Generator[None]:
        """No error quotes the key, not even where it quotes a server that repeats it."""
        try:
            yield
        except PastaError as error:
            if self._key:
                error.args = tuple(str(said).replace(self._key, "***") for said in error.args)
            raise

    def interrupt(self) -> None:
        """End every wait with an error, and let no other begin."""
        self._closed = True
        for scope in self._waits:
            scope.cancel()

    async def aclose(self) -> None:
        """Close the connections, unless the client was given to us."""
        if self._owned:
            await self.client.aclose()


class Server:
    """An SGLang server at a base URL, a path included where it has one.

    Raises:
        InvalidRequestError: The URL is none of an HTTP server.
    """

    def __init__(self, url: str, connections: Connections) -> None:
        self.url: str = _checked_url(url)
        self.connections: Connections = connections

    async def send(self, path: str, body: Any = None) -> Any:
        """Get a path, or post JSON to it; the JSON that comes back (None for an empty reply)."""
        request = self._request(path, body, self.connections.short_timeout)
        where = str(request.url)
        with self.connections.waiting(where):
            content = await _read(await self.connections.client.send(request, stream=True), where)
        return _json(content, where) if content.strip() else None

    async def ask(self, form: type[_Form], path: str, body: Any = None) -> _Form:
        """What a path says, to a body if there is one, in the form that it must have."""
        return read(form, await self.send(path, body), f"{self.url}{path}: a reply")

    def check_count(self, path: str, found: Sized, asked: Sized) -> None:
        """Raise `BackendProtocolError` where a path did not answer everything that it was asked."""
        if len(found) != len(asked):
            raise BackendProtocolError(f"{self.url}{path} answered {len(found)} of {len(asked)} inputs")

    async def decode(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> EventStream | dict[str, Any]:
        """Post JSON, with further headers, where the server decodes an answer, which may take long.

        The object that comes back; where the body has a true `stream`, events, which the caller closes.
        """
        request = self._request(path, body, self.connections.timeout, headers)
        where = str(request.url)
        with self.connections.waiting(where):
            response = await self.connections.client.send(request, stream=True)
            has_events = "text/event-stream" in response.headers.get("content-type", "")
            if body["stream"] and response.is_success and has_events:
                return EventStream(response, where, self.connections)
            content = await _read(response, where)
        if body["stream"]:
            said = _excerpt(content.decode(errors="replace"))
            raise BackendProtocolError(f"{where} sent no event stream but {said}")
        return _expect_object(_json(content, where), where)

    async def abort(self, request_id: str) -> None:
        """Ask for a request's end. Closing its connection asks again, so no failure matters here."""
        request = self._request("/abort_request", {"rid": request_id}, self.connections.short_timeout)
        with suppress(httpx.HTTPError, BackendError):
            await _read(await self.connections.client.send(request, stream=True), str(request.url))

    def _request(
        self, path: str, body: Any, timeout: httpx.Timeout, headers: Mapping[str, str] | None = None
    ) -> httpx.Request:
        own = self.connections
        method = "GET" if body is None else "POST"
        headers = {**(headers or {}), **own.headers}
        try:
            return own.client.build_request(
                method, self.url + path, json=body, headers=headers, timeout=timeout
            )
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequestError(f"a request that cannot be sent: {error}") from error


class EventStream:
    """The events of one request, as JSON objects, up to ``[DONE]``: one line of `data` for each."""

    def __init__(self, response: httpx.Response, where: str, connections: Connections) -> None:
        self._response = response
        self._where = where
        self._connections = connections
        self._chunks = _chunks(response, where)
        self._lines = deque[bytes]()
        self._tail = bytearray()  # a line whose end is still to come

    async def next(self) -> dict[str, Any] | None:
        """The next event, or None at the end. Cancelling breaks the connection off.

        Raises:
            BackendError: An error event, a stream that broke off, or an event that is no JSON.
        """
        while not (line := await self._next_line()).startswith(b"data:"):
            pass  # an empty line, or a comment that keeps the connection open
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            return None
        event = _expect_object(_json(data, self._where), self._where)
        if "error" in event:
            raise _status_error(event["error"], self._where)
        return event

    async def _next_line(self) -> bytes:
        # Not `aiter_lines` of httpx: it ends lines at U+2028, too, which JSON may hold.
        with self._connections.waiting(self._where):
            while not self._lines:
                chunk = await anext(self._chunks, None)
                if chunk is None:
                    raise BackendProtocolError(f"the stream from {self._where} ended without [DONE]")
                *ends, begun = chunk.split(b"\n")
                if ends:
                    self._lines.append(bytes(self._tail) + ends[0])
                    self._lines.extend(ends[1:])
                    self._tail.clear()
                self._tail += begun
                _check_size(len(self._tail), self._where)
        return self._lines.popleft()

    async def aclose(self) -> None:
        """Give the connection back once everything is read, or close it if that takes longer than a second.

        Reading to the end also tells that a request is over that was aborted.
        """
        # RuntimeError: it is closed already, or somebody is being woken who still reads.
        with anyio.move_on_after(DRAIN_SECONDS), suppress(httpx.HTTPError, RuntimeError):
            async for _ in self._chunks:
                pass
        await self._response.aclose()


async def _chunks(response: httpx.Response, where: str) -> AsyncGenerator[bytes, None]:
    """The bytes of a response, which must not be compressed: nobody asked for that."""
    if (encoding := response.headers.get("content-encoding", "identity")) != "identity":
        raise BackendProtocolError(f"{where} sent a reply in the encoding {_excerpt(encoding)}")
    async for chunk in response.aiter_bytes():
        yield chunk


async def _read(response: httpx.Response, where: str) -> bytes:
    """All of a response, which is then closed; an error where it is one."""
    content = bytearray()
    try:
        async with aclosing(_chunks(response, where)) as chunks:
            async for chunk in chunks:
                content += chunk
                _check_size(len(content), where)
    finally:
        await response.aclose()
    if not response.is_success:
        raise _refusal(response, content, where)
    return bytes(content)


def _check_size(size: int, where: str) -> None:
    if size > MAX_REPLY:
        raise BackendProtocolError(f"{where} sent more than {MAX_REPLY} bytes at once")


def _transport_error(error: httpx.RequestError, where: str) -> BackendTransportError:
    why = str(error) or type(error).__name__
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return BackendConnectError(
            f"nothing answers at {where} ({why}). Is the server running, is the URL right? "
            "`pasta-async sglang MODEL` starts one."
        )
    if isinstance(error, httpx.TimeoutException):
        return BackendTimeoutError(f"{where} sent nothing for too long ({why})")
    return BackendTransportError(f"the connection to {where} broke off ({why})")


def _checked_url(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError, ValueError) as error:
        raise InvalidRequestError(f"{url!r} is no URL: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise InvalidRequestError(
            f"{url!r} is no URL of an SGLang server; expected something like http://127.0.0.1:30000"
        )
    if parsed.userinfo:
        raise InvalidRequestError(
            f"the URL of the server at {parsed.host} holds a name or password, which messages would show; "
            "pass client=, with auth= of httpx"
        )
    if parsed.query or parsed.fragment:
        raise InvalidRequestError(f"{url!r} has a query or a fragment; give the server's base URL")
    return str(parsed).rstrip("/")


def _refusal(response: httpx.Response, content: bytearray, where: str) -> BackendStatusError:
    try:
        detail: Any = json.loads(content)
    except (ValueError, RecursionError):
        detail = content.decode(errors="replace")
    if isinstance(detail, dict):
        detail = cast("dict[str, Any]", detail).get("error", detail)
    return _status_error(detail, where, response)


def _status_error(detail: Any, where: str, response: httpx.Response | None = None) -> BackendStatusError:
    """The error for what a server said went wrong, in JSON or text, as its response or within one."""
    code: Any = None
    if isinstance(detail, dict):
        fields = cast("dict[str, Any]", detail)
        code, detail = fields.get("code"), fields.get("message", fields)
    status = response.status_code if response else code if isinstance(code, int) else 500
    hint = " (pass api_key=)" if status in (401, 403) else ""
    message = f"{where} answered {status}{hint}: {_excerpt(str(detail))}"
    retry_after = _seconds(response.headers.get("retry-after")) if response else None
    return BackendStatusError(message, status=status, retry_after=retry_after)


def _seconds(retry_after: str | None) -> float | None:
    try:
        seconds = float(retry_after or "")
    except ValueError:
        return None  # a date, or nothing: the usual delay serves
    return seconds if 0 <= seconds < float("inf") else None


def _json(content: bytes, where: str) -> Any:
    """What JSON says; a lone surrogate in it, which could not be written anywhere, becomes U+FFFD."""
    try:
        text = content.decode()
        value = json.loads(text)
        return replace_texts(value, _without_surrogates) if _SURROGATE.search(text) else value
    except (ValueError, RecursionError) as error:
        said = _excerpt(repr(content[:400]))
        raise BackendProtocolError(f"{where} sent no usable JSON but {said}") from error


def _without_surrogates(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _expect_object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BackendProtocolError(f"{where} sent no JSON object but {_excerpt(repr(value))}")
    return cast("dict[str, Any]", value)


def _excerpt(text: str) -> str:
    text = " ".join(text.split())
    return (text[:300] + "..." if len(text) > 300 else text) or "nothing"
