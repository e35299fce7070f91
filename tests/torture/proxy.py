"""A proxy in front of an SGLang server that spoils a request, or its reply on the way, at a given byte."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

import httpx

Kind = Literal["dropped", "status 400", "status 503", "html", "reset", "cut", "stalled", "garbage"]

REPLIES: dict[Kind, bytes] = {
    "status 400": b'400 X\r\ncontent-type: application/json\r\n\r\n{"error": {"message": "no"}}',
    "status 503": b'503 X\r\ncontent-type: application/json\r\n\r\n{"error": {"message": "no"}}',
    "html": b"200 X\r\ncontent-type: text/html\r\n\r\n<html>Welcome</html>",
}
"""Replies that come in place of the server's."""


@dataclass(eq=False)
class Fault:
    """An accident of a request to `/generate`.

    Attributes:
        kind: `dropped`: the connection is reset before the request is handed on. `reset`, `cut`: it is reset,
            or ends, in the middle. `stalled`: nothing more comes. `garbage`: meaningless bytes come.
        request: Which of the requests that come, from 0.
        at: Bytes of its reply that come through before.
        struck: Set as soon as it happens; a reply may be shorter, and requests fewer.
    """

    kind: Kind
    request: int = 0
    at: int = 0
    struck: asyncio.Event = field(default_factory=asyncio.Event)


class FaultProxy:
    """Hands bytes on to a server, and its bytes back, but for one request that is to be spoilt."""

    def __init__(self, target: str) -> None:
        self._target = httpx.URL(target)
        self._fault: Fault | None = None
        self._seen = 0
        self._connections: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def listening(self, port: int = 0) -> AsyncGenerator[str]:
        """Serve; the proxy's URL. In the end every connection breaks off, and nothing listens any more."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        host, port = server.sockets[0].getsockname()
        try:
            yield f"http://{host}:{port}"
        finally:
            server.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    def expect(self, fault: Fault | None) -> None:
        """Spoil this next."""
        self._fault, self._seen = fault, 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy both ways until one side ends."""
        task = asyncio.current_task()
        assert task
        self._connections.add(task)
        far_reader, far_writer = await asyncio.open_connection(self._target.host, self._target.port)
        due: list[Fault] = []  # the fault of the request that this connection is about
        copies = [
            asyncio.create_task(self._send(reader, far_writer, writer, due)),
            asyncio.create_task(self._reply(far_reader, writer, due)),
        ]
        try:
            with suppress(asyncio.CancelledError):
                await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for copy in copies:
                copy.cancel()
            await asyncio.gather(*copies, return_exceptions=True)
            writer.close()
            far_writer.close()
            self._connections.discard(task)

    async def _send(
        self,
        reader: asyncio.StreamReader,
        far_writer: asyncio.StreamWriter,
        writer: asyncio.StreamWriter,
        due: list[Fault],
    ) -> None:
        while data := await reader.read(2**16):
            if self._fault and data.startswith(b"POST /generate"):
                self._seen += 1
                if self._seen == self._fault.request + 1:
                    due[:] = [self._fault]
                    if self._fault.kind == "dropped" or self._fault.kind in REPLIES:
                        self._fault.struck.set()
                        if self._fault.kind == "dropped":
                            return _reset(writer)
                        writer.write(b"HTTP/1.1 " + REPLIES[self._fault.kind])
                        return await writer.drain()
            far_writer.write(data)
            await far_writer.drain()

    async def _reply(
        self, far_reader: asyncio.StreamReader, writer: asyncio.StreamWriter, due: list[Fault]
    ) -> None:
        sent = 0  # bytes of the reply that is to be spoilt
        while data := await far_reader.read(2**16):
            if due and not due[0].struck.is_set():
                fault, left = due[0], due[0].at - sent
                sent += len(data)
                if sent > fault.at:
                    fault.struck.set()
                    writer.write(data[:left])
                    if fault.kind == "reset":
                        return _reset(writer)
                    if fault.kind == "cut":
                        return await writer.drain()
                    if fault.kind == "stalled":
                        await asyncio.Event().wait()
                    data = b"\x00\xff]}\n\ndata: {\xfe\n\n" + data[left:]
            writer.write(data)
            await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Break the connection off without a farewell."""
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
