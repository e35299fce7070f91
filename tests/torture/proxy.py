"""A proxy in front of an SGLang server that spoils a request, or its reply on the way, at a given byte."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field

import httpx

from pasta_async.backends.sglang.backend import ROUTING_KEY
from pasta_async.backends.sglang.client import KEEPALIVE
from tests.torture.spoilt import Fault, spoilt


@dataclass
class Request:
    """A request as it came in."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def answer(self) -> str | None:
        """The answer that it decodes for."""
        return self.headers.get(ROUTING_KEY.lower())


@dataclass
class FaultProxy:
    """Hands requests on to a server, and its replies back, but for those that are to be spoilt.

    Attributes:
        target: The server's URL.
        prompts: Of the answers, to know which of them a request encodes.
        fault: What is to go wrong next.
        requests: Requests that it could strike, since it was set.
        closed_port: Where nothing listens, while the proxy does.
    """

    target: str
    prompts: Sequence[str] = ()
    fault: Fault | None = None
    requests: int = 0
    closed_port: int = 0
    _client: httpx.AsyncClient = field(
        default_factory=lambda: httpx.AsyncClient(
            timeout=None, limits=httpx.Limits(keepalive_expiry=KEEPALIVE)
        )
    )
    _connections: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    @asynccontextmanager
    async def listening(self, port: int = 0) -> AsyncGenerator[str]:
        """Serve; the proxy's URL. In the end every connection breaks off, and nothing listens any more."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        host, port = server.sockets[0].getsockname()
        with socket.socket() as closed:
            closed.bind((host, 0))  # and never listens
            self.closed_port = closed.getsockname()[1]
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

    def due(self, request: Request, *, refused: bool = False) -> Fault | None:
        """What strikes a request, if anything does; `refused` is for what decides before it is sent."""
        fault = self.fault
        if not fault or (fault.kind == "refused") != refused or not self._may_strike(fault, request):
            return None
        number, self.requests = self.requests, self.requests + 1
        if number == fault.request:
            fault.answer = request.answer
        elif not (fault.lasting and number > fault.request and request.answer == fault.answer):
            return None
        if not fault.replies:
            fault.strikes.set()
        return fault

    def _may_strike(self, fault: Fault, request: Request) -> bool:
        path = request.target.partition("?")[0]
        prompt = self.prompts[fault.victim].encode() if fault.path == "/tokenize" else b""
        return path == fault.path and prompt[:40] in request.body

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._connections.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while request := await _read_request(reader):
                    if not await self._answer_unless_left(request, reader, writer):
                        break
        finally:
            writer.close()
            self._connections.discard(task)

    async def _answer_unless_left(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Whether the connection can be used again."""
        answering = asyncio.create_task(self._answer(request, writer))
        left = asyncio.create_task(reader.read(1))  # a client sends no second request before
        try:
            await asyncio.wait((answering, left), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not answering.done():
                answering.cancel()
            left.cancel()
            await asyncio.gather(answering, left, return_exceptions=True)
        return not answering.cancelled() and answering.result()

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        if fault := self.due(request):
            if fault.kind == "dropped":
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
            async with aclosing(spoilt(response.aiter_bytes(), fault)) as chunks:
                async for chunk in chunks:
                    if chunk is None:
                        assert fault
                        return _reset(writer) if fault.kind == "reset" else False
                    writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                    await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


class Wire(httpx.AsyncHTTPTransport):
    """What a client sends requests with: to a proxy; one that is to be refused, where nothing listens."""

    def __init__(self, proxy: FaultProxy) -> None:
        super().__init__(limits=httpx.Limits(keepalive_expiry=KEEPALIVE))
        self._proxy = proxy

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        asked = Request(request.method, request.url.raw_path.decode(), request.headers, request.content)
        if self._proxy.due(asked, refused=True):
            request.url = request.url.copy_with(port=self._proxy.closed_port)
        return await super().handle_async_request(request)


_HOP = {"host", "content-length", "connection", "accept-encoding"}


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
