"""Answers of a real SGLang server, one of which has an accident: its request or reply is spoilt on the way.

A proxy in front of the server spoils one request to `/generate`, at a given byte of its reply.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal, get_args

import httpx

from pasta_async import Client, Generation, Limits, PastaError
from pasta_async.backends.sglang import SGLangBackend
from pasta_async.errors import (
    BackendProtocolError,
    BackendStatusError,
    BackendTimeoutError,
    BackendTransportError,
)
from tests.torture.trials import Figures, Trials, draw_prompt

Kind = Literal["dropped", "status 400", "status 503", "html", "reset", "cut", "stalled", "garbage"]

REPLIES: dict[Kind, bytes] = {
    "status 400": b'400 X\r\ncontent-type: application/json\r\n\r\n{"error": {"message": "no"}}',
    "status 503": b'503 X\r\ncontent-type: application/json\r\n\r\n{"error": {"message": "no"}}',
    "html": b"200 X\r\ncontent-type: text/html\r\n\r\n<html>Welcome</html>",
}
"""Replies that come in place of the server's."""


@dataclass(eq=False)
class Accident:
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
        self._accident: Accident | None = None
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

    def expect(self, accident: Accident | None) -> None:
        """Spoil this next."""
        self._accident = accident
        self._seen = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy both ways until one side ends."""
        task = asyncio.current_task()
        assert task
        self._connections.add(task)
        far_reader, far_writer = await asyncio.open_connection(self._target.host, self._target.port)
        due: list[Accident] = []  # the accident of the request that this connection is about
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
        due: list[Accident],
    ) -> None:
        while data := await reader.read(2**16):
            if self._accident and data.startswith(b"POST /generate"):
                self._seen += 1
                if self._seen == self._accident.request + 1:
                    due[:] = [self._accident]
                    if self._accident.kind == "dropped" or self._accident.kind in REPLIES:
                        self._accident.struck.set()
                        if self._accident.kind == "dropped":
                            return _reset(writer)
                        writer.write(b"HTTP/1.1 " + REPLIES[self._accident.kind])
                        return await writer.drain()
            far_writer.write(data)
            await far_writer.drain()

    async def _reply(
        self, far_reader: asyncio.StreamReader, writer: asyncio.StreamWriter, due: list[Accident]
    ) -> None:
        sent = 0  # bytes of the reply that is to be spoilt
        while data := await far_reader.read(2**16):
            if due and not due[0].struck.is_set():
                accident, left = due[0], due[0].at - sent
                sent += len(data)
                if sent > accident.at:
                    accident.struck.set()
                    writer.write(data[:left])
                    if accident.kind == "reset":
                        return _reset(writer)
                    if accident.kind == "cut":
                        return await writer.drain()
                    if accident.kind == "stalled":
                        await asyncio.Event().wait()
                    data = b"\x00\xff]}\n\ndata: {\xfe\n\n" + data[left:]
            writer.write(data)
            await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Break the connection off without a farewell."""
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


SILENCE = 8.0
"""Seconds without a byte after which a server counts as stalled."""

LONGEST = 30_000
"""Bytes of a reply, about."""

NAMED: dict[Kind, type[PastaError]] = {
    "dropped": BackendTransportError,
    "html": BackendProtocolError,
    "reset": BackendTransportError,
    "cut": BackendTransportError,
    "stalled": BackendTimeoutError,
    "garbage": BackendTransportError,  # it breaks the chunks of the reply
}
"""The error that ends an answer, if the fault does; for statuses it is `BackendStatusError`."""


class Faults:
    """Trials of some answers at a time, to one of which something happens.

    Attributes:
        expected: The answers when nothing goes wrong.
        outcomes: For each kind of fault, what became of the answer that it struck.
    """

    def __init__(self, client: Client, proxy: FaultProxy, prompts: Sequence[str]) -> None:
        self._client, self._proxy, self._prompts = client, proxy, prompts
        self.expected: list[Generation] = []
        self.outcomes: dict[str, Counter[str]] = {}

    async def learn(self) -> None:
        """Ask for the answers when nothing goes wrong."""
        self.expected = await asyncio.gather(*map(self._answer, self._prompts))

    async def trial(self, accident: Accident) -> str:
        """The accident's answer ends with a named error, or is right after all; the others are right."""
        self._proxy.expect(accident)
        results = await asyncio.gather(*map(self._answer, self._prompts), return_exceptions=True)
        self._proxy.expect(None)
        errors: list[BaseException] = []
        for result, whole in zip(results, self.expected, strict=True):
            if isinstance(result, Generation):
                assert result.text == whole.text, accident
            else:
                errors.append(check_error(result, whole))
        assert len(errors) <= accident.struck.is_set(), (accident, errors)
        for error in errors:
            assert isinstance(error, NAMED.get(accident.kind, BackendStatusError)), (accident, errors)
        outcome = "right" if accident.struck.is_set() else "too late"
        if errors:
            outcome = type(errors[0]).__name__
        self.outcomes.setdefault(accident.kind, Counter())[outcome] += 1
        return outcome

    async def _answer(self, prompt: str) -> Generation:
        """An answer whose form does not depend on what else the server does."""
        return await self._client.generate(prompt, parallel="always", limits=Limits(timeout=60))


def check_error(error: BaseException, whole: Generation) -> BaseException:
    """The cause of a failed answer, which must hold its beginning, in main and in each chunk."""
    assert isinstance(error, PastaError), repr(error)
    assert error.partial is not None and error.partial.finish_reason == "error"
    for promise, full in zip(error.partial.document.promises, whole.document.promises, strict=False):
        if promise.chunk:
            assert full.chunk and full.chunk.text.startswith(promise.chunk.text)
    begun = error.partial.document.format().split("<async>")[0].removesuffix("</async>")
    assert whole.document.format().startswith(begun)
    return error.__cause__ or error


@asynccontextmanager
async def through_proxy(url: str, prompts: Sequence[str]) -> AsyncGenerator[Faults]:
    """Trials on a server, by a client of their own."""
    proxy = FaultProxy(url)
    async with proxy.listening() as address:
        backend = SGLangBackend(address, timeout=SILENCE)
        async with Client(backend) as client:
            faults = Faults(client, proxy, prompts)
            await faults.learn()
            yield faults
        await backend.aclose()


async def inject(trials: Trials, url: str) -> Figures:
    """Have every kind of fault in turn strike a request at a byte that is drawn."""
    kinds: list[Kind] = [*get_args(Kind)]
    async with through_proxy(url, [draw_prompt(trials.random("prompt", k)) for k in range(4)]) as faults:
        for number in trials.numbers():
            drawn = trials.random(number)
            at = int(LONGEST ** drawn.random()) - 1
            accident = Accident(kinds[number % len(kinds)], request=drawn.randrange(12), at=at)
            try:
                await faults.trial(accident)
            except Exception as error:
                error.add_note(f"--seed {trials.seed} --first {number} --count 1")
                raise
        return dict(faults.outcomes)
