"""Errors in OpenAI's form: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import logging
import math
import traceback
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse

from pasta_async.errors import (
    BackendConnectError,
    BackendError,
    BackendStatusError,
    GenerationTimeoutError,
    InvalidRequestError,
    PastaError,
    PromptTooLongError,
)

if TYPE_CHECKING:
    from pydantic import ValidationError

__all__ = ["ApiError", "api_error", "invalid_body", "log_failure"]

_LOG = logging.getLogger("pasta_async.server")

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """An error as a client of the API sees it.

    Args:
        message: What is wrong, and what to do about it.
        status: HTTP status.
        code: OpenAI's name for it, where there is one.
        param: The field of the request that is to blame.
        retry_after: Seconds after which asking again may help.
        retry: Whether OpenAI's client may ask again by itself (`x-should-retry`); None: as it sees fit.
        partial: Text of the answer so far.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
        retry: bool | None = None,
        partial: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status: int = status
        self.code: str | None = code
        self.param: str | None = param
        self.retry_after: float | None = retry_after
        self.retry: bool | None = retry
        self.partial: str | None = partial

    @property
    def body(self) -> dict[str, Any]:
        """The JSON object of the reply."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": error if self.partial is None else {**error, "partial": self.partial}}

    @property
    def response(self) -> JSONResponse:
        """The whole HTTP response."""
        headers: dict[str, str] = {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after)))
        if self.retry is not None:
            headers["x-should-retry"] = str(self.retry).lower()
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(self.body, self.status, headers)


def api_error(error: Exception) -> ApiError:
    """The error that a client sees for one that ended its request."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InvalidRequestError):
        too_long = isinstance(error, PromptTooLongError)
        return ApiError(str(error), code="context_length_exceeded" if too_long else None)
    if isinstance(error, GenerationTimeoutError):
        found = ApiError(str(error), status=504, code="timeout", retry=False)
    elif isinstance(error, PastaError):
        found = _engine_error(error)
    else:
        found = ApiError("the server failed; its log has more", status=500, code="internal_error")
    if isinstance(error, PastaError) and error.partial is not None:
        found.partial = error.partial.text
    return found


def _engine_error(error: PastaError) -> ApiError:
    cause = error.__cause__ if isinstance(error.__cause__, BackendError) else error
    if isinstance(cause, BackendConnectError):
        return ApiError(str(error), status=503, code="engine_unreachable")
    if isinstance(cause, BackendStatusError):
        if cause.status in (400, 413, 422):
            return ApiError(str(error), code="refused_by_engine")
        if cause.status in (429, 503):
            return ApiError(str(error), status=503, code="engine_busy", retry_after=cause.retry_after)
    return ApiError(str(error), status=502, code="engine_failed")


def log_failure(error: Exception, *, text: bool) -> ApiError:
    """As `api_error`; what is not the client's fault is logged as well.

    Args:
        error: What ended a request.
        text: Whether the error's message, which may quote a prompt, may be logged.
    """
    found = api_error(error)
    if found.status >= 500:
        message = str(error) if text or isinstance(error, BackendConnectError) else "(no text in logs)"
        trace = error.__traceback__ if found.code == "internal_error" else None
        frames = "".join(traceback.format_tb(trace))
        _LOG.error("%s: %s\n%s", type(error).__name__, message, frames)
    return found


def invalid_body(error: ValidationError) -> ApiError:
    """What is wrong with a body that is not what the API takes, in OpenAI's words: its first mistake."""
    order = {"missing": 0, "extra_forbidden": 1}
    first = min(
        error.errors(include_url=False, include_context=False, include_input=False),
        key=lambda found: (len(found["loc"]), order.get(found["type"], 2)),
    )
    param = ".".join(str(part) for part in first["loc"] if not _is_union_member(part))
    match first["type"]:
        case "missing":
            message, code = f"Missing required parameter: '{param}'.", "missing_required_parameter"
        case "extra_forbidden":
            message, code = f"Unknown parameter: '{param}'.", "unknown_parameter"
        case _:
            message, code = f"Invalid '{param}': {first['msg']}.", "invalid_value"
    return ApiError(message, code=code, param=param)


_UNION_MEMBERS = ("str", "int", "constrained-str", "TextPart", "ForeignPart")


def _is_union_member(part: int | str) -> bool:
    """Pydantic puts the member of a union into the place of an error: `messages.0.content.str`."""
    return isinstance(part, str) and (part in _UNION_MEMBERS or "[" in part)
