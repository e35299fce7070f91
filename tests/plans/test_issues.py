"""Troubles of other libraries' users that do not exist here; the issues are named beside each test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Annotated

from pydantic import BaseModel, Field

from pasta_async import Client, DecodeRequest, Piece
from pasta_async.grammar import Grammar
from pasta_async.plans import After, FieldDone, Plan, Tokens
from pasta_async.testing import RandomBackend
from tests.plans.forms import KINDS


class Stuck(RandomBackend):
    """Its first thread writes a token, and no more."""

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        async for piece in super().decode(request):
            yield piece._replace(finish_reason=None) if request.thread == 0 else piece
            if request.thread == 0:
                await asyncio.Event().wait()


class Point(BaseModel):
    """A nested model."""

    x: int
    label: str | None


async def test_a_field_that_never_ends_stalls_no_other() -> None:  # BAML 1685
    class Form(BaseModel):
        a: Annotated[str, Tokens(9)]
        b: Annotated[str, Tokens(9)]
        c: Annotated[str, Tokens(9), After("b")]

    done: set[str] = set()
    async with Client(Stuck(1)) as client, client.fill_stream("x", Form) as stream:
        async for event in stream:
            if isinstance(event, FieldDone):
                done.add(event.path)
            if done == {"b", "c"}:
                break
        assert stream.snapshot().keys() >= {"b", "c"}


def test_white_space_cannot_run_away() -> None:  # SGLang 8250, vLLM 38696
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}}
    grammar = Grammar.of_schema(schema)
    assert grammar.accepts('{"a": [1, 2]}')
    assert not any(grammar.accepts(text) for text in ('{"a":  [1]}', '{"a": [1,\n2]}', ' {"a": []}'))
    rest = Grammar.of_values({"a": {"type": "integer"}})
    assert rest.accepts(" 1}")
    assert not any(rest.accepts(text) for text in ("  1}", " 1 }", "\n1}"))


async def test_lists_hold_lists_and_objects() -> None:  # jsonformer 46, 67
    class Form(BaseModel):
        rows: Annotated[list[list[int]], Tokens(30)]
        points: Annotated[list[Point], Field(min_length=2, max_length=3), Tokens(60)]
        none: Annotated[list[str], Field(max_length=0)]

    for kinds in KINDS:
        for endless in (False, True):
            async with Client(RandomBackend(1, endless=endless, grammars=kinds)) as client:
                filled = await client.fill("x", Form)
            assert len(filled.value.points) in (2, 3)
            assert filled.value.none == []


def test_strings_of_bounded_length_may_hold_quotes_and_line_breaks() -> None:  # SGLang 800
    grammar = Grammar.of_schema({"type": "string", "maxLength": 4})
    assert grammar.accepts(json.dumps('"\n\\é', ensure_ascii=False))
    assert not grammar.accepts(json.dumps("fives"))


async def test_half_of_a_nested_object_is_never_shown() -> None:  # pydantic-ai 681, instructor 1993 and 2452
    class Form(BaseModel):
        point: Annotated[Point, Tokens(40)]
        text: Annotated[str, Tokens(9)]

    async with Client(RandomBackend(1)) as client, client.fill_stream("x", Form) as stream:
        snapshots = [stream.snapshot() async for _ in stream]
    whole = (await stream.result()).value.model_dump()
    assert {} in snapshots
    for snapshot in snapshots:
        assert snapshot.get("point", whole["point"]) == whole["point"]
        assert whole["text"].startswith(snapshot.get("text", ""))


async def test_keys_keep_their_order_whatever_is_written_first() -> None:  # outlines 733, python-genai 397
    class Form(BaseModel):
        rating: Annotated[int, Field(ge=1, le=5), After("reason")]
        reason: Annotated[str, Tokens(9)]

    async with Client(RandomBackend(1)) as client, client.fill_stream("x", Form) as stream:
        done = [event.path async for event in stream if isinstance(event, FieldDone)]
    assert done == ["reason", "rating"]  # lm-format-enforcer 38: the rating came first
    assert [*json.loads((await stream.result()).text)] == ["rating", "reason"]
    assert [hole.name for hole in Plan.of(Form).holes] == ["rating", "reason"]
