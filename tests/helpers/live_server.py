"""A server on a real socket, in a thread with an event loop of its own, and eyes on its engine."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, NamedTuple

import httpx
import openai
import uvicorn
from starlette.types import ASGIApp

from pasta_async import Backend, DecodeRequest, Limits, Piece
from pasta_async.backends import WrappingBackend
from pasta_async.server import ServerSettings, create_app

PROMPT = (
    "Add up the fruits. Mireko has 2 apples, 3 plums and 2 figs. Sotani has 4 pears, 2 lemons and 5 melons."
)
MESSAGES: list[Any] = [{"role": "user", "content": PROMPT}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PATIENCE = 60
"""Seconds until a wait in vain is given up."""


class WatchedBackend(WrappingBackend):
    """Another backend, and what it decodes at the moment, to be waited for from any thread."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self._changed = threading.Condition()
        self.open = 0
        self.pieces: dict[str, int] = {}
        """Pieces of each answer."""

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        self._note(1)
        pieces = self.inner.decode(request)
        try:
            async for piece in pieces:
                self._note(0, request.answer)
                yield piece
        finally:
            await pieces.aclose()
            self._note(-1)

    def _note(self, opened: int, answer: str | None = None) -> None:
        with self._changed:
            self.open += opened
            if answer:
                self.pieces[answer] = self.pieces.get(answer, 0) + 1
            self._changed.notify_all()

    def wait(self, until: Callable[[WatchedBackend], bool]) -> None:
        """Wait for a state (TimeoutError in vain)."""
        with self._changed:
            if not self._changed.wait_for(lambda: until(self), PATIENCE):
                raise TimeoutError(f"{self.open} requests are open, pieces: {self.pieces}")


class LiveServer(NamedTuple):
    """A running server."""

    url: str
    app: Any

    def connect(self, *, receive_buffer: int | None = None) -> socket.socket:
        """A bare connection."""
        connection = socket.socket()
        if receive_buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        url = httpx.URL(self.url)
        connection.connect((url.host, url.port))
        connection.settimeout(PATIENCE)
        return connection


@contextmanager
def running(backend: Backend | str, limits: Limits | None = None, **settings: Any) -> Generator[LiveServer]:
    """Serve OpenAI's API."""
    app = create_app(backend, ServerSettings(**settings), limits=limits)
    with serving(app) as url:
        yield LiveServer(url, app)


@contextmanager
def serving(app: ASGIApp, *, send_buffer: int | None = None, **options: Any) -> Generator[str]:
    """Serve an app; its URL."""
    listener = socket.socket()
    if send_buffer:  # which accepted connections inherit
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    config = uvicorn.Config(app, log_config=None, lifespan="on", timeout_graceful_shutdown=9, **options)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        httpx.get(url, timeout=PATIENCE)  # answered as soon as it is ready
        yield url
    finally:
        server.should_exit = True
        thread.join()


@asynccontextmanager
async def serving_in_loop(app: ASGIApp) -> AsyncGenerator[str]:
    """Serve an app in the event loop of the test; its URL."""
    server = uvicorn.Server(uvicorn.Config(app, lifespan="on", ws="none", log_level="warning"))
    with socket.create_server(("127.0.0.1", 0)) as listener:  # who connects early waits in its queue
        task = asyncio.create_task(server.serve([listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            server.should_exit = True
            await task


def running_in_loop(backend: Backend, **settings: Any) -> AbstractAsyncContextManager[str]:
    """Serve OpenAI's API, and the page, in the event loop of the test; its URL."""
    return serving_in_loop(create_app(backend, ServerSettings(**settings)))


@asynccontextmanager
async def official(url: str, **options: Any) -> AsyncGenerator[openai.AsyncOpenAI]:
    """OpenAI's own client."""
    transport = httpx.AsyncClient(verify=False)  # which would read all certificates
    settings: Any = {"api_key": "any", "max_retries": 0, **options}
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", http_client=transport, **settings) as client:
        yield client


async def read(asked: Awaitable[Any]) -> list[Any]:
    """All chunks of a stream of OpenAI's client, which leaves generators to the loop's care."""
    async with await asked as stream:
        chunks = [chunk async for chunk in stream]
    del stream
    for _ in range(5):
        await asyncio.sleep(0)
    return chunks


def ask(server: LiveServer, path: str = CHAT, **fields: Any) -> httpx.Response:
    """Ask the model `m` of a server a question, with further fields of the request."""
    prompt = {"messages": [{"role": "user", "content": "Why?"}]} if path == CHAT else {"prompt": "Why?"}
    return httpx.post(server.url + path, json={"model": "m", **prompt, **fields}, timeout=PATIENCE)


def http_request(path: str, body: bytes, *headers: str) -> bytes:
    """A POST as bytes."""
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body
