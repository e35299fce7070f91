"""Around the endpoints: keys, the count of responses, and replies to requests that HTTP cannot read."""

from __future__ import annotations

import hashlib
import hmac
import json
import sys
from typing import TYPE_CHECKING

import h11
from starlette.datastructures import Headers
from uvicorn.protocols.http.h11_impl import H11Protocol

from pasta_async.errors import InvalidRequestError
from pasta_async.server.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from prometheus_client import Counter
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from pasta_async.server.settings import ServerSettings

__all__ = ["OPEN_PATHS", "CountResponses", "HttpProtocol", "KeyGuard", "read_keys"]

OPEN_PATHS = ("/", "/health")
"""What needs no key: the page, which has a field for one, and the health of the server."""

_NO_KEY = ApiError(
    "this server needs a key: send `Authorization: Bearer <key>` (api_key= of the client)",
    status=401,
    code="invalid_api_key",
)


def read_keys(settings: ServerSettings) -> tuple[str, ...]:
    """All keys, those in the file too.

    Raises:
        InvalidRequestError: The file cannot be read, or holds no key.
    """
    keys = [key.get_secret_value() for key in settings.api_keys]
    if path := settings.api_keys_file:
        try:
            lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequestError(f"the file of keys cannot be read: {error}") from error
        found = [line for line in lines if line and not line.startswith("#")]
        if not found:
            raise InvalidRequestError(f"{path} holds no key; put one on a line of its own")
        keys += found
    return tuple(keys)


class KeyGuard:
    """ASGI middleware that lets nobody in without one of the keys, except to `OPEN_PATHS`."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] != "lifespan" and scope["path"] not in OPEN_PATHS:
            scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not self._known(key.strip().encode("latin-1")):
                await _NO_KEY.response(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _known(self, key: bytes) -> bool:
        """Takes as long for any key: digests have one length, and all of them are compared."""
        digest = hashlib.sha256(key).digest()
        return sum(hmac.compare_digest(digest, known) for known in self._digests) > 0


class CountResponses:
    """ASGI middleware that counts responses by path and status; unknown paths are `other`."""

    def __init__(self, app: ASGIApp, responses: Counter, paths: Collection[str]) -> None:
        self._app, self._responses, self._paths = app, responses, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                path = scope["path"] if scope["path"] in self._paths else "other"
                self._responses.labels(path, str(message["status"])).inc()
            await send(message)

        await self._app(scope, receive, counted)


class HttpProtocol(H11Protocol):
    """uvicorn's HTTP, which answers 400 to headers and URLs that are too long: here it is 431 and 414."""

    def send_400_response(self, msg: str) -> None:
        """Answer what h11 could not read, which is the error at hand, and close the connection."""
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        if status == 431 and b"\r\n" not in self.conn.trailing_data[0]:
            status, msg = 414, "the URL is too long"
        elif status == 431:
            msg = "the headers are too long"
        body = json.dumps(ApiError(msg, status=status).body).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
        head = h11.Response(status_code=status, headers=[*headers, ("connection", "close")])
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
