"""HTTP with a server that decodes: JSON in, JSON or events out, every failure as an error of pasta_async."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import re
import urllib.request
from collections import deque
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Self, TypeVar, cast

import anyio
import httpx
from pydantic import BaseModel, ValidationError

from pasta_async.errors import (
    BackendConnectError,
    BackendError,
    BackendProtocolError,
    BackendStatusError,
    BackendTimeoutError,
    BackendTransportError,
    InvalidRequestError,
    InvalidStateError,
)

_Form = TypeVar("_Form", bound=BaseModel)

DEFAULT_TIMEOUT = httpx.Timeout(10.0, read=300.0, write=60.0, pool=None)
"""Seconds to connect, between two tokens (a busy server queues), to send, and for a free connection."""

SHORT_READ = 30.0
"""Seconds that a server may take over anything but decoding: telling what it is, aborting."""

KEEPALIVE = 2.0
"""Seconds that an idle connection is kept: servers close it after 5, maybe just as it is used again."""

DRAIN_SECONDS = 1.0
"""Seconds to read the rest of a stream before its connection is closed."""


def http_client(url: str, **options: Any) -> httpx.AsyncClient:
    """An httpx client with the environment's proxies (`InvalidRequestError`: they cannot be used).

    A loopback server is never asked through a proxy. The options are those of `httpx.AsyncClient`.
    """
    try:
        return httpx.AsyncClient(trust_env=not _is_loopback(url), **options)
    except (ImportError, httpx.InvalidURL, ValueError) as error:
        names = [name for name, value in os.environ.items() if name.lower().endswith("_proxy") and value]
        raise InvalidRequestError(
            f"the proxy settings in {', '.join(names)} cannot be used: {error}"
        ) from error


class HTTPClient:
    """The connections to a server, and to its workers if it is a router.

    Args:
        kind: Name of the program that serves, for error messages: "SGLang".
        url: Base URL, as for `ServerBackend`.
        api_key: See `ServerBackend`.
        client: See `ServerBackend`.
        timeout: See `ServerBackend`.

    Raises:
        InvalidRequestError: The URL is not that of an HTTP server, the key cannot be sent, or the proxy
            settings of the environment cannot be used.
    """

    def __init__(
        self,
        kind: str,
        url: str,
        api_key: str | None = None,
        client: httpx.AsyncClient | None = None,
        timeout: httpx.Timeout | float = DEFAULT_TIMEOUT,
    ) -> None:
        self.kind: str = kind
        self.url: str = _checked_url(url, kind)
        if api_key and not re.fullmatch(r"[!-~]+", api_key):
            raise InvalidRequestError("api_key: a header cannot hold it; does it end with a line break?")
        self.headers: dict[str, str] = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = httpx.Timeout(timeout)
        self._short_timeout = httpx.Timeout(timeout)
        self._short_timeout.read = min(self._timeout.read or SHORT_READ, SHORT_READ)
        self._is_own = client is None
        self._through = "" if client else _proxy_note(self.url)
        # Requests wait for their turn in the client and on the server, never for a connection.
        self._new_client = partial(http_client, url, limits=httpx.Limits(keepalive_expiry=KEEPALIVE))
        self._client = client or self._new_client()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: AsyncGenerator[None] | None = None
        self._waits: set[anyio.CancelScope] = set()
        self._closed = False

    async def _connected(self) -> httpx.AsyncClient:
        """The httpx client of the running event loop: connections belong to the loop that opened them."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return self._client
        # A caller's client cannot be opened again; one of our own is made anew for each event loop.
        if not self._is_own and (self._loop or self._client.is_closed):
            raise InvalidStateError(
                "the httpx client was closed, or belongs to another event loop: pass one of this loop"
            )
        if self._is_own:
            if self._loop:
                self._client = self._new_client()
            # `asyncio.run` ends the async generators that are left before it closes the loop.
            self._open = _open_in_this_loop(self._client)
            await anext(self._open)
        self._loop = loop
        return self._client

    async def text(self, url: str, body: Any = None) -> str:
        """The text that a URL replies; a body is posted as JSON."""
        return (await self._send(url, body)).text

    async def _send(self, url: str, body: Any) -> httpx.Response:
        method = "GET" if body is None else "POST"
        with self.waiting(url):
            client = await self._connected()
            response = await client.request(
                method, url, json=body, headers=self.headers, timeout=self._short_timeout
            )
        if not response.is_success:
            raise self._refusal(response, url)
        return response

    async def ask(self, form: type[_Form], url: str, body: Any = None) -> _Form:
        """The JSON that a URL replies, checked against a pydantic model; a body is posted as JSON."""
        content = (await self._send(url, body)).content
        try:
            return form.model_validate(self.json(content, url) if content.strip() else None)
        except ValidationError as error:
            raise BackendProtocolError(
                f"{url} sent a reply of another form than {self.kind}'s: {error}"
            ) from error

    async def open(self, url: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Events:
        """Post JSON, with further headers, and read events. The caller closes them.

        Raises:
            InvalidRequestError: The body cannot be sent as JSON.
            BackendError: The server refused, or could not be reached.
        """
        headers = {**headers, **self.headers, "Content-Type": "application/json"}
        try:
            content = json.dumps(body).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequestError(f"a request that cannot be sent: {error}") from error
        with self.waiting(url):
            client = await self._connected()
            request = client.build_request(
                "POST", url, content=content, headers=headers, timeout=self._timeout
            )
            response = await client.send(request, stream=True)
            if response.is_success:
                return Events(self, response, url)
            await response.aread()
        raise self._refusal(response, url)

    async def tell(self, url: str, body: Any) -> None:
        """Post JSON and ignore failures. Works while the backend is being closed, too."""
        client = await self._connected()
        with suppress(httpx.HTTPError):
            await client.post(url, json=body, headers=self.headers, timeout=self._short_timeout)

    @contextmanager
    def waiting(self, url: str) -> Generator[None]:
        """A wait for the server: failures become errors of pasta_async, and `interrupt` ends it."""
        self.check_open()
        with anyio.CancelScope() as scope:
            self._waits.add(scope)
            try:
                yield
            except httpx.RequestError as error:
                raise self._transport_error(error, url) from error
            finally:
                self._waits.discard(scope)
        if scope.cancelled_caught:
            self.check_open()

    def check_open(self) -> None:
        """Raise `BackendError` once the backend was closed."""
        if self._closed:
            raise BackendError(f"{self.url}: the backend is closed")

    def interrupt(self) -> None:
        """End every wait with an error, and let no other begin."""
        self._closed = True
        for scope in self._waits:
            scope.cancel()

    async def aclose(self) -> None:
        """Close the connections, unless the httpx client is the caller's."""
        self.interrupt()
        if self._open:
            await self._open.aclose()

    def _transport_error(self, error: httpx.RequestError, url: str) -> BackendTransportError:
        where = url + self._through
        why = str(error) or type(error).__name__
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError):
            return BackendConnectError(
                f"nothing answers at {where} ({why}). Is the {self.kind} server running, is the URL right?"
            )
        if isinstance(error, httpx.TimeoutException):
            return BackendTimeoutError(f"{where} sent nothing for too long ({why})")
        return BackendTransportError(f"the connection to {where} broke off ({why})")

    def _refusal(self, response: httpx.Response, url: str) -> BackendStatusError:
        """The error for a response whose status is not a success."""
        status = response.status_code
        hint = " (pass api_key=)" if status in (401, 403) else ""
        return BackendStatusError(
            f"{url}{self._through} answered {status}{hint}: {_excerpt(response.text)}",
            status=status,
            retry_after=retry_seconds(response),
        )

    def json(self, content: bytes, url: str) -> Any:
        """The JSON that a server sent."""
        try:
            return json.loads(content)
        except ValueError as error:
            text = content.decode(errors="replace")
            raise BackendProtocolError(f"{url}{self._through} sent no JSON but {_excerpt(text)}") from error


async def _open_in_this_loop(client: httpx.AsyncClient) -> AsyncGenerator[None]:
    """Keeps a client open until it is closed, or the event loop ends."""
    async with client:
        yield


class Events:
    """The events of a reply as JSON: those of a stream up to ``[DONE]``, or a plain reply as the only one."""

    def __init__(self, http: HTTPClient, response: httpx.Response, url: str) -> None:
        self._http = http
        self._response = response
        self._url = url
        self._is_stream = "text/event-stream" in response.headers.get("content-type", "")
        self._chunks = response.aiter_bytes()
        self._lines = deque[bytes]()
        self._rest = b""  # the beginning of a line that is not complete yet
        self._is_over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        """The next object. Cancelling breaks the connection off.

        Raises:
            BackendError: An error event, a stream that broke off, or something that is no JSON.
        """
        if self._is_over:
            raise StopAsyncIteration
        if not self._is_stream:
            self._is_over = True
            with self._http.waiting(self._url):
                content = await self._response.aread()
            return self._http.json(content, self._url)
        while not (line := await self._next_line()).startswith(b"data:"):
            pass  # an empty line, or a comment that keeps the connection open
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            self._is_over = True
            raise StopAsyncIteration
        event = self._http.json(data, self._url)
        if isinstance(event, dict) and (error := cast("dict[str, Any]", event).get("error")):
            # Servers send an object with a number as its code; routers also send words.
            code = cast("dict[str, Any]", error).get("code") if isinstance(error, dict) else None
            status = code if isinstance(code, int) else 500
            raise BackendStatusError(f"{self._url} broke off with {error}", status=status)
        return cast("Any", event)

    async def _next_line(self) -> bytes:
        # Not `aiter_lines` of httpx: it ends lines at U+2028, too, which JSON may hold.
        with self._http.waiting(self._url):
            while not self._lines:
                chunk = await anext(self._chunks, None)
                if chunk is None:
                    raise BackendProtocolError(f"the stream from {self._url} ended without [DONE]")
                *lines, self._rest = (self._rest + chunk).split(b"\n")
                self._lines.extend(lines)
        return self._lines.popleft()

    async def break_off(self) -> None:
        """Close the connection at once."""
        await self._response.aclose()

    async def aclose(self) -> None:
        """Give the connection back once everything is read, or close it if that takes longer than a second.

        The end of an aborted request's stream shows that the server has stopped working on it.
        """
        # RuntimeError: it is closed already, or a task that reads it is just being woken.
        with anyio.move_on_after(DRAIN_SECONDS), suppress(httpx.HTTPError, RuntimeError):
            async for _ in self._chunks:
                pass
        await self._response.aclose()


def retry_seconds(response: httpx.Response) -> float | None:
    """Seconds after which a server wants to be asked again; None if it gives none, or a date."""
    header = response.headers.get("retry-after", "")
    return float(header) if re.fullmatch(r"\d{1,9}(\.\d+)?", header) else None


def _excerpt(text: str) -> str:
    """The beginning of a reply, on one line, for an error message."""
    text = " ".join(text.split())
    return (text[:300] + "..." if len(text) > 300 else text) or "nothing"


def _checked_url(url: str, kind: str) -> str:
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError, ValueError) as error:
        raise InvalidRequestError(f"{url!r} is no URL: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise InvalidRequestError(
            f"{url!r} is no URL of a server of {kind}; expected something like http://127.0.0.1:30000"
        )
    if parsed.userinfo:
        raise InvalidRequestError(
            f"the URL of the server at {parsed.host} holds a name or password, which messages would show; "
            "pass client=, with auth= of httpx"
        )
    if parsed.query or parsed.fragment:
        raise InvalidRequestError(f"{url!r} has a query or a fragment; give the server's base URL")
    return str(parsed).rstrip("/")


def _is_loopback(url: str) -> bool:
    host = httpx.URL(url).host
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _proxy_note(url: str) -> str:
    """A note for errors where a server is asked through a proxy: it may be the proxy that fails."""
    parsed = httpx.URL(url)
    proxies = urllib.request.getproxies()
    used = parsed.scheme if parsed.scheme in proxies else "all"
    if _is_loopback(url) or used not in proxies or urllib.request.proxy_bypass(parsed.host):
        return ""
    return f" (through the proxy of {used.upper()}_PROXY)"
