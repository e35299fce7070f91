"""HTTP with one SGLang server: JSON in, JSON or events out, every failure as an error of pasta_async."""

from __future__ import annotations

import json
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

import anyio
import httpx

from pasta_async.backends.sglang.sse import SSEDecoder
from pasta_async.errors import (
    BackendConnectError,
    BackendProtocolError,
    BackendStatusError,
    BackendTimeoutError,
    BackendTransportError,
    InvalidRequestError,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

__all__ = ["DEFAULT_TIMEOUT", "EventStream", "Server"]

DEFAULT_TIMEOUT = httpx.Timeout(10.0, read=300.0, write=60.0, pool=None)
"""Seconds to connect, between two tokens (a busy server queues), to send, and for a free connection."""

KEEPALIVE = 2.0
"""Seconds an idle connection is kept; below the 5 s after which the server closes it under our hands."""

DRAIN_SECONDS = 1.0
"""How long the rest of a stream is read before its connection is closed."""

SPARE_CONNECTIONS = 8
"""Connections beside those of decoding requests: aborts and tokenizing must not wait for an answer to end."""


class Server:
    """An SGLang server at a URL."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None,
        client: httpx.AsyncClient | None,
        timeout: httpx.Timeout | float,
        max_connections: int,
    ) -> None:
        self.url: str = _checked_url(url)
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = httpx.Timeout(timeout)
        self._owned = client is None
        self._key = api_key
        self._client = client or httpx.AsyncClient(
            limits=httpx.Limits(
                max_connections=max_connections + SPARE_CONNECTIONS,
                max_keepalive_connections=max_connections + SPARE_CONNECTIONS,
                keepalive_expiry=KEEPALIVE,
            ),
        )

    def at(self, url: str) -> Server:
        """Another server, reached by the same connections; it need not be closed."""
        return Server(url, api_key=self._key, client=self._client, timeout=self._timeout, max_connections=1)

    async def get(self, path: str) -> dict[str, Any]:
        """The JSON object at a path."""
        return _expect_object(await self._call("GET", path, None), f"{self.url}{path}")

    async def post(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Any:
        """Post a JSON object, with further headers; the JSON that comes back (None for an empty body)."""
        return await self._call("POST", path, body, headers)

    async def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        where = f"{self.url}{path}"
        with _translated(where):
            response = await self._client.request(
                method, where, json=body, headers={**(headers or {}), **self._headers}, timeout=self._timeout
            )
        _raise_for_status(response, where)
        return _json(response.content, where) if response.content.strip() else None

    async def stream(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> EventStream:
        """Post a JSON object; the server-sent events that come back. The caller closes the stream."""
        where = f"{self.url}{path}"
        request = self._client.build_request(
            "POST", where, json=body, headers={**(headers or {}), **self._headers}, timeout=self._timeout
        )
        with _translated(where):
            response = await self._client.send(request, stream=True)
        if response.is_success and "text/event-stream" in response.headers.get("content-type", ""):
            return EventStream(response, where)
        try:
            with _translated(where):
                await response.aread()
        finally:
            await response.aclose()
        _raise_for_status(response, where)
        raise BackendProtocolError(f"{where} sent no event stream but {_excerpt(response.text)}")

    async def aclose(self) -> None:
        """Close the connections, unless the client was given to us."""
        if self._owned:
            await self._client.aclose()


class EventStream:
    """The events of one request, as JSON objects, up to ``[DONE]``."""

    def __init__(self, response: httpx.Response, where: str) -> None:
        self._response = response
        self._where = where
        self._chunks = response.aiter_bytes()
        self._decoder = SSEDecoder()
        self._ready: deque[str] = deque()

    async def next(self) -> dict[str, Any] | None:
        """The next event, or None at the end. Cancelling breaks the connection off.

        Raises:
            BackendError: An error event, a stream that broke off, or words that are no JSON.
        """
        with _translated(self._where):
            while not self._ready:
                chunk = await anext(self._chunks, None)
                if chunk is None:
                    raise BackendProtocolError(f"the stream from {self._where} broke off before its end")
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
        with anyio.move_on_after(DRAIN_SECONDS), suppress(httpx.HTTPError):
            async for _ in self._chunks:
                pass
        await self._response.aclose()


@contextmanager
def _translated(where: str) -> Generator[None]:
    """Failures of httpx, and of reading what it brought, in the words of pasta_async."""
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
    except ValueError:
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
    try:
        return json.loads(content)
    except ValueError as error:
        text = content if isinstance(content, str) else content.decode(errors="replace")
        raise BackendProtocolError(f"{where} sent no JSON but {_excerpt(text)}") from error


def _expect_object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BackendProtocolError(f"{where} sent no JSON object but {_excerpt(repr(value))}")
    return cast("dict[str, Any]", value)


def _excerpt(text: str, limit: int = 300) -> str:
    text = " ".join(text.split())
    return (text[:limit] + "..." if len(text) > limit else text) or "nothing"
