"""Events of an answer as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pasta_async.events import (
    AnswerDone,
    DiagnosticFound,
    TextDelta,
    ThreadDelta,
    ThreadDone,
    ThreadFailed,
)

if TYPE_CHECKING:
    from pasta_async.events import Event

__all__ = ["event_fields"]


def event_fields(event: Event) -> dict[str, Any]:
    """An event as a JSON object: its fields by their names, `type` among them.

    Records and the generation are objects as `model_dump` makes them; a delta is told without its snapshot.
    """
    match event:
        case TextDelta():
            return {"type": event.type, "delta": event.delta}
        case ThreadDelta():
            return {"type": event.type, "thread": event.thread, "delta": event.delta}
        case ThreadDone():
            record = event.record.model_dump(mode="json")
            return {"type": event.type, "thread": event.thread, "record": record}
        case ThreadFailed():
            error = {"type": type(event.error).__name__, "message": str(event.error)}
            return {"type": event.type, "thread": event.thread, "error": error, "action": event.action}
        case DiagnosticFound():
            return {"type": event.type, "diagnostic": asdict(event.diagnostic)}
        case AnswerDone():
            return {"type": event.type, "generation": event.generation.model_dump(mode="json")}
        case _:
            return asdict(event)
