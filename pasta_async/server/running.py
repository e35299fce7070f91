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
from uvicorn.logging import DefaultFormatter
from uvicorn.protocols.http.h11_impl import H11Protocol

from pasta_async.errors import InvalidRequestError
from pasta_async.server.app import Guard, other_names
from pasta_async.server.settings import ServerSettings
from pasta_async.telemetry.logs import with_ids

_SEND_BUFFER = 2**16
"""Bytes that the kernel buffers for a reader, at most: a slow one is then seen to take something."""

_LAST_REPLIES_SECONDS = 5.0
"""Seconds that cancelled requests have to tell their clients."""

_KNOWN_FIELDS = frozenset([*RESERVED_ATTRS, "taskName", "color_message"])


def uvicorn_server(app: Starlette, settings: ServerSettings) -> uvicorn.Server:
    """A uvicorn server that runs an app of `create_app` with the same settings.

    SIGTERM and Ctrl-C let open answers end for `drain_seconds`; a second Ctrl-C ends them at once. Before the
    backend is reached a signal ends the process. `run` and `serve` raise the error of a bad backend.

    Raises:
        InvalidRequestError: It is to listen where others can reach it, and has no key.
    """
    keys = settings.keys()
    if not keys and not settings.loopback:
        raise InvalidRequestError(
            f"listening at {settings.host} lets others in, which needs a key: --api-keys-file FILE, or "
            "PASTA_SERVER_API_KEYS"
        )
    if not keys:  # or any page on the web could ask, under a name of its own for this machine
        app.add_middleware(Guard, refuse=other_names("localhost", "127.0.0.1", "::1", settings.host))
    logging.getLogger("sse_starlette").setLevel(logging.INFO)  # its debug lines have the texts
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=http_protocol(settings),
        timeout_graceful_shutdown=round(settings.drain_seconds),
        server_header=False,
        log_config=_log_config(settings),
        lifespan="off",  # `_Server` runs it
    )
    return _Server(config, app)


class _Server(uvicorn.Server):
    """uvicorn around the app's lifespan: run by uvicorn itself, its errors would be tracebacks in the log."""

    def __init__(self, config: uvicorn.Config, app: Starlette) -> None:
        super().__init__(config)
        self._app, self._running_app = app, AsyncExitStack()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        async with self._running_app:
            await self._running_app.enter_async_context(self._app.router.lifespan_context(self._app))
            await super().serve(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        tasks = self.server_state.tasks
        if self.force_exit:  # by a second Ctrl-C: the requests end as at the end of the drain time
            for task in tasks:
                task.cancel()
        if tasks:  # they were cancelled, and tell that to their clients
            await asyncio.wait(tasks, timeout=_LAST_REPLIES_SECONDS)
        # `serve` now raises again the signal that stopped it, which ends the process.
        await self._running_app.aclose()


def http_protocol(settings: ServerSettings) -> Any:
    """The class of uvicorn's connections, with the settings' `body_timeout` and `stall_timeout`."""
    return partial(_HttpProtocol, settings=settings)


class _HttpProtocol(H11Protocol):
    """uvicorn's HTTP with time-outs: by itself it waits for ever for a request's head, or for a reader."""

    def __init__(self, *args: Any, settings: ServerSettings, **options: Any) -> None:
        super().__init__(*args, **options)
        self._settings = settings
        self._head: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) > _SEND_BUFFER:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def pause_writing(self) -> None:
        super().pause_writing()  # the reader is behind: it has a while to take something
        self._watch_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stall = _stop(self._stall)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head, self._stall = _stop(self._head), _stop(self._stall)
        super().connection_lost(exc)

    def _watch_reader(self, unsent: int) -> None:
        """End the connection unless fewer bytes are unsent after the time-out; else look again."""

        def look() -> None:
            left = self.transport.get_write_buffer_size()
            if left < unsent:
                self._watch_reader(left)
            else:
                self.transport.abort()

        _stop(self._stall)
        self._stall = self.loop.call_later(self._settings.stall_timeout, look)

    def _watch_head(self) -> None:
        answered = self.conn.our_state is h11.DONE  # then more bytes are a body that nobody reads
        if self.conn.their_state is not h11.IDLE and not answered:
            self._head = _stop(self._head)
        elif self._head is None:  # more bytes of a head give it no more time
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
    handler = {"class": "logging.StreamHandler", "formatter": settings.log_format, "filters": ["ids"]}
    logger = {"handlers": ["stderr"], "level": settings.log_level.upper(), "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": formatters,
        "filters": {"ids": {"()": lambda: with_ids}},
        "handlers": {"stderr": handler},
        "loggers": {"uvicorn": logger, "pasta_async": logger},
    }


class _TextFormatter(DefaultFormatter):
    """uvicorn's lines, with the fields of a record behind its message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelprefix)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = [f" {name}={value}" for name, value in vars(record).items() if name not in _KNOWN_FIELDS]
        return super().formatMessage(record) + "".join(fields)
