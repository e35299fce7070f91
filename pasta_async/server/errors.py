"""Errors in OpenAI's form: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import logging
import math
import re
import traceback
from dataclasses import KW_ONLY, dataclass
from typing import Any

from pydantic import ValidationError
from starlette.responses import JSONResponse

from pasta_async.errors import (
    BackendConnectError,
    BackendError,
    BackendStatusError,
    BackendTransportError,
    GenerationTimeoutError,
    InvalidRequestError,
    PastaError,
    PromptTooLongError,
)

_LOG = logging.getLogger("pasta_async.server")

_ADDRESS = re.compile(r"https?://(?:\[[\da-fA-F:.]+\]|[\w.-]+)(?::\d+)?")
"""The address of an engine in a message; the path behind it stays."""

_UNION_MEMBERS = ("str", "int", "constrained-str")
"""Pydantic puts the member of a union into an error's location: `content.str`, or `content.list[Part]`."""

_MOST_MISTAKES = 1000

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


@dataclass(eq=False)
class ApiError(Exception):
    """An error as a client of the API sees it."""

    message: str
    """The mistake, and what to do about it."""
    status: int = 400
    _: KW_ONLY
    code: str | None = None
    """OpenAI's code for the error, where there is one."""
    param: str | None = None
    """The field of the request that is to blame."""
    retry_after: float | None = None
    """Seconds after which the same request may succeed."""
    partial: str | None = None
    """Text of the answer so far."""

    @property
    def body(self) -> dict[str, Any]:
        """The JSON object of the reply."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error if self.partial is None else {**error, "partial": self.partial}}

    @property
    def response(self) -> JSONResponse:
        """The whole HTTP response."""
        headers: dict[str, str] = {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after)))
        if self.code == "timeout":  # OpenAI's client would ask again by itself
            headers["x-should-retry"] = "false"
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(self.body, self.status, headers)


def stopping(partial: str | None = None) -> ApiError:
    """The error for an answer that is still open when the server stops."""
    return ApiError(
        "the server is stopping, and there was no time to end this answer; ask again",
        503,
        code="stopping",
        retry_after=1,
        partial=partial,
    )


def reported(error: Exception, *, log_text: bool) -> ApiError:
    """The error that a client sees for an exception that ended its request.

    It is logged if the server or the engine is to blame.
    With `log_text` any message is logged, which may quote a prompt; else only that of a failed connection.
    """
    reply = _error_for_client(error)
    if reply is not error and reply.status >= 500:
        _log_failure(error, reply, text=log_text)
    return reply


def _error_for_client(error: Exception) -> ApiError:
    """The error that a client sees, without the engine's address."""
    if isinstance(error, ApiError):
        return error
    if not isinstance(error, PastaError):
        return ApiError("the server failed; its log has more", 500, code="internal_error")
    cause = _cause(error)
    status, code = _status(cause)
    message = without_addresses(str(error)) if isinstance(cause, BackendError) else str(error)
    reply = ApiError(message, status, code=code)
    if isinstance(cause, BackendStatusError) and status == 503:
        reply.retry_after = cause.retry_after
    if error.partial and not isinstance(error, InvalidRequestError):
        reply.partial = error.partial.text
    return reply


def without_addresses(message: str) -> str:
    """A message of the library about an engine, for clients, who need not know where it is."""
    return _ADDRESS.sub("the engine", message)


def _cause(error: PastaError) -> PastaError:
    """The engine's own error, where a thread failed with one."""
    return error.__cause__ if isinstance(error.__cause__, BackendError) else error


def _status(cause: PastaError) -> tuple[int, str | None]:
    """The status and the code of an error."""
    match cause:
        case PromptTooLongError():
            return 400, "context_length_exceeded"
        case InvalidRequestError():
            return 400, None
        case GenerationTimeoutError():
            return 504, "timeout"
        case BackendConnectError():
            return 503, "engine_unreachable"
        case BackendStatusError(status=400 | 413 | 422):
            return 400, "refused_by_engine"
        case BackendStatusError(status=429 | 503):
            return 503, "engine_busy"
        case _:
            return 502, "engine_failed"


def _log_failure(error: Exception, reply: ApiError, *, text: bool) -> None:
    is_transport = isinstance(error, PastaError) and isinstance(_cause(error), BackendTransportError)
    message = repr(str(error)) if text or is_transport else "(no text in logs)"  # a line, whatever it quotes
    trace = error.__traceback__ if reply.code == "internal_error" else None
    frames = "".join(["\n", *traceback.format_tb(trace)]) if trace else ""
    _LOG.error("%s: %s%s", type(error).__name__, message, frames)


def invalid_body(error: ValidationError) -> ApiError:
    """The error for a malformed body: its outermost mistake, which says the most."""
    if error.error_count() > _MOST_MISTAKES:  # a dict of each would take gigabytes
        return ApiError(f"Invalid body: it has {error.error_count()} mistakes", code="invalid_value")
    mistakes = error.errors(include_url=False, include_context=False, include_input=False)
    first = min(mistakes, key=lambda mistake: len(mistake["loc"]))
    parts = (str(part) for part in first["loc"] if part not in _UNION_MEMBERS)
    param = ".".join(part for part in parts if "[" not in part) or None
    return ApiError(f"Invalid {param or 'body'}: {first['msg']}", code="invalid_value", param=param)
