"""ASGI middleware: keys, host names, and a count of requests."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import urlsplit

from prometheus_client import Counter
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pasta_async.server.errors import ApiError

_OPEN_PATHS = ("/", "/health")
"""Paths that need no key: the page, which has a field for one, and the health of the server."""

_NO_KEY = ApiError(
    "this server needs a key: send `Authorization: Bearer <key>` (api_key= of the client)",
    status=401,
    code="invalid_api_key",
)


def path_in_app(scope: Scope) -> str:
    """The path of a request below the path that the app is mounted at."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


class Requests:
    """Counts responses by path and status, and notes the tasks of open requests.

    uvicorn does not wait for the tasks that it cancels. A path with a slash at its end is the path without
    it; paths that the app does not have are counted as `other`.
    """

    def __init__(
        self, app: ASGIApp, tasks: set[asyncio.Task[Any]], responses: Counter, paths: Collection[str]
    ) -> None:
        self._app, self._tasks, self._responses, self._paths = app, tasks, responses, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or the lifespan."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if len(path_in_app(scope)) > 1:
            scope["path"] = scope["path"].rstrip("/") or "/"
        path = path_in_app(scope) if path_in_app(scope) in self._paths else "other"

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._responses.labels(path, str(message["status"])).inc()
            await send(message)

        if task := asyncio.current_task():
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await self._app(scope, receive, counted)


class KeyGuard:
    """Lets nobody in without one of the keys, except to `_OPEN_PATHS`."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or the lifespan."""
        if scope["type"] != "lifespan" and path_in_app(scope) not in _OPEN_PATHS:
            scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not self._known(key.strip().encode("latin-1")):
                await _NO_KEY.response(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _known(self, key: bytes) -> bool:
        """Compare with every key, so that it takes as long for any: digests have one length."""
        digest = hashlib.sha256(key).digest()
        return sum(hmac.compare_digest(digest, known) for known in self._digests) > 0


class HostGuard:
    """Answers requests for some host names alone: pages of the web may have others for this machine."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or the lifespan."""
        if scope["type"] != "lifespan":
            named = Headers(scope=scope).get("host", "")
            try:
                known = urlsplit(f"//{named}").hostname in self._hosts
            except ValueError:
                known = False
            if not known:
                message = f"without a key this server answers to local names only, not to {named!r:.100}"
                await ApiError(message, code="invalid_host").response(scope, receive, send)
                return
        await self._app(scope, receive, send)
