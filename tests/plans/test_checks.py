"""The static analysis: a verdict, findings with codes and places, bounds."""

from __future__ import annotations

import pickle
import threading
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from pasta_async import Client, InvalidRequestError
from pasta_async.backends.sglang.backend import xgrammar_refusal
from pasta_async.plans import After, InvalidPlanError, Plan, PlanCode, PlanReport, Tokens
from pasta_async.plans.checks import check_plan
from pasta_async.testing import RandomBackend, ScriptedBackend
from tests.helpers.plan_forms import Report, Review


def codes(report: PlanReport) -> set[tuple[PlanCode, str, str]]:
    return {(finding.code, finding.verdict, finding.hole) for finding in report.findings}


def check(fields: dict[str, Any], **limits: Any) -> PlanReport:
    return check_plan(Plan.of({"type": "object", "properties": fields}), **limits)


def text(*after: str, tokens: int = 10) -> dict[str, Any]:
    settings = {"tokens": tokens, **({"after": list(after)} if after else {})}
    return {"type": "string", "x-pasta": settings}


def test_a_sound_plan_gets_yes_with_its_bounds() -> None:
    report = check_plan(Plan.of(Review))
    assert report.verdict == "yes"
    assert report.findings == ()
    assert report.sees["verdict"] == ("strengths", "weaknesses", "stars")
    assert report.bounds
    assert report.bounds.critical_path == 40 + 4 + 30
    assert report.bounds.tokens == 40 + 40 + 4 + 30
    assert report.bounds.width == 2


def test_items_of_a_list_count_as_often_as_there_are_items() -> None:
    bounds = check_plan(Plan.of(Report)).bounds
    assert bounds
    assert bounds.critical_path == 10 + 80 + 20 + 10 + 20
    assert bounds.tokens == 10 + 80 + 4 * (20 + 10) + 20
    assert bounds.width == 4


def test_the_width_is_that_of_the_largest_set_of_independent_holes() -> None:
    two_chains = {"a": text(), "b": text("a"), "c": text(), "d": text("c")}
    diamond = {"a": text(), "b": text("a"), "c": text("a"), "d": text("b", "c")}
    for fields, width in ((two_chains, 2), (diamond, 2)):
        bounds = check(fields).bounds
        assert bounds
        assert bounds.width == width


@pytest.mark.parametrize(
    ("fields", "limits", "finding"),
    [
        ({"a": text("b"), "b": text("a")}, {}, (PlanCode.CYCLE, "no", "a")),
        ({"a": text("a")}, {}, (PlanCode.CYCLE, "no", "a")),
        ({"a": text("z")}, {}, (PlanCode.UNKNOWN_HOLE, "no", "a")),
        (
            {"a": {"type": "array", "items": {}, "uniqueItems": True, "maxItems": 2}},
            {},
            (PlanCode.SCHEMA_UNSUPPORTED, "no", "a"),
        ),
        (
            {"a": {"type": "string", "pattern": "^(?=x)y$"}, "b": text()},
            {},
            (PlanCode.SCHEMA_UNSUPPORTED, "no", "a"),
        ),
        (
            {"a": {"type": "integer", "minimum": 5, "maximum": 3}, "b": text()},
            {},
            (PlanCode.SCHEMA_EMPTY, "no", "a"),
        ),
        ({"a": {"type": "string"}}, {}, (PlanCode.UNBOUNDED, "yes", "a")),
        ({"a": text(tokens=60), "b": text(tokens=60)}, {"max_tokens": 100}, (PlanCode.BUDGET, "no", "")),
        ({"a": {"type": "string"}}, {"max_tokens": 100}, (PlanCode.BUDGET, "no", "")),
        ({"a": text(tokens=600)}, {"context": 512}, (PlanCode.CONTEXT, "no", "")),
        ({"a": text(), "b": text(), "c": text()}, {"max_threads": 2}, (PlanCode.WIDTH, "yes", "")),
        ({"answer": text(), "reason": text("answer")}, {}, (PlanCode.REASON_LAST, "yes", "reason")),
        ({"a": text()}, {"grammars": frozenset[str]()}, (PlanCode.SCHEMA_UNSUPPORTED, "no", "")),
    ],
)
def test_findings(fields: dict[str, Any], limits: dict[str, Any], finding: tuple[PlanCode, str, str]) -> None:
    report = check(fields, **limits)
    assert finding in codes(report)
    assert report.verdict == min(reported.verdict for reported in report.findings)  # "no" is before "yes"


def test_a_reason_that_something_comes_after_is_no_finding() -> None:
    assert check({"reason": text(), "answer": text("reason")}).findings == ()
    group = {"type": "string", "x-pasta": {"together": "g", "tokens": 5}}
    assert check({"reason": group, "answer": group, "other": text()}).findings == ()


def test_a_report_is_text_and_a_diagram() -> None:
    report = check_plan(Plan.of(Report))
    assert "sections[].text" in str(report)
    edges = [line for line in report.mermaid().splitlines() if "-->" in line]
    assert len(edges) == 4  # title, sections, text, moral, summary: a chain
    assert PlanReport.model_validate_json(report.model_dump_json()) == report


def test_without_llguidance_a_plan_has_no_typed_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pasta_async.plans.checks.has_guidance", lambda: False)
    report = check({"a": text()})
    assert (PlanCode.SCHEMA_UNSUPPORTED, "no", "") in codes(report)
    assert report.verdict == "no"
    assert check_plan(Plan("{a}", a=Tokens(5))).verdict == "yes"


async def test_fill_refuses_what_check_says_no_to_before_anything_is_sent() -> None:
    class Circle(BaseModel):
        a: Annotated[str, After("b")]
        b: Annotated[str, After("a")]

    backend = RandomBackend()
    async with Client(backend) as client:
        assert (await client.check(Circle)).verdict == "no"
        with pytest.raises(InvalidPlanError) as caught:
            await client.fill("x", Circle)
    assert backend.requests == []
    assert caught.value.report.verdict == "no"
    assert pickle.loads(pickle.dumps(caught.value)).report == caught.value.report


async def test_a_backend_without_grammars_fills_templates_alone() -> None:
    async with Client(ScriptedBackend("hello")) as client:
        assert (await client.check(Review)).verdict == "no"
        assert (await client.check(Plan("{a}", a=Tokens(5)))).verdict == "yes"


async def test_what_the_prompt_takes_of_the_context_counts() -> None:
    class Small(BaseModel):
        a: Annotated[str, Tokens(90)]

    backend = RandomBackend(context_length=500)
    prompt = (await backend.connect()).tokenizer.encode("x" * 450)
    async with Client(backend) as client:
        assert (await client.check(Small)).verdict == "yes"
        with pytest.raises(InvalidPlanError):
            await client.fill(prompt, Small)


def test_annotations_that_have_no_effect_are_named() -> None:
    class Place(BaseModel):
        city: Annotated[str, After("name"), Tokens(5)]

    class Extra(BaseModel):
        anything: Any

    class Form(BaseModel):
        name: Annotated[str, Tokens(5)]
        place: Annotated[Place, Tokens(30)]
        extra: Annotated[Extra, Tokens(30)]
        places: Annotated[list[Place] | None, Tokens(30)]

    report = check_plan(Plan.of(Form))
    assert {finding.hole for finding in report.findings} == {"place.city", "places[].city"}
    assert codes(report) == {(PlanCode.NO_EFFECT, "yes", finding.hole) for finding in report.findings}


def test_a_schema_that_the_engine_refuses_is_no_plan() -> None:
    refused = (
        {"type": "integer", "multipleOf": 5},
        {"type": "string", "format": "uri", "maxLength": 20},
        {"type": "string", "format": "color"},
        {
            "type": "array",
            "items": {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "a", "minLength": 1}]},
        },
    )
    for schema in refused:
        report = check({"a": schema, "b": text()}, schema_refusal=xgrammar_refusal)
        assert (PlanCode.SCHEMA_UNSUPPORTED, "no", "a") in codes(report)
    odd_schemas: tuple[dict[str, Any], ...] = ({"type": 5}, {"type": None}, {"format": []}, {"properties": 3})
    for odd in odd_schemas:
        check({"a": {**odd, "x-pasta": {"tokens": 9}}}, schema_refusal=xgrammar_refusal)
    assert xgrammar_refusal({"type": "string", "example": {"format": "pdf"}}) is None
    taken = {
        "type": "object",
        "properties": {"format": {"enum": ["if"]}, "pattern": {"type": "string", "format": "date"}},
    }
    assert check({"a": {**taken, "x-pasta": {"tokens": 9}}}, schema_refusal=xgrammar_refusal).findings == ()


@pytest.mark.parametrize(
    "fields",
    [
        {"a": {"const": float("nan")}},
        {"a": {"enum": ["x" * 200_000]}},
        {"a": {"type": "string", "x-pasta": {"after": [1] * 20_000}}},
    ],
    ids=["no JSON", "too long", "many mistakes"],
)
def test_a_schema_from_anybody_is_refused_in_few_words(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Plan.of({"type": "object", "properties": fields})
    assert len(str(caught.value)) < 300


async def test_no_tokens_are_no_limit() -> None:
    async with Client(RandomBackend()) as client:
        with pytest.raises(InvalidRequestError):
            await client.check({"properties": {"a": {}}}, max_tokens=0)


def test_a_plan_in_which_each_sees_all_before_it() -> None:
    fields = {f"f{i}": text(*(f"f{j}" for j in range(i))) for i in range(100)}
    report = check(fields)
    assert report.bounds
    assert report.bounds.critical_path == 10 * len(fields)


async def test_the_check_of_a_long_schema_does_not_hold_up_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    def watched(*arguments: Any, **named: Any) -> PlanReport:
        threads.append(threading.get_ident())
        return check_plan(*arguments, **named)

    monkeypatch.setattr("pasta_async.client.check_plan", watched)
    async with Client(ScriptedBackend("")) as client:
        for count in (1, 1000):
            field = {"enum": [f"value {number}" for number in range(count)]}
            await client.check({"type": "object", "properties": {"field": field}})
    assert threads[0] == threading.get_ident() != threads[1]
