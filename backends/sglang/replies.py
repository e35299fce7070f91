"""What a server's JSON may hold: its forms are models with types and bounds, and all of it is read here.

A server may be broken, or mean harm. Whatever it sends of another type, or beyond all measure, is a
`BackendProtocolError` where it is read, so that nothing behind has to expect it.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from pasta_async.errors import BackendProtocolError

_T = TypeVar("_T")
_Form = TypeVar("_Form", bound=BaseModel)

Id = Annotated[int, Field(ge=0, lt=2**31)]
"""A token id."""

Size = Annotated[int, Field(ge=1, lt=2**31)]
"""How many of something a server has room for."""

Count = Annotated[int, Field(ge=0, le=2**53)]
"""How many there were."""

Amount = Annotated[float, Field(ge=0, le=1e18)]
"""A sum of measurements; small enough to be squared."""

Listed = Annotated[list[_T], Field(fail_fast=True)]
"""A list whose first bad item is the only one that is told: there may be millions."""


def _few(value: object) -> object:
    if isinstance(value, Sized) and len(value) > 2**16:
        raise ValueError("too many fields")
    return value


Named = Annotated[dict[str, _T], BeforeValidator(_few)]
"""Values by name; each of them that is bad costs memory."""


class Reply(BaseModel):
    """A form that a server's JSON must have. Fields that it does not name may hold anything."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        strict=True, frozen=True, allow_inf_nan=False, protected_namespaces=()
    )


def read(form: type[_Form], value: Any, what: str) -> _Form:
    """A server's JSON in the form that it must have.

    Args:
        form: The form.
        value: What the server sent.
        what: Names it, for the message of an error.

    Raises:
        BackendProtocolError: It has another form. What it says instead, a key perhaps, is not quoted.
    """
    try:
        return form.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise BackendProtocolError(
            f"{what} of another form than SGLang's ({place:.100}: {first['msg']})"
        ) from None
