"""The server with the page, on a real socket, in the loop of the test."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from pasta_async import Backend
from pasta_async.server import ServerSettings, create_app
from tests.helpers.live_server import serving_in_loop


def serving(backend: Backend, **settings: Any) -> AbstractAsyncContextManager[str]:
    """The server's address while it runs."""
    return serving_in_loop(create_app(backend, ServerSettings(**settings)))
