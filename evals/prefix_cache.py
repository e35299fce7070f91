"""Begin with an empty prefix cache, so that no answer finds what an earlier one left."""

from __future__ import annotations

import httpx

from pasta_async.errors import BackendError

__all__ = ["empty_prefix_cache"]


async def empty_prefix_cache(url: str) -> None:
    """Empty the prefix cache of an SGLang server on which nothing is running.

    Raises:
        BackendError: The server cannot be reached, or refuses because requests are running.

    Cancelling it may leave the cache as it was.
    """
    where = f"{url.rstrip('/')}/flush_cache"
    try:
        async with httpx.AsyncClient(timeout=300) as http:
            (await http.post(where)).raise_for_status()
    except httpx.HTTPError as error:
        raise BackendError(
            f"{where}: {error or type(error).__name__}. Is it an SGLang server, and has it nothing to do?"
        ) from error
