"""Begin with an empty prefix cache, so that no answer finds what an earlier one left."""

from __future__ import annotations

import httpx

__all__ = ["empty_prefix_cache"]


async def empty_prefix_cache(url: str) -> None:
    """Empty the prefix cache of an SGLang server on which nothing is running.

    Raises:
        httpx.HTTPError: The server cannot be reached, or refuses because requests are running.

    Cancelling it may leave the cache as it was.
    """
    async with httpx.AsyncClient(timeout=30) as http:
        (await http.post(f"{url.rstrip('/')}/flush_cache")).raise_for_status()
