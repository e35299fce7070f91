"""The base of what users set: pydantic models whose complaints belong to the library's own error tree."""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import Repr
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from pasta_async.errors import InvalidRequestError

__all__ = ["Options"]


class Options(BaseModel):
    """Frozen values; unknown fields and bad values raise `InvalidRequestError`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    def __init__(self, /, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            found = (
                f"{self._field_label(e['loc'])}: {e['msg']} (got {_shown.repr(e['input'])})"
                for e in error.errors(include_url=False)
            )
            raise InvalidRequestError(f"{type(self).__name__}: {'; '.join(found)}") from error

    @classmethod
    def of(cls, value: Self | Mapping[str, Any] | None) -> Self:
        """The value itself, one made of a mapping's fields, or the defaults.

        Raises:
            InvalidRequestError: It is something else, or a field is bad.
        """
        if isinstance(value, cls):
            return value
        if value is None:
            return cls()
        if not isinstance(value, Mapping):
            raise InvalidRequestError(
                f"{cls.__name__}: this, or a mapping of its fields, not {_shown.repr(value)}"
            )
        return cls(**{str(name): field for name, field in value.items()})

    @classmethod
    def _field_label(cls, path: tuple[int | str, ...]) -> str:
        return ".".join(map(str, path))


_shown = Repr()
_shown.maxstring = _shown.maxother = 80
