"""uvicorn for an app of this server: time limits on connections, signals, and its log."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import h11
import uvicorn
from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter
from starlette.applications import Starlette
from starlette.middleware.trustedhost import TrustedHostMiddleware
from uvicorn.logging import DefaultFormatter
from uvicorn.protocols.http.h11_impl import H11Protocol

from pasta_async.errors import InvalidRequestError
from pasta_async.server.settings import ServerSettings

_SEND_BUFFER = 2**16
"""Bytes that the kernel buffers for a client at most: with more, a slow client looks like a stalled one."""

_LAST_REPLIES_SECONDS = 5.0
"""Seconds in which cancelled requests may send their last replies."""

_KNOWN_FIELDS = frozenset([*RESERVED_ATTRS, "taskName", "color_message"])


def uvicorn_server(app: Starlette, settings: ServerSettings) -> uvicorn.Server:
    """A uvicorn server that runs an app of `create_app` with the same settings.

    SIGTERM and Ctrl-C let open answers end for `drain_seconds`; a second Ctrl-C ends them at once. Before the
    backend is reached a signal ends the process. `run` and `serve` raise the error of a bad backend.

    Raises:
        InvalidRequestError: The address can be reached from other machines, and there is no key.
    """
    if not settings.keys():
        if settings.host not in ("localhost", "127.0.0.1", "::1"):
            raise InvalidRequestError(
                f"listening at {settings.host} lets others in, which needs a key: --api-keys-file FILE, or "
                "PASTA_SERVER_API_KEYS"
            )
        # Otherwise any page on the web could send requests, by a name of its own for this machine.
        hosts = ["localhost", "127.0.0.1", "[::1]"]
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=http_protocol(settings),
        timeout_graceful_shutdown=settings.drain_seconds,
        server_header=False,
        log_config=_log_config(settings),
        lifespan="off",  # `_Server` runs it
    )
    return _Server(config, app)


class _Server(uvicorn.Server):
    """uvicorn inside the app's lifespan: if uvicorn ran that, its errors would be tracebacks in the log."""

    def __init__(self, config: uvicorn.Config, app: Starlette) -> None:
        super().__init__(config)
        self._app = app
        self._running_app = AsyncExitStack()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        async with self._running_app:
            await self._running_app.enter_async_context(self._app.router.lifespan_context(self._app))
            await super().serve(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        tasks = self.server_state.tasks
        if self.force_exit:  # after a second Ctrl-C the requests are cancelled as after the drain time
            for task in tasks:
                task.cancel()
        if tasks:  # cancelled requests send a last reply to their clients
            await asyncio.wait(tasks, timeout=_LAST_REPLIES_SECONDS)
        # `serve` now raises again the signal that stopped it, which ends the process.
        await self._running_app.aclose()


def http_protocol(settings: ServerSettings) -> Any:
    """The class of uvicorn's connections, with the settings' `body_timeout` and `stall_timeout`."""
    return partial(_HttpProtocol, settings=settings)


class _HttpProtocol(H11Protocol):
    """uvicorn's HTTP with time-outs: uvicorn waits for ever for a request's head, or for a slow reader."""

    def __init__(self, *args: Any, settings: ServerSettings, **options: Any) -> None:
        super().__init__(*args, **options)
        self._settings = settings
        self._head: asyncio.TimerHandle | None = None  # ends a connection whose request's head is too slow
        self._stall: asyncio.TimerHandle | None = None  # ends a connection whose client reads nothing

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # so that `pause_writing` comes with the first unsent byte
        connection = transport.get_extra_info("socket")
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) > _SEND_BUFFER:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def pause_writing(self) -> None:
        super().pause_writing()  # the client reads too slowly: the time for it to read something begins
        self._watch_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stall = _stop(self._stall)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head = _stop(self._head)
        self._stall = _stop(self._stall)
        super().connection_lost(exc)

    def _watch_reader(self, unsent: int) -> None:
        """End the connection if as many bytes are unsent after the time-out; else go on watching."""

        def check() -> None:
            still_unsent = self.transport.get_write_buffer_size()
            if still_unsent < unsent:
                self._watch_reader(still_unsent)
            else:
                self.transport.abort()

        _stop(self._stall)
        self._stall = self.loop.call_later(self._settings.stall_timeout, check)

    def _watch_head(self) -> None:
        """Limit the time until the head of a request has arrived."""
        is_answered = self.conn.our_state is h11.DONE  # bytes that follow are a body which nobody reads
        if self.conn.their_state is not h11.IDLE and not is_answered:
            self._head = _stop(self._head)
        elif self._head is None:  # the time goes on while bytes of one head arrive
            self._head = self.loop.call_later(self._settings.body_timeout, self.transport.abort)


def _stop(timer: asyncio.TimerHandle | None) -> None:
    """Cancel a timer, if there is one."""
    if timer:
        timer.cancel()


def _log_config(settings: ServerSettings) -> dict[str, Any]:
    """A configuration for `logging.config.dictConfig`: a line on standard error for each record."""
    names = {"levelname": "level", "name": "logger"}
    fields = {"fmt": [*names, "message"], "timestamp": "time", "rename_fields": names}
    formatters = {
        "json": {"()": JsonFormatter, **fields, "reserved_attrs": sorted(_KNOWN_FIELDS)},
        "text": {"()": _TextFormatter},
    }
    handler = {"class": "logging.StreamHandler", "formatter": settings.log_format}
    logger = {"handlers": ["stderr"], "level": settings.log_level.upper(), "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": formatters,
        "handlers": {"stderr": handler},
        "loggers": {"uvicorn": logger, "pasta_async": logger},
    }


class _TextFormatter(DefaultFormatter):
    """uvicorn's lines, with the fields of a record behind its message; a text in them stays on its line."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelprefix)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = [f" {name}={value!r}" for name, value in vars(record).items() if name not in _KNOWN_FIELDS]
        return super().formatMessage(record) + "".join(fields)
