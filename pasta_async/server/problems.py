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
    from collections.abc import Iterable

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

    from pasta_async.server.settings import ServerSettings

__all__ = ["LOG", "Problem", "problem_of", "refused", "told"]

LOG = logging.getLogger("pasta_async.server")

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class Problem(Exception):
    """What is wrong with a request, or went wrong with its answer, as a client is told.

    Args:
        message: What, and what to do about it.
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
        self.message: str = message
        self.status: int = status
        self.code: str | None = code
        self.param: str | None = param
        self.retry_after: float | None = retry_after
        self.retry: bool | None = retry
        self.partial: str | None = partial

    @property
    def body(self) -> dict[str, Any]:
        """The JSON object that says so."""
        kind = _KINDS.get(self.status) or ("server_error" if self.status >= 500 else _KINDS[400])
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        if self.partial is not None:
            error["partial"] = self.partial
        return {"error": error}

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


def told(error: Exception, settings: ServerSettings) -> Problem:
    """What to tell a client about an error; what is not the client's fault goes to the log as well."""
    problem = problem_of(error)
    if problem.status >= 500:
        trace = error.__traceback__ if problem.code == "internal_error" else None
        frames = "".join(traceback.format_tb(trace))
        said = (
            str(error) if settings.log_text or isinstance(error, BackendConnectError) else "(no text in logs)"
        )
        LOG.error("%s: %s\n%s", type(error).__name__, said, frames)
    return problem


def problem_of(error: Exception) -> Problem:
    """What to tell a client about an error that ended its request."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, InvalidRequestError):
        return Problem(
            str(error), code="context_length_exceeded" if isinstance(error, PromptTooLongError) else None
        )
    problem = _failure(error)
    if isinstance(error, PastaError) and error.partial is not None:
        problem.partial = error.partial.text
    return problem


def _failure(error: Exception) -> Problem:
    if isinstance(error, GenerationTimeoutError):
        return Problem(str(error), status=504, code="timeout", retry=False)
    if isinstance(error, PastaError):
        return _of_engine(error, error.__cause__ if isinstance(error.__cause__, BackendError) else error)
    return Problem("the server failed; its log has more", status=500, code="internal_error")


def _of_engine(error: PastaError, cause: BaseException) -> Problem:
    if isinstance(cause, BackendConnectError):
        return Problem(str(error), status=503, code="engine_unreachable")
    if isinstance(cause, BackendStatusError):
        if cause.status in (400, 413, 422):
            return Problem(str(error), code="refused_by_engine")
        if cause.status in (429, 503):
            return Problem(str(error), status=503, code="engine_busy", retry_after=cause.retry_after)
    return Problem(str(error), status=502, code="engine_failed")


def refused(error: ValidationError) -> Problem:
    """What is wrong with a body that is not what the API takes, in OpenAI's words: its first mistake."""
    first = _plainest(error.errors(include_url=False, include_context=False))
    param = ".".join(str(part) for part in first["loc"] if not _is_union_tag(part))
    match first["type"]:
        case "missing":
            return Problem(
                f"Missing required parameter: '{param}'.", code="missing_required_parameter", param=param
            )
        case "extra_forbidden":
            return Problem(f"Unknown parameter: '{param}'.", code="unknown_parameter", param=param)
        case _:
            return Problem(f"Invalid '{param}': {first['msg']}.", code="invalid_value", param=param)


def _plainest(errors: Iterable[ErrorDetails]) -> ErrorDetails:
    """Of what pydantic complains about, the thing to tell: a missing or unknown field before all."""
    order = {"missing": 0, "extra_forbidden": 1}
    return min(errors, key=lambda error: (len(error["loc"]), order.get(error["type"], 2)))


_UNION_TAGS = ("str", "int", "constrained-str", "TextPart", "ForeignPart")


def _is_union_tag(part: int | str) -> bool:
    """Pydantic puts the member of a union into the place of an error: `messages.0.content.str`."""
    return isinstance(part, str) and (part in _UNION_TAGS or "[" in part)
