"""Plans as data: what each hole sees, and how plans are written."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypeAliasType

from pasta_async import InvalidRequestError
from pasta_async.grammar import Grammar
from pasta_async.plans import After, Plan, Together, Tokens
from pasta_async.plans.checks import check_plan
from tests.helpers.plan_forms import Report

_X = {"$ref": "#/$defs/x"}

Kind = TypeAliasType("Kind", Annotated[Literal["hotel", "flat"], After("text")])


class Circle(BaseModel):
    """A member of a union that its kind tells apart."""

    kind: Literal["circle"]
    radius: int


class Square(BaseModel):
    """The other member."""

    kind: Literal["square"]
    side: int


class Node(BaseModel):
    """A model that refers to itself."""

    amount: Annotated[Decimal, Field(ge=0)]
    shape: Annotated[Circle | Square, Field(discriminator="kind")]
    children: Annotated[list[Node], Field(max_length=2)]


def names(plan: Plan) -> list[str]:
    return [hole.name for hole in plan.holes]


def test_a_list_is_an_outline_and_a_hole_for_each_item() -> None:
    plan = Plan.of(Report)
    assert names(plan) == ["title", "sections", "sections[].text", "sections[].moral", "summary"]
    outline: Any = plan.by_name["sections"].schema
    assert set(outline["properties"]["sections"]["items"]["properties"]) == {"heading"}
    assert plan.seen["sections[].moral"] == {"title", "sections", "sections[].text"}
    assert plan.seen["summary"] == {"title", "sections", "sections[].text", "sections[].moral"}


def test_fields_of_a_group_see_those_before_them() -> None:
    class Address(BaseModel):
        street: Annotated[str, Together("place"), Tokens(5)]
        name: str
        city: Annotated[str, Together("place"), Tokens(7), After("name")]

    plan = Plan.of(Address)
    assert names(plan) == ["street", "name", "city"]
    assert plan.by_name["city"].tokens == 7
    assert plan.by_name["city"].after == ("name", "street")
    assert plan.by_name["street"].after == ()


def test_annotations_count_in_optional_fields_and_in_types_that_are_referred_to() -> None:
    class Form(BaseModel):
        text: str
        stars: Annotated[int, After("text"), Tokens(3)] | None
        kind: Kind

    plan = Plan.of(Form)
    assert plan.by_name["stars"].after == plan.by_name["kind"].after == ("text",)
    assert plan.by_name["stars"].tokens == 3


def test_a_recursive_model_a_decimal_and_a_tagged_union_can_be_kept() -> None:
    report = check_plan(Plan.of(Node))
    assert report.verdict == "yes"
    amount, shape = Plan.of(Node).by_name["amount"], Plan.of(Node).by_name["shape"]
    assert (amount.tokens, amount.is_bounded) == (24, True)
    grammar = Grammar.of_value(shape.value_schema)
    assert grammar.accepts(' {"kind": "circle", "radius": 2}}')
    assert not grammar.accepts(' {"kind": "square", "radius": 2}}')


def test_schemas_that_are_combined_do_not_forbid_the_keys_of_each_other() -> None:
    base = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    more = {"type": "object", "properties": {"y": {"type": "integer"}}, "required": ["y"]}
    field = {"allOf": [{"$ref": "#/$defs/Base"}, more]}
    [hole] = Plan.of({"properties": {"a": field}, "$defs": {"Base": base}}).holes
    assert Grammar.of_value(hole.value_schema).accepts(' {"x": 1, "y": 2}}')
    assert not Grammar.of_value(hole.value_schema).accepts(' {"x": 1}}')


def test_a_reference_to_the_whole_schema_means_the_whole_schema() -> None:
    fields = {"default": {"type": "string"}, "const": {"type": "array", "items": {"$ref": "#"}}}
    schema: dict[str, Any] = {"type": "object", "properties": fields, "required": [*fields]}
    schema["$defs"] = {"root": {}}
    field = Grammar.of_value(Plan.of(schema).by_name["const"].value_schema)
    assert field.accepts(' [{"default": "b", "const": []}]}') and not field.accepts(" [[]]}")
    whole = Grammar.of_schema(Plan.in_sequence(schema).holes[0].schema or {}, compact=True)
    assert whole.accepts('{"default": "a", "const": [{"default": "b", "const": []}]}')
    assert not whole.accepts('{"default": "a", "const": [[]]}')


@pytest.mark.parametrize(
    ("field", "definitions"),
    [({"$ref": "#node"}, {}), ({"const": {"$ref": "#"}}, []), ({"$ref": "#/$defs"}, {})],
)
def test_other_references_stay_as_they_are(field: dict[str, Any], definitions: Any) -> None:
    plan = Plan.of({"properties": {"a": field}, "$defs": definitions})
    assert plan.by_name["a"].value_schema.items() >= field.items()


def test_definitions_that_are_none_are_passed_over() -> None:
    plan = Plan.of({"properties": {"a": {"$ref": "#"}}, "$defs": []})
    assert plan.by_name["a"].value_schema["$ref"] == "#/$defs/root"


def test_objects_have_no_keys_of_the_models_own() -> None:
    part = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    for field in (part, {"allOf": [part]}):  # pydantic wrote the latter for a field with a description
        grammar = Grammar.of_value(Plan.of({"properties": {"a": field}}).by_name["a"].value_schema)
        assert grammar.accepts(' {"x": 1}}') and not grammar.accepts(' {"x": 1, "more": 2}}')


def test_a_schema_says_the_same_as_the_model() -> None:
    assert Plan.of(Report.model_json_schema()).holes == Plan.of(Report).holes


def test_escaped_braces_are_text() -> None:
    plan = Plan("{{a}} {b} {{c}}")
    assert (plan.holes[0].head, plan.tail) == ("{a} ", " {c}")


@pytest.mark.parametrize(
    ("field", "tokens", "is_bounded"),
    [
        ({"type": "boolean"}, 7, True),
        ({"enum": ["yes", "maybe"]}, 9, True),
        ({"type": "integer", "minimum": 1, "maximum": 5}, 4, True),
        ({"type": "integer", "minimum": 1, "exclusiveMinimum": 0}, 24, True),
        ({"type": "number"}, 24, True),
        ({"anyOf": [{"type": "number"}, {"type": "null"}]}, 24, True),
        ({"type": ["integer", "null"], "minimum": 1, "maximum": 5}, 7, True),
        ({"type": "string", "x-pasta": {"tokens": 9}}, 9, True),
        ({"type": "string"}, 256, False),
        ({"type": "array", "items": {"type": "boolean"}, "maxItems": 3}, 25, True),
    ],
)
def test_the_most_tokens_come_from_the_annotation_or_the_schema(
    field: dict[str, Any], tokens: int, is_bounded: bool
) -> None:
    [hole] = Plan.of({"type": "object", "properties": {"a": field}}).holes
    assert (hole.tokens, hole.is_bounded) == (tokens, is_bounded)


def test_holes_that_nothing_bounds_share_what_the_others_leave() -> None:
    class Form(BaseModel):
        first: str
        second: str
        third: Annotated[str, Tokens(20)]

    assert [hole.tokens for hole in Plan.of(Form).fitted(120).holes] == [50, 50, 20]
    assert [hole.tokens for hole in Plan.of(Form).fitted(None).holes] == [256, 256, 20]


def test_what_nothing_bounds_is_fitted_to_the_last_token() -> None:
    class Item(BaseModel):
        name: str
        text: Annotated[str, After(), Tokens(50)]

    class Items(BaseModel):
        items: Annotated[list[Item], Tokens(40)]

    fitted = Plan.of(Items).fitted(200)
    assert fitted.lists["items"].most == 3 and fitted.tokens == 190
    assert fitted.holes[0].value_schema["maxItems"] == 3
    assert Plan.of(Items).fitted(5).lists["items"].most == 1


def test_references_lead_into_either_place_for_shared_schemas() -> None:
    for place in ("$defs", "definitions"):
        field = {"$ref": f"#/{place}/stars"}
        stars = {"type": "integer", "minimum": 1, "maximum": 5}
        [hole] = Plan.of({"properties": {"a": field}, place: {"stars": stars}}).holes
        assert hole.is_bounded and hole.value_schema[place]["stars"] == stars


@pytest.mark.parametrize(
    ("schema", "verdict"),
    [
        ({"properties": {"a": {"type": "string"}}, "$defs": None}, "yes"),
        ({"properties": {"a": {"type": "string"}}, "$defs": [1]}, "yes"),
        ({"properties": {"a": {"anyOf": [True, {"type": "null"}]}}}, "yes"),
        ({"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": True}}, "yes"),
        ({"properties": {"a": {"anyOf": 3}}}, "no"),
        ({"properties": {"a": {"enum": 5}}}, "no"),
        ({"properties": {"a": _X}, "$defs": {"x": {"anyOf": [_X] * 20}}}, "yes"),
        ({"properties": {"a": {"type": "array", "items": True, "maxItems": 3}}}, "yes"),
    ],
)
def test_an_unusual_schema_is_a_plan_of_which_check_says_more(schema: dict[str, Any], verdict: str) -> None:
    plan = Plan.of(schema)
    assert plan.holes[0].tokens == 256
    assert check_plan(plan).verdict == verdict


def test_a_hole_may_have_any_name() -> None:
    plan = Plan("{self} {template}", self=Tokens(3), template=Tokens(4))
    assert [hole.tokens for hole in plan.holes] == [3, 4]


def _list_of(**keywords: Any) -> dict[str, Any]:
    """A schema with a list whose items have threads."""
    item: dict[str, Any] = {"properties": {"head": {}, "body": {"x-pasta": {"after": []}}}}
    return {"properties": {"a": {"type": "array", "items": item, **keywords}}}


@pytest.mark.parametrize(
    "make",
    [
        lambda: Plan("no hole"),
        lambda: Plan("{a} {a}"),
        lambda: Plan("{a} {"),
        lambda: Plan("{a!r}"),
        lambda: Plan("{0}"),
        lambda: Plan("{a}", b=Tokens(3)),
        lambda: Plan("{a}", a=Together("x")),
        lambda: Plan("{a}", a=5),  # pyright: ignore[reportArgumentType]
        lambda: Plan("{a}", a="after"),  # pyright: ignore[reportArgumentType]
        lambda: Plan(3),  # pyright: ignore[reportArgumentType]
        lambda: Plan.of({"type": "object"}),
        lambda: Plan.of({"type": "object", "properties": {"a": 3}}),
        lambda: Plan.of({"properties": {"a": {"x-pasta": {"before": []}}}}),
        lambda: Plan.of({"properties": {"a": {"x-pasta": {"tokens": 0}}}}),
        lambda: Plan.of(3),  # pyright: ignore[reportArgumentType]
        lambda: Plan.of(_list_of(maxItems="3")),
        lambda: Plan.of(_list_of(maxItems=-1)),
        lambda: Plan.of(_list_of(minItems=None)),
        lambda: Plan.of(_list_of(items={"properties": {"body": {"x-pasta": {"after": []}}}})),  # no outline
        lambda: Plan.of({"properties": {f"f{i}": {} for i in range(501)}}),
        lambda: Plan.of({"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"const": "x" * 10**5}}}),
        lambda: Plan.of({"properties": {**_list_of(maxItems=2)["properties"], "a[].body": {}}}),
        lambda: Plan.of({"properties": {**_list_of(maxItems=2)["properties"], "a[0].body": {}}}),
        lambda: Plan.in_sequence({"properties": {"a": {}}}, tokens=0),
        lambda: Tokens(0),
        lambda: After(3),  # pyright: ignore[reportArgumentType]
    ],
)
def test_what_is_no_plan_is_refused(make: Any) -> None:
    with pytest.raises(InvalidRequestError):
        make()


def test_definitions_count_for_each_field() -> None:
    fields = {f"f{number}": {"$ref": "#/$defs/x"} for number in range(30)}
    definitions = {"x": {"enum": [f"value {number}" for number in range(3_000)]}}
    with pytest.raises(InvalidRequestError, match="definitions"):
        Plan.of({"type": "object", "properties": fields, "$defs": definitions})
