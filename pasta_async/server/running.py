"""HTTP connections: how long a client may keep one waiting, and what is no HTTP."""

from __future__ import annotations

import asyncio
import json
import sys
from functools import partial
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from pasta_async.server.errors import ApiError
from pasta_async.server.settings import ServerSettings


def http_protocol(settings: ServerSettings) -> Any:
    """What uvicorn is to make connections with, so that `body_timeout` and `stall_timeout` hold.

        uvicorn.run(create_app(backend, settings), http=http_protocol(settings))

    `uvicorn_server` and `pasta-async serve` do that by themselves.
    """
    return partial(_HttpProtocol, settings=settings)


class _HttpProtocol(H11Protocol):
    """uvicorn's HTTP with time-outs: by itself it waits for ever for a request's head, or for a reader.

    To headers and URLs that are too long it answers 400; here it is 431 and 414.
    """

    def __init__(self, *args: Any, settings: ServerSettings, **options: Any) -> None:
        super().__init__(*args, **options)
        self._settings = settings
        self._head: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def pause_writing(self) -> None:
        super().pause_writing()  # the reader is behind: it has a while to take something
        self._stall = self._later(self._stall, self._settings.stall_timeout)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stall = self._later(self._stall, None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head, self._stall = self._later(self._head, None), self._later(self._stall, None)
        super().connection_lost(exc)

    def _watch_head(self) -> None:
        answered = self.conn.our_state is h11.DONE  # then what comes is a body that nobody reads
        if self.conn.their_state is not h11.IDLE and not answered:
            self._head = self._later(self._head, None)
        elif self._head is None:  # more bytes of a head give it no more time
            self._head = self._later(None, self._settings.body_timeout)

    def _later(self, timer: asyncio.TimerHandle | None, seconds: float | None) -> asyncio.TimerHandle | None:
        """End the connection after so many seconds (None: do not) instead of when `timer` would have."""
        if timer:
            timer.cancel()
        return None if seconds is None else self.loop.call_later(seconds, self.transport.abort)

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
