"""How the server logs: lines to read, or JSON lines, both with the ids of answers and threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter
from uvicorn.logging import DefaultFormatter

from pasta_async.telemetry.logs import with_ids

if TYPE_CHECKING:
    import logging

    from pasta_async.server.settings import ServerSettings

__all__ = ["log_config"]

_KNOWN = frozenset([*RESERVED_ATTRS, "taskName", "color_message"])
_LOGGERS = ("uvicorn", "pasta_async")


def log_config(settings: ServerSettings) -> dict[str, Any]:
    """A configuration for `logging.config.dictConfig`: a line on standard error for each record."""
    level = settings.log_level.upper()
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"()": _json_formatter}, "text": {"()": _TextFormatter}},
        "filters": {"ids": {"()": _ids}},
        "handlers": {
            "stderr": {
                "class": "logging.StreamHandler",
                "stream": "ext://sys.stderr",
                "formatter": settings.log_format,
                "filters": ["ids"],
            }
        },
        "loggers": {name: {"handlers": ["stderr"], "level": level, "propagate": False} for name in _LOGGERS},
    }


def _json_formatter() -> JsonFormatter:
    return JsonFormatter(
        ["levelname", "name", "message"],
        timestamp="time",
        rename_fields={"levelname": "level", "name": "logger"},
        reserved_attrs=sorted(_KNOWN),
    )


def _ids() -> Any:
    return with_ids


class _TextFormatter(DefaultFormatter):
    """uvicorn's lines, with the fields of a record behind its message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelprefix)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = [f" {name}={value}" for name, value in vars(record).items() if name not in _KNOWN]
        return super().formatMessage(record) + "".join(fields)
