"""`response_format` with a schema: objects that are valid whatever the model, by anybody's client."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import httpx
import openai
import pytest
from pydantic import BaseModel, Field

from pasta_async import Client
from pasta_async.plans import After, Tokens
from tests.helpers.live_server import MESSAGES, LiveServer, read

MODEL = "pasta-tiny"


class Form(BaseModel):
    """Fields that end soon, whatever the model."""

    kind: Literal["a", "bc"]
    count: Annotated[int, Field(ge=0, le=9)]
    names: Annotated[list[Literal["x", "y"]], Field(max_length=3)]


class Parallel(BaseModel):
    """Fields that are written at once, but for the last."""

    kind: Annotated[Literal["a", "bc"], Tokens(20)]
    count: Annotated[int, Field(ge=0, le=9)]
    last: Annotated[Literal["x", "y"], After("kind", "count")]


class Empty(BaseModel):
    """A field that nothing fits."""

    a: Annotated[int, Field(ge=5, le=3)]


def schema_of(form: type[BaseModel]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "form", "schema": form.model_json_schema()}}


async def ask(client: openai.AsyncOpenAI, **fields: Any) -> Any:
    create: Any = client.chat.completions.create
    return await create(model=MODEL, messages=MESSAGES, **fields)


@pytest.mark.parametrize(("form", "mode", "threads"), [(Form, "baseline", 1), (Parallel, "parallel", 3)])
async def test_the_official_clients_parse_gives_an_instance(
    client: openai.AsyncOpenAI, form: type[BaseModel], mode: str, threads: int
) -> None:
    reply = await client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=form)  # pyright: ignore[reportArgumentType]
    assert isinstance(reply.choices[0].message.parsed, form)
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage and reply.usage.completion_tokens
    extra: Any = reply.model_extra
    assert (extra["pasta"]["mode"], extra["pasta"]["choices"][0]["threads"]) == (mode, threads)


@pytest.mark.parametrize(("form", "plan", "threads"), [(Form, True, 3), (Parallel, False, 1)])
async def test_a_request_can_say_it_too(
    client: openai.AsyncOpenAI, form: type[BaseModel], plan: bool, threads: int
) -> None:
    reply = await ask(client, response_format=schema_of(form), n=2, extra_body={"pasta": {"plan": plan}})
    assert [choice["threads"] for choice in reply.pasta["choices"]] == [threads, threads]
    for choice in reply.choices:
        form.model_validate_json(choice.message.content)


@pytest.mark.parametrize("form", [Form, Parallel])
async def test_a_stream_brings_the_same_object(client: openai.AsyncOpenAI, form: type[BaseModel]) -> None:
    request: Any = {"response_format": schema_of(form), "temperature": 0}
    whole = await ask(client, **request)
    chunks = await read(ask(client, **request, stream=True))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_a_stream_tells_what_becomes_of_each_field(client: openai.AsyncOpenAI) -> None:
    chunks = await read(
        ask(
            client,
            response_format=schema_of(Parallel),
            stream=True,
            extra_body={"pasta": {"events": True}},
        )
    )
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    events = [chunk.pasta["event"] for chunk in chunks if "event" in getattr(chunk, "pasta", {})]
    started = [event["path"] for event in events if event["type"] == "field.started"]
    done = {event["path"]: event["value"] for event in events if event["type"] == "field.done"}
    assert (sorted(started[:2]), started[2]) == (["count", "kind"], "last")
    assert done == json.loads(text)
    written = "".join(event["delta"] for event in events if event.get("path") == "kind" and "delta" in event)
    assert written == done["kind"]


async def test_a_plan_is_checked_without_being_filled(server: LiveServer, library: Client) -> None:
    async with httpx.AsyncClient(base_url=server.url, verify=False) as http:
        path, schema = "/v1/plans/check", Parallel.model_json_schema()
        report = (await http.post(path, json={"schema": schema, "max_tokens": 10})).json()
        assert report == (await library.check(Parallel, max_tokens=10)).model_dump(mode="json")
        assert (report["verdict"], report["sees"]["last"]) == ("no", ["kind", "count"])
        mistakes: list[Any] = [{}, {"schema": 5}, {"schema": {}}, {"schema": schema, "max": 1}]
        for wrong in mistakes:
            refused = await http.post(path, json=wrong)
            assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")


async def test_what_is_cut_off_is_closed_and_says_so(client: openai.AsyncOpenAI) -> None:
    class Long(BaseModel):
        text: str

    reply = await ask(client, response_format=schema_of(Long), max_tokens=9)
    assert reply.choices[0].finish_reason == "length"
    Long.model_validate_json(reply.choices[0].message.content)


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": schema_of(Empty)},
        {"response_format": schema_of(Form), "stop": ["x"]},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
    ],
    ids=["empty", "stop text", "no schema"],
)
async def test_what_cannot_be_is_refused(client: openai.AsyncOpenAI, fields: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError):
        await ask(client, **fields)
