"""The three annotations of a plan's fields. A JSON schema has them under the keyword `x-pasta`."""

from __future__ import annotations

from typing import Any

from pydantic import GetJsonSchemaHandler
from pydantic_core import CoreSchema

from pasta_async.errors import InvalidRequestError

KEY = "x-pasta"
"""The keyword for a field's annotations: an object with `after`, `tokens`, `together`."""


class Annotation:
    """A field's annotation: for `typing.Annotated`, or by name beside a template."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings: dict[str, Any] = settings
        """Its part of `x-pasta`."""

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        schema: dict[str, Any] = handler(core_schema)
        return {**schema, KEY: {**schema.get(KEY, {}), **self.settings}}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.settings})"


class After(Annotation):
    """The fields that this one sees, and so waits for: ``stars: Annotated[int, After("strengths")]``.

    It also sees the fields that they see. A field without `After` sees the prompt alone, and begins at once.

    In the items of a list it parts the fields. Fields without `After` are the outline of all items, which one
    thread writes. The others have a thread for each item, which sees the outline; `After()` sees no more.
    """

    def __init__(self, *fields: str) -> None:
        if not all(isinstance(field, str) for field in fields):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidRequestError(f"After takes names of fields, not {fields!r}")
        super().__init__({"after": list(fields)})


class Tokens(Annotation):
    """The token limit of a field. A value that is cut off there is closed, so that it stays valid."""

    def __init__(self, most: int) -> None:
        if type(most) is not int or most < 1:
            raise InvalidRequestError(f"Tokens takes a whole number from 1 on, not {most!r}")
        super().__init__({"tokens": most})


class Together(Annotation):
    """The group of a field. One thread writes a group; each field sees the group's fields before it."""

    def __init__(self, group: str) -> None:
        if not isinstance(group, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidRequestError(f"Together takes the name of a group, not {group!r}")
        super().__init__({"together": group})
