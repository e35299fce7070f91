"""Runs the server with uvicorn."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import uvicorn
from starlette.middleware.trustedhost import TrustedHostMiddleware

from pasta_async.errors import InvalidRequestError
from pasta_async.server.app import create_app
from pasta_async.server.middleware import HttpProtocol, read_keys
from pasta_async.server.operations import log_config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.applications import Starlette

    from pasta_async.limits import Limits
    from pasta_async.protocol import Backend
    from pasta_async.server.settings import ServerSettings

__all__ = ["serve", "uvicorn_server"]

_LOCAL_HOSTS = ["localhost", "127.0.0.1"]


def serve(backend: Backend | Sequence[str] | None, settings: ServerSettings, limits: Limits) -> int:
    """Serve until SIGTERM or SIGINT, then close what `create_app` opened; the process's exit code.

    The first signal lets open answers end for `drain_seconds`, a second one ends them at once.

    Raises:
        InvalidRequestError: It is to listen where others can reach it, and has no key.
    """
    server = uvicorn_server(create_app(backend, settings, limits=limits), settings)
    server.run()
    return 0 if server.started else 1


def uvicorn_server(app: Starlette, settings: ServerSettings) -> uvicorn.Server:
    """What runs an app of `create_app` with the same settings.

    Raises:
        InvalidRequestError: It is to listen where others can reach it, and has no key.
    """
    keys = read_keys(settings)
    if not keys and not settings.loopback:
        raise InvalidRequestError(
            f"listening at {settings.host} lets others in, which needs a key: --api-keys-file FILE, or "
            "PASTA_SERVER_API_KEYS"
        )
    if not keys:  # or any page on the web could ask, under a name of its own for this machine
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*_LOCAL_HOSTS, settings.host])
    logging.getLogger("sse_starlette").setLevel(logging.INFO)  # its debug lines have the texts
    return uvicorn.Server(
        uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            http=HttpProtocol,
            timeout_graceful_shutdown=round(settings.drain_seconds),
            server_header=False,
            log_config=log_config(settings),
        )
    )
