"""Events of a plan that is being filled, and the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, SerializeAsAny

from pasta_async.errors import PastaError
from pasta_async.results import Generation, ThreadRecord, Usage

T = TypeVar("T")
"""The type of a plan's value."""


@dataclass(frozen=True, slots=True)
class FieldStarted:
    """A hole's request is being sent, for the first time or again; `path` names its field."""

    path: str
    thread: int
    time: float
    """Seconds since the answer began."""
    type: Literal["field.started"] = "field.started"


@dataclass(frozen=True, slots=True)
class FieldDelta:
    """More of a field: the characters of a string, or the JSON text of another value."""

    path: str
    """`stars`, or `sections[2].text`."""
    delta: str
    type: Literal["field.delta"] = "field.delta"


@dataclass(frozen=True, slots=True)
class FieldDone:
    """A field is whole, and meets its schema. The pydantic model's own validators run at the end.

    For a list whose items have threads it is the list's outline: the items' other fields are done later.
    """

    path: str
    value: Any
    type: Literal["field.done"] = "field.done"


@dataclass(frozen=True, slots=True)
class FillDone:
    """Everything is written. Always the last event, unless the run fails."""

    filled: SerializeAsAny[Filled[Any]]
    type: Literal["fill.done"] = "fill.done"


FillEvent = FieldStarted | FieldDelta | FieldDone | FillDone
"""Every event of a plan that is being filled, told apart by class or by `type`."""


class Filled(BaseModel, Generic[T], frozen=True):
    """A plan that was filled."""

    value: T
    """The pydantic model's instance, the object of a schema, or the text of each hole of a template."""
    text: str
    """The JSON text, or the whole text of a template."""
    truncated: tuple[str, ...]
    """Paths of fields that were cut off at their token limit, and closed: valid, maybe not complete."""
    generation: Generation
    """The record of the run: each hole is a thread, its path the thread's topic."""

    @property
    def critical_path(self) -> int:
        """Tokens on the longest chain of holes that waited for one another."""
        return self.generation.critical_path

    @property
    def threads(self) -> tuple[ThreadRecord, ...]:
        """A record for each hole."""
        return self.generation.threads

    @property
    def usage(self) -> Usage:
        """Tokens over all requests."""
        return self.generation.usage


class ValidationFailedError(PastaError):
    """The object meets its schema, but the pydantic model's validators refuse it; `__cause__` says why."""

    def __init__(self, message: str, *, filled: Filled[Any]) -> None:
        super().__init__(message)
        self.filled = filled
        """The result without its validation: the value is plain JSON."""
        self.partial: Generation | None = filled.generation
