"""Filling plans through the public API: values, caps, order, streams, failures."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, field_validator

from pasta_async import (
    BackendError,
    Client,
    DecodeRequest,
    FillOptions,
    GenerationTimeoutError,
    InvalidRequestError,
    Limits,
    Parallel,
    Piece,
    ThreadFailedError,
)
from pasta_async.grammar import GrammarKind
from pasta_async.plans import (
    After,
    FieldDelta,
    FieldDone,
    FieldStarted,
    FillDone,
    InvalidPlanError,
    Plan,
    Together,
    Tokens,
    ValidationFailedError,
)
from pasta_async.testing import RandomBackend, VirtualClock
from tests.helpers.plan_forms import KINDS, REVIEW_TEXT, Report, Review, draw_form, keep_promise

KIND_NAMES = ["inside an object", "an object each"]


class Failing(RandomBackend):
    """Fails the first requests of some threads after five tokens."""

    def __init__(self, threads: dict[int, int], *, retryable: bool = True, **options: Any) -> None:
        super().__init__(3, **options)
        self.threads, self.retryable = threads, retryable

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        fails = self.threads.get(request.thread, 0)
        self.threads[request.thread] = fails - 1
        count = 0
        async for piece in super().decode(request):
            count += 1
            if fails > 0 and (count == 5 or piece.finish_reason):
                error = BackendError("broke off")
                error.retryable = self.retryable
                raise error
            yield piece


class Waiting(RandomBackend):
    """Some threads write one token, then wait for ever."""

    def __init__(self, *threads: int) -> None:
        super().__init__(1)
        self.threads = threads
        self.both = asyncio.Event()
        """Set when two requests are open."""

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        async for piece in super().decode(request):
            if request.thread in self.threads:
                yield piece._replace(finish_reason=None)
                if self.open == 2:
                    self.both.set()
                await asyncio.Event().wait()
            yield piece


class Writing(RandomBackend):
    """Writes a given text in each thread, a byte a token, as far as the request's limit allows."""

    def __init__(self, *texts: str, grammars: Sequence[GrammarKind] = ("lark",)) -> None:
        super().__init__(grammars=grammars)
        self.texts = texts

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        model = await self.connect()
        tokens = [*model.tokenizer.encode(self.texts[request.thread - 1]), model.end_ids[0]]
        yield Piece(
            tuple(tokens[: request.max_tokens]), "stop" if len(tokens) <= request.max_tokens else "length", 0
        )


@pytest.mark.parametrize("form", [Review, Report, REVIEW_TEXT], ids=["fields", "list", "template"])
async def test_the_text_does_not_depend_on_the_width(form: Any) -> None:
    texts: set[str] = set()
    widths: list[tuple[int, Parallel]] = [(16, "auto"), (2, "auto"), (1, "auto"), (16, "never")]
    for limits, parallel in widths:
        async with Client(RandomBackend(5)) as client:
            filled = await client.fill(
                "Write it.", form, parallel=parallel, limits=Limits(max_threads=limits), temperature=1, seed=7
            )
        texts.add(filled.text)
    assert len(texts) == 1


async def test_what_is_independent_is_decoded_at_once() -> None:
    backend = RandomBackend(1, endless=True)
    async with Client(backend) as client:
        filled = await client.fill("Write it.", Report)
    assert backend.max_open == len(filled.value.sections)
    assert [record.topic for record in filled.threads][:3] == ["title", "sections", "summary"]


async def test_a_hole_sees_its_ancestors_and_no_others() -> None:
    backend = RandomBackend(1)
    async with Client(backend) as client:
        filled = await client.fill("Write it.", Review, instruct=False)
    tokenizer = (await backend.connect()).tokenizer
    prompt = tokenizer.encode_chat([{"role": "user", "content": "Write it."}], {"pasta": False})
    contexts = {
        record.topic: tokenizer.decode(request.ids[len(prompt) :])
        for record in filled.threads
        for request in backend.requests
        if request.thread == record.thread
    }
    whole = json.loads(filled.text)
    raw = filled.text
    assert contexts["strengths"] == '{"strengths":'
    assert contexts["weaknesses"] == '{"weaknesses":'
    assert contexts["stars"] == raw[: raw.index(', "stars": ')] + ', "stars":'
    assert contexts["verdict"] == raw[: raw.index('"verdict":')] + '"verdict":'
    assert list(whole) == ["strengths", "weaknesses", "stars", "verdict"]


async def test_an_item_sees_the_outline_and_its_own_fields() -> None:
    backend = RandomBackend(1)
    async with Client(backend) as client:
        filled = await client.fill("Write it.", Report)
    tokenizer = (await backend.connect()).tokenizer
    second = filled.value.sections[1]
    [record] = [record for record in filled.threads if record.topic == "sections[1].moral"]
    [request] = [request for request in backend.requests if request.thread == record.thread]
    context = tokenizer.decode(request.ids)
    outline, _, item = context.rpartition("\n")
    headings = json.loads(outline[outline.rindex('{"title"') :])["sections"]
    assert headings == [{"heading": section.heading} for section in filled.value.sections]
    fields = json.loads(item.removesuffix(', "moral":') + "}")
    assert fields == {"heading": second.heading, "text": second.text}


async def test_the_form_is_told_in_the_last_message() -> None:
    backend = RandomBackend(1)
    tokenizer = (await backend.connect()).tokenizer
    plan = Plan("{a}", a=Tokens(3))
    async with Client(backend) as client:
        await client.fill(
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say."}], plan
        )
        await client.fill("Say.", plan, instruct=False)
        await client.fill(tokenizer.encode("Say."), plan)
    told, plain, ids = (tokenizer.decode(request.ids) for request in backend.requests)
    assert plan.instruction() in told
    assert plan.instruction() not in plain
    assert ids == "Say."


class Colour(Enum):
    """An enumeration."""

    RED = "red"
    BLUE = "light blue"


class Point(BaseModel):
    """A nested model."""

    x: int
    label: str | None = None


class Everything(BaseModel):
    """A field of each kind."""

    colour: Colour
    kind: Literal["a", 1, True]
    day: date
    code: Annotated[str, Field(pattern=r"^[A-Z]{2}-[0-9]{3}$")]
    share: Annotated[float, Field(ge=0, le=1)]
    count: Annotated[int, Field(gt=3, lt=1000)]
    point: Annotated[Point, Tokens(40)]
    points: Annotated[list[Point], Field(min_length=1, max_length=3), Tokens(30)]
    either: Annotated[Point | int | None, Tokens(20)]
    table: Annotated[dict[str, int], Tokens(30)]
    rows: Annotated[list[list[int]], Tokens(30)]
    none: Annotated[list[str], Field(max_length=0)]
    words: Annotated[list[Annotated[str, Field(max_length=6)]], Field(min_length=2, max_length=5)]
    long: Annotated[str, Field(min_length=30), Tokens(4)]
    flag: bool
    optional: int = 3


@pytest.mark.parametrize("kinds", KINDS, ids=KIND_NAMES)
@pytest.mark.parametrize("endless", [False, True])
async def test_every_kind_of_field_is_valid_whatever_the_model_chooses(
    endless: bool, kinds: tuple[GrammarKind, ...]
) -> None:
    for seed in range(8):
        async with Client(RandomBackend(seed, endless=endless, grammars=kinds)) as client:
            filled = await client.fill("x", Everything)
            assert len(filled.value.long) >= 30


async def test_a_field_that_is_cut_off_is_closed_and_named() -> None:
    class Form(BaseModel):
        answer: Annotated[str, Tokens(5)]
        flag: bool

    async with Client(RandomBackend(2, endless=True)) as client:
        filled = await client.fill("x", Form)
    assert filled.truncated == ("answer",)
    [answer, flag] = filled.threads
    assert (answer.tokens, answer.was_cut, flag.was_cut) == (5, True, False)


def test_where_check_says_yes_every_run_ends_with_a_valid_object_within_the_bounds() -> None:
    promised: list[bool] = []

    @given(st.randoms(use_true_random=False), st.integers(0, 10**6))
    def fill_some(drawn: random.Random, seed: int) -> None:
        form, kinds = draw_form(drawn), drawn.choice(KINDS)
        promised.append(asyncio.run(keep_promise(form, seed, endless=drawn.random() < 0.5, kinds=kinds)))

    fill_some()
    assert sum(promised) > len(promised) / 4


@pytest.mark.parametrize("kinds", KINDS, ids=KIND_NAMES)
@pytest.mark.parametrize("form", [Review, Report, REVIEW_TEXT], ids=["fields", "list", "template"])
async def test_a_stream_tells_each_field_and_ends_with_the_result(
    form: Any, kinds: tuple[GrammarKind, ...]
) -> None:
    async with Client(RandomBackend(4, grammars=kinds)) as client:
        async with client.fill_stream("x", form) as stream:
            events = [event async for event in stream]
        filled = await stream.result()
    assert isinstance(events[-1], FillDone)
    assert events[-1].filled.text == filled.text
    done = {event.path: event.value for event in events if isinstance(event, FieldDone)}
    started = [event for event in events if isinstance(event, FieldStarted)]
    assert len(started) == len(filled.threads)
    written: dict[str, str] = {}
    for event in events:
        if isinstance(event, FieldDelta):
            written[event.path] = written.get(event.path, "") + event.delta
    for path, value in done.items():
        if isinstance(value, str) and path not in filled.truncated:
            assert written.get(path, "") == value


@pytest.mark.parametrize("kinds", KINDS, ids=KIND_NAMES)
@pytest.mark.parametrize("endless", [False, True])
@pytest.mark.parametrize("form", [Review, Report, Everything], ids=["fields", "list", "all kinds"])
async def test_deltas_are_always_a_beginning_of_the_final_json(
    form: type[BaseModel], endless: bool, kinds: tuple[GrammarKind, ...]
) -> None:
    async with Client(RandomBackend(9, endless=endless, grammars=kinds)) as client:
        async with client.fill_stream("x", form) as stream:
            pieces = [piece async for piece in stream.text_deltas()]
        assert "".join(pieces) == (await stream.result()).text
    assert len(pieces) > 3


async def test_a_snapshot_tells_pending_from_null() -> None:
    class Form(BaseModel):
        nothing: None
        later: Annotated[str, After("nothing"), Tokens(9)]

    async with Client(RandomBackend(1)) as client, client.fill_stream("x", Form) as stream:
        assert stream.snapshot() == {}
        async for event in stream:
            if isinstance(event, FieldDone) and event.path == "nothing":
                assert stream.snapshot() == {"nothing": None}
        assert set(stream.snapshot()) == {"nothing", "later"}


async def test_validators_of_the_model_run_once_at_the_end() -> None:
    calls: list[str] = []

    class Picky(BaseModel):
        a: Annotated[str, Tokens(9)]
        b: Annotated[str, Tokens(9)]

        @field_validator("a")
        @classmethod
        def refuse(cls, value: str) -> str:
            calls.append(value)
            raise ValueError("not this one")

    async with Client(RandomBackend(1)) as client:
        with pytest.raises(ValidationFailedError) as caught:
            await client.fill("x", Picky)
    assert calls == [caught.value.filled.value["a"]]
    assert set(caught.value.filled.value) == {"a", "b"}
    assert caught.value.partial == caught.value.filled.generation


async def test_a_hole_is_tried_again() -> None:
    clock = VirtualClock()
    backend = Failing({1: 2, 2: 1})
    async with Client(backend, clock=clock) as client:
        filled = await client.fill("x", Review)
    assert [len(record.requests) for record in filled.threads] == [3, 2, 1, 1]
    assert backend.threads == {1: -1, 2: -1, 3: -1, 4: -1}


async def test_a_field_of_which_a_reader_has_nothing_is_tried_again() -> None:
    class Stars(BaseModel):
        number_of_stars: int

    backend = Failing({1: 1}, grammars=("json_schema",))  # it breaks off within the key
    async with Client(backend, clock=VirtualClock()) as client, client.fill_stream("x", Stars) as stream:
        deltas = [event.delta async for event in stream if isinstance(event, FieldDelta)]
        filled = await stream.result()
    assert "".join(deltas) == str(filled.value.number_of_stars)
    assert backend.threads == {1: -1}


async def test_a_field_that_was_shown_is_not_tried_again() -> None:
    async with Client(Failing({1: 1})) as client:
        with pytest.raises(ThreadFailedError):
            async with client.fill_stream("x", Plan("{a}", a=Tokens(9)), temperature=0) as stream:
                async for _ in stream:
                    pass


async def test_a_failure_keeps_what_was_written() -> None:
    async with Client(Failing({4: 9}, retryable=False)) as client:
        with pytest.raises(ThreadFailedError) as caught:
            await client.fill("x", Review)
    assert caught.value.thread == 4
    assert caught.value.partial
    assert json.loads(caught.value.partial.text.partition(', "verdict"')[0] + "}").keys() == {
        "strengths",
        "weaknesses",
        "stars",
    }


async def test_a_backend_that_does_not_keep_to_the_grammar_is_named() -> None:
    class Loose(RandomBackend):
        async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
            async for piece in super().decode(replace(request, grammar=None)):
                yield piece

    async with Client(Loose(1), limits=Limits(retries=0)) as client:
        with pytest.raises(ThreadFailedError) as caught:
            await client.fill("x", Review)
    assert isinstance(caught.value.__cause__, BackendError)
    assert "grammar" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        ({"type": "array", "items": {"$ref": "#/$defs/node"}}, "[" * 2000 + "]" * 2000),
        ({"type": "integer"}, "7" * 4500),
    ],
    ids=["nested too deeply", "too many digits"],
)
async def test_an_output_that_python_cannot_read_fails_its_field(kind: dict[str, Any], written: str) -> None:
    schema = {"properties": {"a": {**kind, "x-pasta": {"tokens": 5000}}}, "$defs": {"node": kind}}
    async with Client(Writing(f" {written}}}"), limits=Limits(retries=0)) as client:
        with pytest.raises(ThreadFailedError) as caught:
            await client.fill("x", schema)
    assert caught.value.partial and caught.value.partial.text.startswith('{"a": ' + written[:100])


async def test_an_item_keeps_what_was_written_to_the_last_digit() -> None:
    class Row(BaseModel):
        price: float
        note: Annotated[str, After()]

    class Form(BaseModel):
        rows: Annotated[list[Row], Field(min_length=1), Tokens(90)]

    rows = '[{"price": 0.10}, {"price": 12345678901234567890.1234567890}]'
    async with Client(Writing(f" {rows}}}", ' "x"}', ' "x"}')) as client:
        filled = await client.fill("x", Form)
    assert filled.text == '{"rows": ' + rows.replace("}", ', "note": "x"}') + "}"


class Long(BaseModel):
    """Fields with more events than the buffer of a reader has room for."""

    first: Annotated[str, Tokens(400)]
    second: Annotated[str, Tokens(400)]


async def test_a_form_asked_for_in_the_loop_over_another_gets_the_only_slot() -> None:
    backend = RandomBackend(5, endless=True)
    nested = 0
    async with Client(backend, clock=VirtualClock(), limits=Limits(client_threads=1)) as client:
        async with client.fill_stream("x", Long) as stream:
            async for event in stream:
                if isinstance(event, FieldDelta) and nested < 3:
                    await client.fill("x", {"properties": {"a": {"type": "boolean"}}})
                    nested += 1
            await stream.result()
    assert nested == 3


async def test_leaving_a_stream_ends_every_request() -> None:
    backend = Waiting(1, 2)
    async with Client(backend) as client:
        async with client.fill_stream("x", Review) as stream:
            async for _ in stream:
                if backend.open == 2:
                    break
            assert backend.open
        assert backend.open == 0
        assert stream.partial


async def test_cancelling_ends_every_request() -> None:
    backend = Waiting(1, 2)
    async with Client(backend) as client:
        task = asyncio.create_task(client.fill("x", Review))
        await backend.both.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert backend.open == 0


async def test_the_time_limit_holds() -> None:
    clock = VirtualClock()
    async with Client(Waiting(1, 2), clock=clock, limits=Limits(timeout=5)) as client:
        with pytest.raises(GenerationTimeoutError) as caught:
            await client.fill("x", Review)
    assert caught.value.partial


async def test_options_of_answers_alone_are_refused() -> None:
    async with Client(RandomBackend()) as client:
        with pytest.raises(InvalidRequestError):
            await client.fill("x", Review, stop=["a"])  # pyright: ignore[reportCallIssue]
        with pytest.raises(InvalidRequestError):
            client.fill_stream("", Review)


async def test_a_group_and_a_list_that_nothing_bounds_keep_a_budget() -> None:
    class Item(BaseModel):
        name: str
        text: Annotated[str, After(), Tokens(20)]

    class Form(BaseModel):
        a: Annotated[str, Together("g")]
        b: Annotated[str, Together("g")]
        items: Annotated[list[Item], Tokens(60)]

    limits = Limits(total_tokens=240)
    for options in (FillOptions(max_tokens=240), FillOptions(limits=limits)):
        async with Client(RandomBackend(1, endless=True), limits=options.get("limits")) as client:
            report = await client.check(Form, max_tokens=options.get("max_tokens"))
            filled = await client.fill("x", Form, **options)
        assert report.bounds and 1 < report.bounds.width < 16 and report.bounds.tokens <= 240
        assert filled.usage.completion_tokens <= 240


async def test_an_object_in_sequence_ends_where_the_context_does() -> None:
    plan = Plan.in_sequence({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})
    async with Client(RandomBackend(1, endless=True, context_length=200)) as client:
        filled = await client.fill([5] * 150, plan)
    assert filled.usage.completion_tokens == 50
    assert filled.truncated == ("object",)


async def test_a_budget_below_the_annotations_is_refused() -> None:
    class Form(BaseModel):
        a: Annotated[str, Tokens(200)]
        b: str

    backend = RandomBackend()
    async with Client(backend) as client:
        for options in (FillOptions(max_tokens=100), FillOptions(limits=Limits(total_tokens=100))):
            with pytest.raises(InvalidPlanError):
                await client.fill("x", Form, **options)
    assert not backend.requests


@pytest.mark.parametrize("total", [80, 200])
async def test_a_retry_keeps_the_total_of_tokens(total: int) -> None:
    async with Client(Failing({1: 1}), clock=VirtualClock(), limits=Limits(total_tokens=total)) as client:
        report = await client.check(REVIEW_TEXT)
        assert report.bounds and report.bounds.tokens == 80
        if total == 200:
            await client.fill("x", REVIEW_TEXT)
        else:  # what the failed request wrote is missing for the others
            with pytest.raises(ThreadFailedError):
                await client.fill("x", REVIEW_TEXT)


async def test_a_value_has_all_its_tokens_whatever_its_key_takes() -> None:
    class Form(BaseModel):
        stars: Annotated[int, Field(ge=1, le=5)]
        is_to_be_recommended: bool

    texts = ['{\n  "stars": 4\n}', '{"is_to_be_recommended": true}']
    async with Client(Writing(*texts, grammars=("json_schema",))) as client:
        filled = await client.fill("x", Form)
        report = await client.check(Form)
    assert filled.value == Form(stars=4, is_to_be_recommended=True)
    assert filled.truncated == ()
    assert report.bounds and filled.usage.completion_tokens <= report.bounds.tokens


async def test_a_field_ends_where_a_model_goes_on_with_others() -> None:
    class Form(BaseModel):
        price: Annotated[int, Field(ge=0, le=2000)]
        words: Annotated[list[str], Tokens(40)]

    texts = ['{"price": 120, "words": ["never', '{\n  "words": ["a, b", "c"],\n  "price"']
    backend = Writing(*texts, grammars=("json_schema",))
    async with Client(backend) as client, client.fill_stream("x", Form) as stream:
        deltas = [(event.path, event.delta) async for event in stream if isinstance(event, FieldDelta)]
    filled = await stream.result()
    assert filled.value == Form(price=120, words=["a, b", "c"]) and filled.truncated == ()
    assert {path: "".join(text for name, text in deltas if name == path) for path, _ in deltas} == {
        "price": "120",
        "words": '["a, b", "c"]',
    }


async def test_a_hole_at_the_start_of_a_line_ends_where_the_line_goes_on() -> None:
    plan = Plan("{first} is older than {second}.", first=Tokens(40), second=(After("first"), Tokens(40)))
    async with Client(Writing("Tea is older than coffee.", "coffee. And better.")) as client:
        filled = await client.fill("x", plan)
    assert filled.text == "Tea is older than coffee."
    plan = Plan("Intro:\n{first} is older.", first=Tokens(40))
    async with Client(Writing("Tea is older. Yes.")) as client:
        assert (await client.fill("x", plan)).text == "Intro:\nTea is older."


async def test_a_field_of_a_group_takes_nothing_of_the_next_one() -> None:
    class Form(BaseModel):
        reason: Annotated[str, Together("g"), Tokens(5)]
        stars: Annotated[int, Field(ge=1, le=5), Together("g")]

    async with Client(Writing(' "' + "x" * 20, " 4}")) as client:
        filled = await client.fill("x", Form)
    assert (filled.value.stars, filled.truncated) == (4, ("reason",))


async def test_a_point_within_a_number_ends_no_hole() -> None:
    plan = Plan("The total is {total}. The tax is {tax}.", total=Tokens(20), tax=Tokens(20))
    async with Client(Writing("12.50. The tax is 2", "2.50. Bye")) as client:
        filled = await client.fill("x", plan)
    assert filled.text == "The total is 12.50. The tax is 2.50."
    async with Client(Writing("12.50. The tax is 2", "2.")) as client:
        assert (await client.fill("x", plan)).value["tax"] == "2"


async def test_a_sign_between_two_holes_ends_the_first_within_digits() -> None:
    plan = Plan("Open from {hours}:{minutes} on.", hours=Tokens(9), minutes=(Tokens(9), After("hours")))
    async with Client(Writing("9:30 on.", "30 on.")) as client:
        assert (await client.fill("x", plan)).text == "Open from 9:30 on."


async def test_an_empty_section_or_an_indented_heading_ends_a_hole() -> None:
    template = """
        ## Good
        {good}

        ## Bad
        {bad}
        """
    plan = Plan(template, good=Tokens(40), bad=(Tokens(40), After("good")))
    for written in ("Tea.\n\n        ## Bad\nNo.", "Tea.\n## Bad\nNo."):
        async with Client(Writing(written, "None.")) as client:
            assert (await client.fill("x", plan)).value == {"good": "Tea.", "bad": "None."}
    for text in (template, "## Good\n{good}\n\n## Bad\n{bad}"):
        plan = Plan(text, good=Tokens(40), bad=(Tokens(40), After("good")))
        async with Client(Writing("## Bad\nNo.", "None.")) as client:
            assert (await client.fill("x", plan)).value == {"good": "", "bad": "None."}


async def test_groups_are_written_one_after_the_other() -> None:
    class Form(BaseModel):
        street: Annotated[str, Together("place"), Tokens(8)]
        name: Annotated[str, Tokens(8)]
        city: Annotated[str, Together("place"), Tokens(8)]

    for kinds in KINDS:
        async with Client(RandomBackend(1, grammars=kinds)) as client:
            async with client.fill_stream("x", Form) as stream:
                done = [event.path async for event in stream if isinstance(event, FieldDone)]
            filled = await stream.result()
        assert done.index("street") < done.index("city")
        assert filled.threads[2].started and filled.threads[0].ended
        assert filled.threads[2].started >= filled.threads[0].ended
        assert list(json.loads(filled.text)) == ["street", "name", "city"]


# Troubles of other libraries' users, by the numbers of their issues ----------------------------------------


async def test_a_field_that_never_ends_stalls_no_other() -> None:  # BAML 1685
    class Form(BaseModel):
        a: Annotated[str, Tokens(9)]
        b: Annotated[str, Tokens(9)]
        c: Annotated[str, Tokens(9), After("b")]

    done: set[str] = set()
    async with Client(Waiting(1)) as client, client.fill_stream("x", Form) as stream:
        async for event in stream:
            if isinstance(event, FieldDone):
                done.add(event.path)
            if done == {"b", "c"}:
                break
        assert stream.snapshot().keys() >= {"b", "c"}


async def test_half_of_a_nested_object_is_never_shown() -> None:  # pydantic-ai 681, instructor 1993 and 2452
    class Form(BaseModel):
        point: Annotated[Point, Tokens(40)]
        text: Annotated[str, Tokens(9)]

    async with Client(RandomBackend(1)) as client, client.fill_stream("x", Form) as stream:
        snapshots = [stream.snapshot() async for _ in stream]
    whole = json.loads((await stream.result()).text)
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
