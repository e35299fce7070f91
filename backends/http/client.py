"""HTTP with a server that decodes: JSON in, JSON or events out, every failure as an error of pasta_async."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing, contextmanager, suppress
from typing import Any, TypeVar, cast

import anyio
import httpx
from pydantic import BaseModel, ValidationError

from pasta_async.backends.options import ServerOptions
from pasta_async.errors import (
    BackendConnectError,
    BackendError,
    BackendProtocolError,
    BackendStatusError,
    BackendTimeoutError,
    BackendTransportError,
    InvalidRequestError,
)

_Form = TypeVar("_Form", bound=BaseModel)

_DEFAULT_TIMEOUT = httpx.Timeout(10.0, read=300.0, write=60.0, pool=None)
"""Seconds to connect, between two tokens (a busy server queues), to send, and for a free connection."""

_SHORT_READ = 30.0
"""Seconds that a server may take over anything but decoding: telling what it is, aborting."""

_KEEPALIVE = 2.0
"""Seconds that an idle connection is kept: servers close it after 5, maybe just as it is used again."""

_DRAIN_SECONDS = 1.0
"""Seconds to read the rest of a stream before its connection is closed."""


def http_client(url: str, **options: Any) -> httpx.AsyncClient:
    """An httpx client with the environment's proxies (`InvalidRequestError`: they cannot be used).

    A loopback server is never asked through a proxy. The options are those of `httpx.AsyncClient`.
    """
    try:
        return httpx.AsyncClient(trust_env=not _is_loopback(url), **options)
    except (ImportError, httpx.InvalidURL, ValueError) as error:
        raise InvalidRequestError(f"the environment's proxy settings cannot be used: {error}") from error


class HTTPClient:
    """The connections to a server, and to its workers if it is a router.

    Args:
        kind: Name of the program that serves, for error messages: "SGLang".
        url: Base URL of the server.
        options: Those of the backend.

    Raises:
        InvalidRequestError: The URL is not that of an HTTP server, or the key cannot be sent.
    """

    def __init__(self, kind: str, url: str, options: ServerOptions) -> None:
        self.kind: str = kind
        self.url: str = _checked_url(url, kind)
        api_key = options.get("api_key")
        if api_key and not re.fullmatch(r"[!-~]+", api_key):
            raise InvalidRequestError("api_key: a header cannot hold it; does it end with a line break?")
        self.headers: dict[str, str] = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = options.get("timeout", _DEFAULT_TIMEOUT)
        if not isinstance(timeout, httpx.Timeout):  # a number is the longest wait for a token alone
            timeout = httpx.Timeout(**{**_DEFAULT_TIMEOUT.as_dict(), "read": timeout})
        self._timeout: httpx.Timeout = timeout
        self._short_timeout = httpx.Timeout(self._timeout)
        self._short_timeout.read = min(self._timeout.read or _SHORT_READ, _SHORT_READ)
        self._given = options.get("client")
        self._own: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: AsyncGenerator[None] | None = None
        self._waits: set[anyio.CancelScope] = set()
        self._closed = False

    async def _connected(self) -> httpx.AsyncClient:
        """The caller's httpx client, or one for the running event loop, to which its connections belong."""
        if self._given:
            return self._given
        loop = asyncio.get_running_loop()
        if self._own is None or self._loop is not loop:
            self._loop = loop
            # Requests wait for their turn in the client and on the server, never for a connection.
            self._own = http_client(self.url, limits=httpx.Limits(keepalive_expiry=_KEEPALIVE))
            # `asyncio.run` ends the async generators that are left before it closes the loop.
            self._open = _open_in_this_loop(self._own)
            await anext(self._open)
        return self._own

    async def text(self, url: str, body: Any = None) -> str:
        """The text that a URL replies; a body is posted as JSON."""
        method = "GET" if body is None else "POST"
        with self.waiting(url):
            client = await self._connected()
            response = await client.request(
                method, url, json=body, headers=self.headers, timeout=self._short_timeout
            )
        if not response.is_success:
            raise self._refusal(response, url)
        return response.text

    async def ask(self, form: type[_Form], url: str, body: Any = None) -> _Form:
        """The JSON that a URL replies, as a pydantic model; a body is posted as JSON."""
        text = await self.text(url, body)
        try:
            return form.model_validate_json(text)
        except ValidationError as error:
            raise BackendProtocolError(f"{url} sent a reply that is not {self.kind}'s: {error}") from error

    async def open(
        self,
        url: str,
        body: Mapping[str, Any],
        headers: Mapping[str, str],
        *,
        is_limited: bool = True,
    ) -> Events:
        """Post JSON, with further headers, and read the reply as it comes. The caller closes it.

        Without `is_limited` the server may take any time for each part of the reply.

        Raises:
            BackendError: The server refused, or could not be reached.
        """
        headers = {**headers, **self.headers}
        with self.waiting(url):
            client = await self._connected()
            timeout = httpx.Timeout(self._timeout)
            if not is_limited:
                timeout.read = None
            request = client.build_request("POST", url, json=body, headers=headers, timeout=timeout)
            response = await client.send(request, stream=True)
            if response.is_success:
                return Events(self, response, url)
            await response.aread()
        raise self._refusal(response, url)

    async def tell(self, url: str, body: Any) -> bool:
        """Post JSON; True if the server took it. Works while the backend is being closed, too."""
        client = await self._connected()
        with suppress(httpx.HTTPError, RuntimeError):  # the second: a loop that ends has closed the client
            reply = await client.post(url, json=body, headers=self.headers, timeout=self._short_timeout)
            return reply.is_success
        return False

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
        if self._open:
            await self._open.aclose()

    def _transport_error(self, error: httpx.RequestError, url: str) -> BackendTransportError:
        why = str(error) or type(error).__name__
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError):
            return BackendConnectError(
                f"nothing answers at {url} ({why}). Is the {self.kind} server running, is the URL right?"
            )
        if isinstance(error, httpx.TimeoutException):
            return BackendTimeoutError(f"{url} took too long ({why})")
        return BackendTransportError(f"the connection to {url} broke off ({why})")

    def _refusal(self, response: httpx.Response, url: str) -> BackendStatusError:
        """The error for a response whose status is not a success."""
        status = response.status_code
        hint = " (pass api_key=)" if status in (401, 403) else ""
        text = " ".join(response.text.split())
        return BackendStatusError(
            f"{url} answered {status}{hint}: {text:.1000}",
            status=status,
            retry_after=_retry_seconds(response),
        )


async def _open_in_this_loop(client: httpx.AsyncClient) -> AsyncGenerator[None]:
    """Keeps a client open until it is closed, or the event loop ends."""
    async with client:
        yield


class Events:
    """A streamed reply: its bytes, or its events up to ``[DONE]``."""

    def __init__(self, http: HTTPClient, response: httpx.Response, url: str) -> None:
        self._http = http
        self._response = response
        self._url = url
        self._chunks = response.aiter_bytes()

    async def chunks(self) -> AsyncGenerator[bytes]:
        """The bytes of the reply, as they come. Cancelling it breaks the connection off.

        Raises:
            BackendError: The connection broke off.
        """
        while True:
            with self._http.waiting(self._url):
                chunk = await anext(self._chunks, None)
            if chunk is None:
                return
            yield chunk

    async def read(self) -> AsyncGenerator[dict[str, Any]]:
        """The events' JSON. Cancelling it breaks the connection off.

        Raises:
            BackendError: An error event, a connection that broke off, or something that is no JSON.
        """
        rest = b""  # the beginning of a line that is not complete yet
        async with aclosing(self.chunks()) as chunks:
            async for chunk in chunks:
                # Not `aiter_lines` of httpx: it ends lines at U+2028, too, which JSON may hold.
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if not line.startswith(b"data:"):
                        continue  # an empty line, or a comment that keeps the connection open
                    data = line.removeprefix(b"data:").strip()
                    if data == b"[DONE]":
                        return
                    yield self._event(data)

    def _event(self, data: bytes) -> dict[str, Any]:
        try:
            event: Any = json.loads(data)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            raise BackendProtocolError(f"{self._url} sent no JSON object but {data[:300]!r}")
        event = cast("dict[str, Any]", event)
        if error := event.get("error"):
            # Servers send an object with a number as its code; routers also send words.
            code = cast("dict[str, Any]", error).get("code") if isinstance(error, dict) else None
            status = code if isinstance(code, int) else 500
            raise BackendStatusError(f"{self._url} broke off with {error}", status=status)
        return event

    async def break_off(self) -> None:
        """Close the connection at once."""
        await self._response.aclose()

    async def aclose(self) -> None:
        """Give the connection back once everything is read, or close it if that takes longer than a second.

        The end of an aborted request's stream shows that the server has stopped working on it.
        """
        # RuntimeError: it is closed already, or a task that reads it is just being woken.
        with anyio.move_on_after(_DRAIN_SECONDS), suppress(httpx.HTTPError, RuntimeError):
            async for _ in self._chunks:
                pass
        await self._response.aclose()


def _retry_seconds(response: httpx.Response) -> float | None:
    """Seconds after which a server wants to be asked again; None if it gives none, or a date."""
    header = response.headers.get("retry-after", "")
    return float(header) if re.fullmatch(r"\d{1,9}(\.\d+)?", header) else None


def _checked_url(url: str, kind: str) -> str:
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError) as error:
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
    return str(parsed).rstrip("/")


def _is_loopback(url: str) -> bool:
    host = httpx.URL(url).host
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
