"""Bearer keys: who may ask."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from pasta_async.errors import InvalidRequestError
from pasta_async.server.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import ASGIApp, Receive, Scope, Send

    from pasta_async.server.settings import ServerSettings

__all__ = ["OPEN_PATHS", "KeyGuard", "read_keys"]

OPEN_PATHS = ("/", "/health")
"""What needs no key: the page, which has a field for one, and the health of the server."""


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
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] != "lifespan" and scope["path"] not in OPEN_PATHS:
            scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not self._known(key.strip().encode("latin-1")):
                await _UNKNOWN.response(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _known(self, key: bytes) -> bool:
        """Takes as long for any key: digests have one length, and all of them are compared."""
        digest = _digest(key)
        return sum(hmac.compare_digest(digest, known) for known in self._digests) > 0


_UNKNOWN = Problem(
    "this server needs a key: send `Authorization: Bearer <key>` (api_key= of the client)",
    status=401,
    code="invalid_api_key",
)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
