"""HTTP with SGLang servers: JSON in, JSON or events out, every failure as an error of pasta_async."""

from __future__ import annotations

import json
import re
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

import anyio
import httpx

from pasta_async.backends.guard import replace_texts
from pasta_async.errors import (
    BackendConnectError,
    BackendError,
    BackendProtocolError,
    BackendStatusError,
    BackendTimeoutError,
    BackendTransportError,
    InvalidRequestError,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

__all__ = ["DEFAULT_TIMEOUT", "Connections", "EventStream", "SSEDecoder", "Server"]

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

MAX_EVENT = 64 * 2**20
"""Bytes of one event; more than this is no answer of a language model."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class Connections:
    """The HTTP connections of a backend, to one server or to several.

    Args:
        api_key: Sent as a bearer token.
        client: The client to use, which is then not closed here; None makes one.
        timeout: For decoding; whatever else a server does may take no longer than `SHORT_READ`.
        max_connections: Requests that decode at the same time.
    """

    def __init__(
        self,
        *,
        api_key: str | None,
        client: httpx.AsyncClient | None,
        timeout: httpx.Timeout | float,
        max_connections: int,
    ) -> None:
        self.headers = {"Content-Type": "application/json"}
        if api_key:
            self.headers["Authorization"] = f"Bearer {api_key}"
        self.timeout = httpx.Timeout(timeout)
        read = self.timeout.read
        short = SHORT_READ if read is None else min(read, SHORT_READ)
        self.short_timeout = _with_read(self.timeout, short)
        self._owned = client is None
        count = max_connections + SPARE_CONNECTIONS
        self.client = client or httpx.AsyncClient(
            limits=httpx.Limits(
                max_connections=count, max_keepalive_connections=count, keepalive_expiry=KEEPALIVE
            ),
        )
        self._waits: set[anyio.CancelScope] = set()
        self._closed = False

    @contextmanager
    def waiting(self, where: str) -> Generator[None]:
        """Wait for a server: failures become errors of pasta_async, and `interrupt` ends the wait."""
        if self._closed or self.client.is_closed:
            raise _closed(where)
        with anyio.CancelScope() as scope, _translated(where):
            self._waits.add(scope)
            try:
                yield
            finally:
                self._waits.discard(scope)
        if scope.cancelled_caught:
            raise _closed(where)

    def interrupt(self) -> None:
        """End every wait with an error, and let no other begin."""
        self._closed = True
        for scope in self._waits:
            scope.cancel()

    async def aclose(self) -> None:
        """Close the connections, unless the client was given to us."""
        self.interrupt()
        if self._owned:
            await self.client.aclose()


class Server:
    """An SGLang server at a URL.

    Args:
        url: Its base, a path included where it has one.
        connections: What it is reached by.

    Raises:
        InvalidRequestError: The URL is none of an HTTP server.
    """

    def __init__(self, url: str, connections: Connections) -> None:
        self.url: str = _checked_url(url)
        self._connections = connections

    def at(self, url: str) -> Server:
        """Another server, reached by the same connections."""
        return Server(url, self._connections)

    async def get(self, path: str) -> dict[str, Any]:
        """The JSON object at a path."""
        request = self._request("GET", path, None)
        return _expect_object(await self._answer(request), f"{self.url}{path}")

    async def post(
        self, path: str, body: Any, headers: Mapping[str, str] | None = None, *, decodes: bool = False
    ) -> Any:
        """Post JSON, with further headers; the JSON that comes back (None for an empty body).

        Args:
            path: Where to.
            body: What can be written as JSON.
            headers: Sent along.
            decodes: Whether the server decodes an answer, which may take longer than anything else.
        """
        return await self._answer(self._request("POST", path, body, headers, decodes=decodes))

    async def stream(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> EventStream:
        """Post JSON; the server-sent events that come back. The caller closes the stream."""
        request = self._request("POST", path, body, headers, decodes=True)
        where = str(request.url)
        with self._connections.waiting(where):
            response = await self._connections.client.send(request, stream=True)
            if response.is_success and "text/event-stream" in response.headers.get("content-type", ""):
                return EventStream(response, where, self._connections)
            try:
                await response.aread()
            finally:
                await response.aclose()
        _raise_for_status(response, where)
        raise BackendProtocolError(f"{where} sent no event stream but {_excerpt(response.text)}")

    async def abort(self, request_id: str) -> None:
        """Ask for a request's end. Closing its connection asks again, so no failure matters here."""
        with suppress(httpx.HTTPError):
            await self._connections.client.send(self._request("POST", "/abort_request", {"rid": request_id}))

    async def _answer(self, request: httpx.Request) -> Any:
        where = str(request.url)
        with self._connections.waiting(where):
            response = await self._connections.client.send(request)
        _raise_for_status(response, where)
        return _json(response.content, where) if response.content.strip() else None

    def _request(
        self,
        method: str,
        path: str,
        body: Any,
        headers: Mapping[str, str] | None = None,
        *,
        decodes: bool = False,
    ) -> httpx.Request:
        own = self._connections
        try:
            content = None if body is None else json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
            return own.client.build_request(
                method,
                f"{self.url}{path}",
                content=content,
                headers={**(headers or {}), **own.headers},
                timeout=own.timeout if decodes else own.short_timeout,
            )
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequestError(f"a request that cannot be sent: {error}") from error


class EventStream:
    """The events of one request, as JSON objects, up to ``[DONE]``."""

    def __init__(self, response: httpx.Response, where: str, connections: Connections) -> None:
        self._response = response
        self._where = where
        self._connections = connections
        self._chunks = response.aiter_bytes()
        self._decoder = SSEDecoder()
        self._ready: deque[str] = deque()

    async def next(self) -> dict[str, Any] | None:
        """The next event, or None at the end. Cancelling breaks the connection off.

        Raises:
            BackendError: An error event, a stream that broke off, or an event that is no JSON.
        """
        with self._connections.waiting(self._where):
            while not self._ready:
                chunk = await anext(self._chunks, None)
                if chunk is None:
                    raise BackendProtocolError(f"the stream from {self._where} ended without [DONE]")
                self._ready.extend(self._decoder.feed(chunk))
        data = self._ready.popleft()
        if data == "[DONE]":
            return None
        event = _expect_object(_json(data, self._where), self._where)
        if "error" in event:
            raise _status_error(event["error"], self._where)
        return event

    async def aclose(self) -> None:
        """Give the connection back once everything is read, or close it if that takes longer than a second.

        Reading to the end also tells that a request is over that was aborted.
        """
        # RuntimeError: it is closed already, or somebody is being woken who still reads.
        with anyio.move_on_after(DRAIN_SECONDS), suppress(httpx.HTTPError, RuntimeError):
            async for _ in self._chunks:
                pass
        await self._response.aclose()


class SSEDecoder:
    r"""Collects the data of server-sent events (WHATWG HTML, section 9.2), whatever the split into chunks.

    Lines end with ``\n``, ``\r\n`` or ``\r``, and with nothing else: httpx ends them at U+2028, too, which
    JSON may hold. An empty line ends an event; comments and the fields other than ``data`` mean nothing here.
    A last event without its empty line is dropped.
    """

    def __init__(self) -> None:
        self._tail = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[str]:
        """Data of the events that `chunk` completes.

        Raises:
            ValueError: The event is not UTF-8, or larger than `MAX_EVENT` bytes.
        """
        text = self._tail + chunk
        # A \r at the very end may be half of a \r\n: it waits for the next chunk.
        end = len(text) - 1 if text.endswith(b"\r") else len(text)
        lines = text[:end].replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._tail = lines.pop() + text[end:]
        events: list[str] = []
        for line in lines:
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data).decode())
                self._data = []
        if len(self._tail) + sum(map(len, self._data)) > MAX_EVENT:
            raise ValueError(f"an event of more than {MAX_EVENT} bytes")
        return events


def _with_read(timeout: httpx.Timeout, read: float) -> httpx.Timeout:
    return httpx.Timeout(connect=timeout.connect, read=read, write=timeout.write, pool=timeout.pool)


def _closed(where: str) -> BackendError:
    return BackendError(f"{where}: the backend is closed")


@contextmanager
def _translated(where: str) -> Generator[None]:
    """Failures of httpx, and of reading what it brought, as errors of pasta_async."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise BackendConnectError(
            f"nothing answers at {where} ({error or type(error).__name__}). Is the server running, is the "
            "URL right? `pasta-async sglang MODEL` starts one."
        ) from error
    except httpx.TimeoutException as error:
        raise BackendTimeoutError(f"{where} sent nothing for too long ({type(error).__name__})") from error
    except httpx.RequestError as error:
        raise BackendTransportError(
            f"the connection to {where} broke off ({error or type(error).__name__})"
        ) from error
    except ValueError as error:
        raise BackendProtocolError(f"{where} sent something malformed: {error}") from error


def _checked_url(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError) as error:
        raise InvalidRequestError(f"{url!r} is no URL: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise InvalidRequestError(
            f"{url!r} is no URL of an SGLang server; expected something like http://127.0.0.1:30000"
        )
    if parsed.query or parsed.fragment:
        raise InvalidRequestError(f"{url!r} has a query or a fragment; give the server's base URL")
    return str(parsed).rstrip("/")


def _raise_for_status(response: httpx.Response, where: str) -> None:
    if response.is_success:
        return
    try:
        detail: Any = response.json()
    except (ValueError, RecursionError):
        detail = response.text
    if isinstance(detail, dict):
        detail = cast("dict[str, Any]", detail).get("error", detail)
    raise _status_error(detail, where, response.status_code, response.headers.get("retry-after"))


def _status_error(
    detail: Any, where: str, status: int | None = None, retry_after: str | None = None
) -> BackendStatusError:
    """The error for what a server said went wrong; `detail` is its JSON or text."""
    code: Any = None
    if isinstance(detail, dict):
        fields = cast("dict[str, Any]", detail)
        code, detail = fields.get("code"), fields.get("message", fields)
    if status is None:
        status = code if isinstance(code, int) else 500
    hint = " (pass api_key=)" if status in (401, 403) else ""
    message = f"{where} answered {status}{hint}: {_excerpt(str(detail))}"
    return BackendStatusError(message, status=status, retry_after=_seconds(retry_after))


def _seconds(retry_after: str | None) -> float | None:
    try:
        seconds = float(retry_after or "")
    except ValueError:
        return None  # a date, or nothing: the usual delay serves
    return seconds if 0 <= seconds < float("inf") else None


def _json(content: str | bytes, where: str) -> Any:
    """What JSON says; a lone surrogate in it, which could not be written anywhere, becomes U+FFFD."""
    try:
        text = content if isinstance(content, str) else content.decode()
        value = json.loads(text)
        return replace_texts(value, _without_surrogates) if _SURROGATE.search(text) else value
    except (ValueError, RecursionError) as error:
        raise BackendProtocolError(
            f"{where} sent no usable JSON but {_excerpt(repr(content[:400]))}"
        ) from error


def _without_surrogates(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _expect_object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BackendProtocolError(f"{where} sent no JSON object but {_excerpt(repr(value))}")
    return cast("dict[str, Any]", value)


def _excerpt(text: str, limit: int = 300) -> str:
    text = " ".join(text.split())
    return (text[:limit] + "..." if len(text) > limit else text) or "nothing"
