"""The JSON schemas of plans: that of a form, the annotations in it, and the longest values that meet it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from pydantic import BaseModel, Field, PydanticUserError, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from pasta_async.errors import InvalidRequestError
from pasta_async.prompts import check_json

KEY = "x-pasta"
"""The keyword for a field's annotations in a JSON schema: an object with `after`, `tokens`, `together`."""

USUAL_TOKENS = 256
"""Token limit of a hole that neither `Tokens` nor its schema bounds."""

_LONGEST_SCHEMA = 100_000  # characters of JSON: servers take schemas of anybody; each hole has the $defs
_SCHEMAS_LOOKED_AT = 200  # to find the longest value of a field, whose schema may refer to itself
_NUMBER_BYTES = 22  # of a number that its schema does not bound; a longer one is cut off
_LARGEST_COUNT = 2**63  # of tokens, items, characters: Python writes no number of more than 4,300 digits
_NO_MEANING = (
    *(KEY, "title", "default", "examples", "description", "deprecated", "readOnly", "writeOnly"),
    "discriminator",
)
_SHARED = ("$defs", "definitions")
_DATA = ("const", "enum", "default", "examples")  # keywords whose values are no schemas
_NAMED_SCHEMAS = ("properties", *_SHARED, "patternProperties")


Schema = Mapping[str, Any]


class _Settings(BaseModel, extra="forbid", strict=True):
    """The object that stands under `x-pasta`."""

    after: list[str] = Field(default=[], fail_fast=True)
    tokens: int = Field(default=USUAL_TOKENS, ge=1, lt=_LARGEST_COUNT)
    together: str = ""


def annotation_settings(settings: object, source: str) -> dict[str, Any]:
    """Annotations as `x-pasta` has them, those that are given; `source` names them in the error."""
    try:
        return _Settings.model_validate(settings).model_dump(exclude_unset=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InvalidRequestError(f"{source} cannot be used: {place}: {first['msg']}") from error


class _ModelSchema(GenerateJsonSchema):
    """JSON schemas of pydantic models."""

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        """A number. By pydantic any string would do as well, also one that the model then refuses."""
        value = super().decimal_schema(schema)
        return value["anyOf"][0] if "anyOf" in value else value


def schema_of(form: object) -> Schema:
    """The JSON schema of a form: a pydantic model's, or the form itself.

    Raises:
        InvalidRequestError: It is neither, or too long, or cannot be sent as JSON.
    """
    if isinstance(form, Mapping):
        schema = cast("Schema", form)
    elif isinstance(form, type) and issubclass(form, BaseModel):
        try:
            schema = form.model_json_schema(schema_generator=_ModelSchema)
        except PydanticUserError as error:
            raise InvalidRequestError(f"{form.__name__} has no JSON schema: {error}") from error
    else:
        raise InvalidRequestError(
            f"a plan is made of a pydantic model, a JSON schema or a Plan, not {form!r:.80}"
        )
    check_json(schema, "the schema")
    if len(json.dumps(schema)) > _LONGEST_SCHEMA:
        raise InvalidRequestError(f"the schema has more than {_LONGEST_SCHEMA} characters")
    schema = _with_root_defined(schema)
    definitions = definitions_of(schema)
    # That of a recursive model is a reference to itself.
    return {**resolved(schema, definitions), **definitions}


def _with_root_defined(schema: Schema) -> Schema:
    """The schema with itself among its definitions, if it refers to itself (`#`) or to a place in itself.

    A field is written by a schema of its own, in which `#` would mean another thing.
    """
    name = "root"
    while any(name in definitions for definitions in definitions_of(schema).values()):
        name += "_"
    root_references = 0

    def rewritten(part: Any, *, has_names: bool = False) -> Any:
        nonlocal root_references
        if isinstance(part, list):
            return [rewritten(item) for item in cast("list[Any]", part)]
        if not isinstance(part, Mapping):
            return part
        # The keys of `properties` and the like are names, not keywords.
        changed = {
            key: value
            if key in _DATA and not has_names
            else rewritten(value, has_names=key in _NAMED_SCHEMAS and not has_names)
            for key, value in cast("Schema", part).items()
        }
        reference = changed.get("$ref")
        if isinstance(reference, str) and re.match(r"#(?!/(?:\$defs|definitions)(?:/|$))(?:/|$)", reference):
            root_references += 1
            changed["$ref"] = f"#/$defs/{name}{reference[1:]}"
        return changed

    whole = rewritten(schema)
    if not root_references:
        return schema
    root = {key: value for key, value in whole.items() if key not in (*_SHARED, "$id", "$schema")}
    return {**whole, "$defs": {**definitions_of(whole).get("$defs", {}), name: root}}


def properties_of(schema: Schema) -> dict[str, Schema]:
    """The schemas of an object's fields, by name."""
    fields: Any = schema.get("properties")
    if not isinstance(fields, Mapping):
        return {}
    named = cast("Mapping[str, Any]", fields)
    for key, field in named.items():
        if not isinstance(field, Mapping):
            raise InvalidRequestError(f"the schema of {key!r} is an object, not {field!r:.80}")
    return dict(named)


def definitions_of(schema: Schema) -> Schema:
    """The part of a schema that references lead to."""
    return {name: schema[name] for name in _SHARED if isinstance(schema.get(name), Mapping)}


def field_settings(field: Schema, name: str, definitions: Schema) -> dict[str, Any]:
    """The `x-pasta` of a field: also where it stands in a type referred to, or in an optional one."""
    target = resolved(field, definitions)
    value = resolved(_beside_null(target), definitions)
    settings: dict[str, Any] = {}
    for schema in (value, target, field):
        if KEY in schema:
            settings |= annotation_settings(schema[KEY], f"{KEY} of {name!r}")
    return settings


def _beside_null(schema: Schema) -> Schema:
    """The schema of an optional value where it is not null; any other schema as it is."""
    options: Any = schema.get("anyOf")
    if not isinstance(options, list):
        return schema
    values = [option for option in cast("list[Any]", options) if option != {"type": "null"}]
    return cast("Schema", values[0]) if len(values) == 1 and isinstance(values[0], Mapping) else schema


def annotated_below(
    field: Schema, definitions: Schema, path: str, visited: set[int] | None = None
) -> Iterator[str]:
    """Paths below a field that have annotations: of items, and of the fields of objects in it."""
    visited = set() if visited is None else visited
    schema = resolved(_beside_null(resolved(field, definitions)), definitions)
    if id(schema) in visited:  # a schema may refer to itself
        return
    visited.add(id(schema))
    fields: Any = schema.get("properties")
    parts = {f"{path}[]": schema.get("items")}
    if isinstance(fields, Mapping):
        parts |= {f"{path}.{name}": part for name, part in cast("Schema", fields).items()}
    for name, part in parts.items():
        if not isinstance(part, Mapping):  # `true`, say
            continue
        part = cast("Schema", part)
        if field_settings(part, name, definitions):
            yield name
        yield from annotated_below(part, definitions, name, visited)


def resolved(schema: Any, definitions: Schema) -> Schema:
    """The schema that one refers to, or itself; an empty one for `true`, which every value meets."""
    if isinstance(schema, Mapping):
        _, _, path = str(cast("Schema", schema).get("$ref", "")).partition("#/")
        place, _, name = path.partition("/")
        schema = definitions.get(place, {}).get(name, cast("Schema", schema))
    return cast("Schema", schema) if isinstance(schema, Mapping) else {}


def object_schema(fields: Mapping[str, Schema], definitions: Schema) -> Schema:
    """The schema of an object with these fields and no others, all of a `bare_schema`."""
    schema = {
        "type": "object",
        "properties": {**fields},
        "required": list(fields),
        "additionalProperties": False,
    }
    return {**schema, **definitions} if '"$ref"' in json.dumps(schema) else schema


def bare_schema(schema: Schema, keep: tuple[str, ...] = ()) -> Schema:
    """A schema without the keywords that mean nothing to a grammar, except for those to `keep`.

    For a grammar, which keeps none, its objects get no keys but those that they name: a model may go on to
    write keys of its own. Not so where schemas are combined: each would forbid the keys of the others.
    """
    return _bare(schema, keep, is_closed=not keep and not _combines(schema))


def _combines(schema: Any) -> bool:
    """True if some object has to meet several schemas at once."""
    if isinstance(schema, list):
        return any(map(_combines, cast("list[Any]", schema)))
    if not isinstance(schema, Mapping):
        return False
    keywords = cast("Schema", schema)
    several: Any = keywords.get("allOf", ())  # pydantic before 2.9 has one of a single schema
    parts = [key for key in ("properties", "$ref", "anyOf", "oneOf") if key in keywords]
    if len(parts) + (len(cast("list[Any]", several)) if isinstance(several, list) else 0) > 1:
        return True
    for key, value in keywords.items():
        if key in _NAMED_SCHEMAS and isinstance(value, Mapping):  # its keys are names, not keywords
            if any(map(_combines, cast("Schema", value).values())):
                return True
        elif key not in _DATA and _combines(value):
            return True
    return False


def _bare(schema: Any, keep: tuple[str, ...], *, is_closed: bool) -> Any:
    if isinstance(schema, list):
        return [_bare(item, keep, is_closed=is_closed) for item in cast("list[Any]", schema)]
    if not isinstance(schema, Mapping):
        return schema
    bare: dict[str, Any] = {}
    for key, value in cast("Schema", schema).items():
        if key in _NAMED_SCHEMAS and isinstance(value, Mapping):  # its keys are names, not keywords
            fields = cast("Schema", value).items()
            bare[key] = {name: _bare(field, keep, is_closed=is_closed) for name, field in fields}
        elif key in ("const", "enum"):
            bare[key] = value
        elif key not in _NO_MEANING or key in keep:
            # The options of a union that a field's value tells apart exclude one another in any case.
            is_told_apart = key == "oneOf" and "discriminator" in schema
            bare["anyOf" if is_told_apart else key] = _bare(value, keep, is_closed=is_closed)
    if "properties" in bare and is_closed:
        bare.setdefault("additionalProperties", False)
    return bare


def token_limit(field: Schema, settings: Mapping[str, Any], definitions: Schema) -> tuple[int, bool]:
    """The token limit of a field, and False if nothing bounds it."""
    if "tokens" in settings:
        return settings["tokens"], True
    size = _ValueSizes(definitions).of(field)
    if size is None:
        return USUAL_TOKENS, False
    return min(size + 2, USUAL_TOKENS), size + 2 <= USUAL_TOKENS  # a token has at least one byte


class _ValueSizes:
    """Bytes of the longest JSON values of schemas. It looks at 200 at most, since one may refer to itself."""

    def __init__(self, definitions: Schema) -> None:
        self._definitions = definitions
        self._schemas_left = _SCHEMAS_LOOKED_AT

    def of(self, schema: Any, depth: int = 8) -> int | None:
        """Bytes of a schema's longest value; None if there is none, or it is not known."""
        schema = resolved(schema, self._definitions)
        if depth == 0 or self._schemas_left == 0:
            return None
        self._schemas_left -= 1
        # A list of values: the longest one.
        choices: Any = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(choices, list):
            texts = [json.dumps(choice, ensure_ascii=False) for choice in cast("list[Any]", choices)]
            return max((len(text.encode()) for text in texts), default=0)
        if isinstance(any_of := schema.get("anyOf"), list):
            sizes = [self.of(choice, depth - 1) for choice in cast("list[Any]", any_of)]
            return None if None in sizes else max((size or 0 for size in sizes), default=0)
        kind = schema.get("type")
        if isinstance(kind, list):
            return self.of({"anyOf": [{**schema, "type": each} for each in cast("list[Any]", kind)]}, depth)
        if kind == "null" or kind == "boolean":
            return 5  # `false`
        if kind == "integer" or kind == "number":
            return _number_size(schema)
        # The brackets, and each item with a comma and a space.
        if kind == "array" and is_count(schema.get("maxItems")) and isinstance(schema.get("items"), Mapping):
            item = self.of(schema["items"], depth - 1)
            return None if item is None else 2 + schema["maxItems"] * (item + 2)
        if kind == "string" and is_count(schema.get("maxLength")):
            return 2 + 12 * schema["maxLength"]  # the quotes; a character may be written as two escapes
        return None


def _number_size(schema: Schema) -> int:
    """Bytes of the longest number of a schema."""
    sides = (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
    ends = [[schema[name] for name in side if isinstance(schema.get(name), int)] for side in sides]
    if schema["type"] == "number" or not all(ends):
        return _NUMBER_BYTES
    # An integer between two ends has no more digits than the longer one, and perhaps a sign.
    return max(len(str(end)) for side in ends for end in side) + 1


def is_count(value: Any) -> bool:
    """True for a number of items, characters or the like, below 2**63."""
    return isinstance(value, int) and 0 <= value < _LARGEST_COUNT
