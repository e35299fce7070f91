"""Forms that the tests of plans fill."""

from __future__ import annotations

import json
import random
from typing import Annotated, Any

from pydantic import BaseModel, Field

from pasta_async import Client
from pasta_async.grammar import Grammar, GrammarKind
from pasta_async.plans import After, Plan, Tokens
from pasta_async.testing import RandomBackend

KINDS: list[tuple[GrammarKind, ...]] = [("lark", "json_schema"), ("json_schema",)]
"""Kinds of grammars by backend: the embedded engine takes both, a server schemas alone."""


class Review(BaseModel):
    """Fields that wait for others."""

    strengths: Annotated[list[str], Field(max_length=4), Tokens(40)]
    weaknesses: Annotated[list[str], Field(max_length=4), Tokens(40)]
    stars: Annotated[int, Field(ge=1, le=5), After("strengths", "weaknesses")]
    verdict: Annotated[str, Tokens(30), After("stars")]


class Section(BaseModel):
    """An item with a thread of its own."""

    heading: Annotated[str, Field(max_length=20), Tokens(10)]
    text: Annotated[str, After(), Tokens(20)]
    moral: Annotated[str, After("text"), Tokens(10)]


class Report(BaseModel):
    """A list whose items are written in parallel, behind an outline."""

    title: Annotated[str, Tokens(10)]
    sections: Annotated[list[Section], Field(min_length=2, max_length=4), Tokens(80), After("title")]
    summary: Annotated[str, After("sections"), Tokens(20)]


REVIEW_TEXT = Plan(
    "## Strengths\n{strengths}\n\n## Weaknesses\n{weaknesses}\n\nVerdict: {verdict}",
    strengths=Tokens(30),
    weaknesses=Tokens(30),
    verdict=(After("strengths", "weaknesses"), Tokens(20)),
)

_VALUES: tuple[dict[str, Any], ...] = (
    {"type": "boolean"},
    {"type": "string", "maxLength": 5},
    {"type": "string"},
    {"type": "string", "format": "date"},
    {"type": "integer", "minimum": -20, "maximum": 7},
    {"type": "number"},
    {"enum": ["a", "ab", 3, None]},
    {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 3},
    {"type": "object", "properties": {"k": {"type": "null"}, "o": {"type": "string"}}, "required": ["k"]},
    {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^a+b$"}]},
    {"$ref": "#/$defs/tree"},
)
_TREE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "parts": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
    "required": ["name", "parts"],
}


def draw_form(drawn: random.Random) -> dict[str, Any]:
    """A schema of up to six fields, each of which may see earlier ones. Some are lists with threads."""
    fields: dict[str, Any] = {}
    for number in range(drawn.randint(1, 6)):
        schema = drawn.choice(_VALUES)
        settings: dict[str, Any] = {"tokens": drawn.randint(1, 12)}
        if number and drawn.random() < 0.5:
            settings["after"] = [f"f{drawn.randrange(number)}" for _ in range(drawn.randint(1, 3))]
        if drawn.random() < 0.2:
            item: dict[str, Any] = {
                "type": "object",
                "properties": {"head": schema, "body": {**schema, "x-pasta": {"after": [], "tokens": 4}}},
                "required": ["head", "body"],
            }
            fields[f"f{number}"] = {"type": "array", "items": item, "maxItems": 3, "x-pasta": settings}
        else:
            if drawn.random() < 0.3:
                settings["together"] = drawn.choice("gh")
            fields[f"f{number}"] = {**schema, "x-pasta": settings}
    return {"type": "object", "properties": fields, "required": [*fields], "$defs": {"tree": _TREE}}


async def keep_promise(
    schema: dict[str, Any], seed: int, *, endless: bool, kinds: tuple[GrammarKind, ...]
) -> bool:
    """Fill a form with random choices, and hold what `check` promised. False if it promised nothing."""
    async with Client(RandomBackend(seed, endless=endless, grammars=kinds)) as client:
        report = await client.check(schema)
        if report.verdict != "yes":
            return False
        filled = await client.fill("x", schema)
    assert report.bounds
    assert bool(filled.truncated) == (filled.generation.finish_reason == "length")
    assert filled.critical_path <= report.bounds.critical_path
    assert filled.usage.completion_tokens <= report.bounds.tokens
    whole = Grammar.of_schema(Plan.in_sequence(schema).holes[0].schema or {}, compact=False)
    assert whole.accepts(filled.text)
    assert json.loads(filled.text) == filled.value
    return True
