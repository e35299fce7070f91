"""A router in front of SGLang servers (`sglang-router` 0.3.2, sgl-model-gateway): what it passes on.

It passes `/generate` and the OpenAI endpoints on to one of its workers, and closes that request when its own
connection is closed. It has no `/tokenize` of SGLang's form, no `/abort_request` and no `/server_info`: for
these its workers are asked directly, at the addresses it tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from pasta_async.errors import BackendConnectError, BackendProtocolError, BackendStatusError

if TYPE_CHECKING:
    from pasta_async.backends.sglang.transport import Server

__all__ = ["ROUTING_KEY", "engines"]

ROUTING_KEY = "X-SMG-Routing-Key"
"""The header by which a router with `--policy manual` keeps requests together; others ignore it."""


async def engines(server: Server) -> list[Server]:
    """The workers of a router that are well; the server itself, if it is no router.

    Raises:
        BackendConnectError: Nothing listens there, or the router has no worker that is well.
    """
    try:
        listed = (await server.get("/workers")).get("workers")
    except (BackendStatusError, BackendProtocolError):
        return [server]  # if something else is wrong with it, whoever asks next will say so
    if not isinstance(listed, list):
        return [server]
    workers = cast("list[dict[str, Any]]", listed)
    urls = [str(worker["url"]) for worker in workers if worker.get("is_healthy") and "url" in worker]
    if not urls:
        raise BackendConnectError(f"the router at {server.url} has no worker that is well")
    return [server.at(url) for url in urls]
