"""The base of what users set: pydantic models whose complaints belong to the library's own error tree."""

from __future__ import annotations

from reprlib import Repr
from typing import Any, ClassVar

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
    def _field_label(cls, path: tuple[int | str, ...]) -> str:
        return ".".join(map(str, path))


_shown = Repr()
_shown.maxstring = _shown.maxother = 80
