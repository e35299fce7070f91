"""Prometheus metrics, OpenTelemetry traces and structured logs of a client's answers.

    from pasta_async.telemetry.metrics import Metrics

    async with Client("http://127.0.0.1:30000", observers=[Metrics()]) as client:
        ...

Each is an `Observer`, and each has its optional extra: `metrics` for `Metrics`, `otel` for `Tracing`; `Logs`
needs none. docs/serving.md lists every name.
"""

from __future__ import annotations

import asyncio
from typing import Any

from pasta_async.errors import InvalidRequestError, ThreadFailedError
from pasta_async.results import Generation


def error_type(error: BaseException) -> str:
    """The name of an error in metrics, traces and logs: its class, or the class of a thread's own error."""
    if isinstance(error, ThreadFailedError) and error.__cause__ is not None:
        error = error.__cause__
    return type(error).__name__


def outcome(generation: Generation | None, error: BaseException | None) -> str:
    """The end of an answer: `finish_reason`, "abort" (cancelled), "refused" (a bad request) or "error"."""
    if error is None:
        return generation.finish_reason if generation else "stop"
    if isinstance(error, InvalidRequestError):
        return "refused"
    return "abort" if isinstance(error, asyncio.CancelledError) else "error"


def figures(generation: Generation) -> dict[str, Any]:
    """The numbers of an answer that logs and traces show."""
    return {
        "threads": len(generation.threads),
        "width": generation.width,
        "seconds": round(generation.elapsed, 6),
        "first_token": generation.first_token,
        **generation.usage.model_dump(),
        "critical_path": generation.critical_path,
        "text_speedup": round(generation.text_speedup, 3),
    }
