"""The body of a request: bounded in size and time, JSON of a known form."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import anyio
from pydantic import BaseModel, ValidationError

from pasta_async.server.problems import Problem, refused

if TYPE_CHECKING:
    from starlette.requests import Request

    from pasta_async.server.settings import ServerSettings

__all__ = ["read_body"]

_Form = TypeVar("_Form", bound=BaseModel)


async def read_body(request: Request, form: type[_Form], settings: ServerSettings) -> _Form:
    """Read and check a body. Cancelling it is safe.

    Raises:
        Problem: It is no JSON, not in that form, too large or too slow.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # which a page of another origin may not send unasked
        raise Problem(f"the content type must be application/json, not {kind or 'missing'!r}", status=415)
    try:
        with anyio.fail_after(settings.body_timeout):
            raw = await _bounded(request, settings.max_body_bytes)
    except TimeoutError:
        raise Problem(f"the body took longer than {settings.body_timeout:g} s", status=408) from None
    try:
        return form.model_validate_json(raw)
    except ValidationError as error:
        raise refused(error) from None


async def _bounded(request: Request, limit: int) -> bytes:
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > limit:
        raise _too_large(limit)
    raw = bytearray()
    async for part in request.stream():
        raw += part
        if len(raw) > limit:
            raise _too_large(limit)
    return bytes(raw)


def _too_large(limit: int) -> Problem:
    return Problem(f"the body has more than {limit} bytes", status=413, code="request_too_large")
