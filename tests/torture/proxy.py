"""A proxy in front of an SGLang server that spoils one stream on its way, at a given byte."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

import httpx

Kind = Literal[
    "refused",
    "status 400",
    "status 429",
    "status 500",
    "html",
    "reset",
    "half a body",
    "cut",
    "stalled",
    "slow",
    "garbage",
    "duplicated",
    "wrong id",
]

GARBAGE = b"\x00\xff]}\n\ndata: {\xfe\n\n"

SLOW_SECONDS = 0.05
"""Between two bytes of a stream that is slow."""


@dataclass
class Fault:
    """What goes wrong with one request for `/generate`.

    Attributes:
        kind: How.
        request: Which of the requests that come.
        at: Bytes of its stream that come through before.
        struck: Whether it did: a stream may be shorter, and requests fewer.
    """

    kind: Kind
    request: int
    at: int
    struck: bool = False

    @property
    def streams(self) -> bool:
        """Whether there is a stream before it."""
        return not self.kind.startswith(("refused", "status", "html"))


@dataclass
class Request:
    """A request as it came in."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass
class FaultProxy:
    """Hands requests on to a server, and its streams back, but for the one that is to be spoiled.

    Attributes:
        target: The server's URL.
        fault: What is to go wrong next.
        requests: Requests for `/generate` since the fault was set.
    """

    target: str
    fault: Fault | None = None
    requests: int = 0
    _client: httpx.AsyncClient = field(default_factory=lambda: httpx.AsyncClient(timeout=None))
    _connections: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[str]:
        """Serve; the proxy's URL."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
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
        self.fault, self.requests = fault, 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._connections.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while request := await _read_request(reader):
                    answering = asyncio.create_task(self._answer(request, writer))
                    left = asyncio.create_task(reader.read(1))  # a client sends no second request before
                    await asyncio.wait((answering, left), return_when=asyncio.FIRST_COMPLETED)
                    if not answering.done():
                        answering.cancel()
                    left.cancel()
                    await asyncio.wait((answering, left))
                    if answering.cancelled() or not answering.result():
                        break
        finally:
            writer.close()
            self._connections.discard(task)

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection can be used again."""
        fault = None
        if request.target == "/generate":
            fault = self.fault if self.fault and self.fault.request == self.requests else None
            self.requests += 1
        if fault:
            fault.struck = not fault.streams
            if fault.kind == "refused":  # or as good as: no byte is read of what was sent
                return _reset(writer)
            if fault.kind.startswith("status"):
                return await _send_whole(writer, int(fault.kind[7:]), b'{"error": {"message": "no"}}')
            if fault.kind == "html":
                return await _send_whole(writer, 200, b"<html>Welcome</html>", "text/html")
        sent = self._client.stream(
            request.method,
            self.target + request.target,
            content=request.body,
            headers={name: value for name, value in request.headers.items() if name not in _HOP},
        )
        async with sent as response:
            kind = response.headers.get("content-type")
            head = f"HTTP/1.1 {response.status_code} OK\r\ncontent-type: {kind}\r\n"
            writer.write(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
            done = 0
            async with aclosing(_spoilt(response.aiter_bytes(), fault)) as chunks:
                async for chunk in chunks:
                    if chunk is None:
                        assert fault
                        return _reset(writer) if fault.kind == "reset" else False
                    writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                    await writer.drain()
                    done += len(chunk)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


_HOP = {"host", "content-length", "connection", "accept-encoding"}


async def _spoilt(chunks: AsyncIterator[bytes], fault: Fault | None) -> AsyncGenerator[bytes | None, None]:
    """The stream as it is handed on; None: the connection ends here."""
    done = 0
    async for chunk in chunks:
        if fault is None or done + len(chunk) <= fault.at:
            yield chunk
            done += len(chunk)
            continue
        if before := chunk[: fault.at - done]:
            yield before
        async for part in _from_there(chunk[len(before) :], chunks, fault):
            yield part
        return


async def _from_there(
    rest: bytes, chunks: AsyncIterator[bytes], fault: Fault
) -> AsyncGenerator[bytes | None, None]:
    fault.struck = True
    match fault.kind:
        case "reset" | "half a body":
            yield None
            return
        case "cut":
            return
        case "stalled":
            await asyncio.Event().wait()
        case "garbage":
            yield GARBAGE
        case "slow":
            async for byte in _single(rest, chunks):
                yield byte
                await asyncio.sleep(SLOW_SECONDS)
            return
        case _:
            async for part in _edited(rest, chunks, fault):
                yield part
            return
    yield rest
    async for chunk in chunks:
        yield chunk


async def _single(rest: bytes, chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    for at in range(len(rest)):
        yield rest[at : at + 1]
    async for chunk in chunks:
        for at in range(len(chunk)):
            yield chunk[at : at + 1]


async def _edited(rest: bytes, chunks: AsyncIterator[bytes], fault: Fault) -> AsyncGenerator[bytes, None]:
    """The next event that is whole comes twice, or is another request's."""
    while rest.count(b"\n\n") < 2 and (more := await anext(chunks, None)) is not None:
        rest += more
    first, _, behind = rest.partition(b"\n\n")
    event, _, last = behind.partition(b"\n\n")
    fault.struck = b'"output_ids"' in event
    if fault.kind == "duplicated" and fault.struck:
        event += b"\n\n" + event
    else:
        event = re.sub(rb'"id":\s*"pasta-', b'"id":"pesto-', event)
    yield first + b"\n\n" + (event + b"\n\n" + last if event else b"")
    async for chunk in chunks:
        yield chunk


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Request(method, target, headers, await reader.readexactly(int(headers.get("content-length", 0))))


async def _send_whole(
    writer: asyncio.StreamWriter, status: int, body: bytes, kind: str = "application/json"
) -> bool:
    head = f"HTTP/1.1 {status} No\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    return True


def _reset(writer: asyncio.StreamWriter) -> bool:
    """Break the connection off without a farewell."""
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    return False
