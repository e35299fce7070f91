"""`pasta-async serve`: the server's settings and the limits of its client, and uvicorn until a signal."""

from __future__ import annotations

import sys

from pydantic import Field

from pasta_async.options import Limits
from pasta_async.protocol import Backend
from pasta_async.server import create_app, uvicorn_server
from pasta_async.server.settings import ServerSettings


class ServeOptions(ServerSettings):
    """The server's settings, its backend, and limits that its client has."""

    backend: str | None = None
    """local:, local:pasta-smol, local:/path, http://host:port or sglang:/path; default:
    PASTA_BACKEND, or local:."""
    max_threads: int | None = Field(default=None, ge=1)
    """Threads of an answer that decode at once."""
    client_threads: int | None = Field(default=None, ge=1)
    """Threads of all answers that decode at once."""


def run(options: ServeOptions, backend: Backend | None) -> None:
    """Serve until SIGTERM or SIGINT, then close what was opened; a `backend` stands for the options' own.

    Raises:
        InvalidRequestError: It is to listen where others can reach it, and has no key.
        SystemExit: The server could not start; its log says why.
    """
    limits = Limits(**options.model_dump(include={"max_threads", "client_threads"}, exclude_none=True))
    server = uvicorn_server(create_app(backend or options.backend, options, limits=limits), options)
    try:
        server.run()
    except SystemExit:  # uvicorn said why, but has a status of its own
        sys.exit(1)
    if not server.started:
        sys.exit(1)
