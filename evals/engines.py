"""Open what is measured: a backend with a cold prefix cache, plain or forced to write given answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Unpack

import httpx

from pasta_async import Backend, Client
from pasta_async.backends import BackendOptions, open_backend
from pasta_async.errors import BackendError
from pasta_async.evals.forcing import FORCED_LIMITS
from pasta_async.evals.simulator import EngineModel, SimulatedBackend
from pasta_async.options import Settings


@asynccontextmanager
async def cold_backend(url: str, **options: Unpack[BackendOptions]) -> AsyncGenerator[Backend]:
    """A connected backend whose prefix cache is empty: loaded anew, or flushed; closed at the end.

    `simulated:step=0.01` is engines on a virtual clock (`EngineModel.of`). Options are those of
    `open_backend`; a server is sent the `api_key`.
    """
    if url.startswith("simulated:"):
        backend = SimulatedBackend(EngineModel.of(url.removeprefix("simulated:")))
    else:
        if url.startswith("http"):
            await _empty_prefix_cache(url)
            options["max_connections"] = FORCED_LIMITS.client_threads
            options["api_key"] = api_key()
        elif url.startswith("sglang:"):
            options["server_args"] = _server_arguments(Path(url.removeprefix("sglang:")))
        backend = open_backend(url, **options)
    try:
        await backend.connect()
        yield backend
    finally:
        await backend.aclose()


def api_key() -> str | None:
    """`PASTA_API_KEY`, as a `Client` reads it; None without one."""
    key = Settings().api_key
    return key.get_secret_value() if key else None


def authorization() -> dict[str, str]:
    """The headers that carry it."""
    return {"Authorization": f"Bearer {key}"} if (key := api_key()) else {}


def _server_arguments(folder: Path) -> dict[str, str | bool]:
    """What forced decoding and `by hand` need of a server; it makes weights up where there are none."""
    made_up = {} if any(folder.glob("*.safetensors")) else {"load_format": "dummy"}
    return {"enable_custom_logit_processor": True, "enable_cache_report": True, **made_up}


async def _empty_prefix_cache(url: str) -> None:
    """Empty the prefix cache of an SGLang server; cancelling it may leave the cache as it was."""
    where = f"{url.rstrip('/')}/flush_cache"
    try:
        async with httpx.AsyncClient(timeout=300, headers=authorization()) as http:
            (await http.post(where)).raise_for_status()
    except httpx.HTTPError as error:
        raise BackendError(
            f"{where}: {error or type(error).__name__}. Is it an SGLang server, and is it idle?"
        ) from error


@asynccontextmanager
async def cold_client(url: str, **options: Unpack[BackendOptions]) -> AsyncGenerator[Client]:
    """A connected client of a `cold_backend`."""
    async with cold_backend(url, **options) as backend, Client(backend) as client:
        await client.connect()
        yield client
