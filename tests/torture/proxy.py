"""A proxy in front of an SGLang server that spoils a request, or its reply on the way, at a given byte."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import httpx

Kind = Literal[
    "dropped", "status 400", "status 429", "status 503", "html", "reset", "cut", "stalled", "garbage"
]


@dataclass(eq=False)
class Fault:
    """What goes wrong with a request.

    Attributes:
        kind: How. `dropped`: the connection is reset before a byte of a reply. `reset`, `cut`: it is reset,
            or ends, in the middle. `stalled`: nothing more comes. `garbage`: bytes that mean nothing come.
        request: Which of the requests that come, from 0.
        at: Bytes of its reply that come through before.
        path: Of the request.
        struck: Whether it happened; a reply may be shorter, and requests fewer.
    """

    kind: Kind
    request: int = 0
    at: int = 0
    path: str = "/generate"
    struck: asyncio.Event = field(default_factory=asyncio.Event)


class _Request(NamedTuple):
    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


class FaultProxy:
    """Hands requests on to a server, and its replies back, but for one that is to be spoilt."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._fault: Fault | None = None
        self._seen = 0
        self._client = httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_keepalive_connections=0))
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
            await self._client.aclose()

    def expect(self, fault: Fault | None) -> None:
        """Spoil this next."""
        self._fault, self._seen = fault, 0

    def _due(self, request: _Request) -> Fault | None:
        """The fault, if it is this request's."""
        fault = self._fault
        if not fault or request.target.partition("?")[0] != fault.path:
            return None
        self._seen += 1
        return fault if self._seen == fault.request + 1 else None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._connections.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                request = await _read_request(reader)
                answering = asyncio.create_task(self._answer(request, writer))
                left = asyncio.create_task(reader.read(1))  # nothing comes before the client leaves
                try:
                    await asyncio.wait((answering, left), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    answering.cancel()
                    left.cancel()
                    await asyncio.gather(answering, left, return_exceptions=True)
        finally:
            writer.close()
            self._connections.discard(task)

    async def _answer(self, request: _Request, writer: asyncio.StreamWriter) -> None:
        """Reply on a connection that ends behind this request."""
        fault = self._due(request)
        if (fault and fault.kind in ("dropped", "html")) or (fault and fault.kind.startswith("status")):
            fault.struck.set()
            if fault.kind == "dropped":
                return _reset(writer)
            status = 200 if fault.kind == "html" else int(fault.kind.removeprefix("status "))
            body = b"<html>Welcome</html>" if fault.kind == "html" else b'{"error": {"message": "no"}}'
            writer.write(_head(status, "text/html" if fault.kind == "html" else "application/json") + body)
            return await writer.drain()
        passed = ("content-type", "authorization")
        sent = self._client.stream(
            request.method,
            self._target + request.target,
            content=request.body,
            headers={name: value for name, value in request.headers.items() if name in passed},
        )
        async with sent as response:
            writer.write(_head(response.status_code, response.headers.get("content-type", "")))
            async with aclosing(_spoilt(response.aiter_bytes(), fault)) as chunks:
                async for chunk in chunks:
                    if chunk is None:
                        return _reset(writer)
                    writer.write(chunk)
                    await writer.drain()


async def _spoilt(chunks: AsyncIterator[bytes], fault: Fault | None) -> AsyncGenerator[bytes | None, None]:
    """The body of a reply as it is handed on; None: the connection is reset here."""
    done = 0
    async for chunk in chunks:
        if fault is None or fault.struck.is_set() or done + len(chunk) <= fault.at:
            yield chunk
            done += len(chunk)
            continue
        before, rest = chunk[: fault.at - done], chunk[fault.at - done :]
        yield before
        fault.struck.set()
        if fault.kind == "reset":
            yield None
        if fault.kind in ("reset", "cut"):
            return
        if fault.kind == "stalled":
            await asyncio.Event().wait()
        yield b"\x00\xff]}\n\ndata: {\xfe\n\n" + rest


def _head(status: int, kind: str) -> bytes:
    return f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n".encode()


async def _read_request(reader: asyncio.StreamReader) -> _Request:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return _Request(method, target, headers, await reader.readexactly(int(headers.get("content-length", 0))))


def _reset(writer: asyncio.StreamWriter) -> None:
    """Break the connection off without a farewell."""
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
