"""The base of what users set: pydantic models whose complaints belong to the library's own error tree."""

from __future__ import annotations

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
            told = (
                f"{'.'.join(map(str, e['loc']))}: {e['msg']} (got {e['input']!r})" for e in error.errors()
            )
            raise InvalidRequestError(f"{type(self).__name__}: {'; '.join(told)}") from error
