"""`GET /`: the playground, one page with everything in it."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from starlette.responses import HTMLResponse

from pasta_async.trace.standalone import standalone

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

__all__ = ["playground"]


async def playground(_: Request) -> Response:
    """The page to try things on. It may talk to this server and to nobody else."""
    html, headers = _page()
    return HTMLResponse(html, headers=headers)


@cache
def _page() -> tuple[str, dict[str, str]]:
    page = standalone("index.html", ["server/playground", "trace"])
    return page.html, {
        "Content-Security-Policy": page.policy("connect-src 'self'", "frame-ancestors 'none'"),
        "Cross-Origin-Opener-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-cache",
    }
