"""Work for a client that may go away."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from pasta_async.server.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from starlette.requests import Request

__all__ = ["unless_gone"]

_T = TypeVar("_T")


async def unless_gone(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """Do some work for a request whose body was read, until its client disconnects.

    Raises:
        Problem: The client has gone, and the work was cancelled. Nobody will read that.

    Cancelling it cancels the work and waits until it is over.
    """
    task, gone = asyncio.create_task(work), asyncio.create_task(_gone(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Problem("the client has gone", status=499)
    finally:
        task.cancel()
        gone.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait((task, gone))


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
