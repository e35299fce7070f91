"""The engine that all methods share, as those who talk to it over HTTP meet it: an OpenAI endpoint."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import httpx

from pasta_async import Client
from pasta_async.backends import WrappingBackend
from pasta_async.errors import BackendError
from pasta_async.evals.forcing import FORCE, FORCED_LIMITS, force

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from pasta_async.protocol import Backend, DecodeRequest, Piece

    Ids = tuple[int, ...]

__all__ = ["Endpoint"]


class Endpoint:
    """An OpenAI endpoint in front of an engine, opened when it is first asked.

    SGLang has its own. Before any other backend goes this library's server, on a real socket, in this process
    and on this event loop: the embedded engine belongs to both.

    Args:
        backend: The engine. It stays open when this is closed.
        url: Where it is, as for `pasta_async.generate`; a server's own endpoint is used.
    """

    def __init__(self, backend: Backend, url: str) -> None:
        self._forced = _ForcedReplies(backend)
        self._own = url.rstrip("/") if url.startswith("http") else None
        self._opening = asyncio.Lock()
        self._open = AsyncExitStack()
        self._http: httpx.AsyncClient | None = None
        self._model = ""

    async def http(self) -> httpx.AsyncClient:
        """A client of the endpoint. Cancelling it leaves what is open to `aclose`.

        Raises:
            BackendError: The server's packages are not installed.
            httpx.HTTPError: The endpoint cannot be reached.
        """
        async with self._opening:
            if self._http is None:
                url = self._own or await self._open.enter_async_context(_served(self._forced))
                made = httpx.AsyncClient(
                    base_url=url, timeout=None, limits=httpx.Limits(max_connections=None)
                )
                http = await self._open.enter_async_context(made)
                found = (await http.get("/v1/models")).raise_for_status().json()
                self._model, self._http = found["data"][0]["id"], http
        return self._http

    async def body(self, prompt: str, target: Ids) -> dict[str, Any]:
        """A chat completion that asks for `prompt`, and is made to answer `target`.

        It raises what `http` raises. Cancelling it is safe.
        """
        await self.http()
        messages = [{"role": "user", "content": prompt}]
        # one token more than needed: an engine may look at the limit before it looks at the stop token
        limit = len(target) + 1
        body = {"model": self._model, "messages": messages, "temperature": 0, "max_tokens": limit}
        plain = {"pasta": False}
        if self._own:
            forced = {"custom_logit_processor": FORCE, "custom_params": {"forced": [*target]}}
            return {**body, "chat_template_kwargs": plain, **forced}
        self._forced.targets[tuple(await self._forced.encode_chat(messages, plain))] = target
        return {**body, "pasta": {"baseline": True}}

    async def aclose(self) -> None:
        """Close what was opened here; requests under way end. A cancellation is raised after that."""
        await self._open.aclose()


class _ForcedReplies(WrappingBackend):
    """Another backend, whose answers to known prompts are given."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.targets: dict[Ids, Ids] = {}

    def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        return self.inner.decode(force(self.inner, request, self.targets[request.ids]))

    async def aclose(self) -> None:
        self.targets.clear()


@asynccontextmanager
async def _served(backend: Backend) -> AsyncGenerator[str]:
    """This library's server in front of a backend; its URL."""
    try:
        import uvicorn

        from pasta_async.server import ServerSettings, create_app
    except ModuleNotFoundError as error:
        raise BackendError(f"an endpoint needs {error.name!r}: pip install 'pasta_async[server]'") from error

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Generator[None]:
            yield  # Ctrl-C is the command's

    settings = ServerSettings(api_keys=(), api_keys_file=None, max_answers=2**20, timeout=1e9)
    async with Client(backend, limits=FORCED_LIMITS) as client:
        app = create_app(client, settings)
        listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        server = Server(uvicorn.Config(app, log_config=None, access_log=False, ws="none"))
        running = asyncio.create_task(server.serve(sockets=[listener]), name="pasta endpoint")
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await running
