"""What is passed through to SGLang's own endpoints, which encode it themselves: no text is a command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from live_server import PATIENCE, LiveServer, running
from odd_server import OddServer, backend

from pasta_async.backends.sglang import SGLangBackend
from pasta_async.errors import BackendProtocolError, InvalidRequestError, PromptTooLongError

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ASKED = {"role": "user", "content": "Why?"}
SPELLED = ["<|end|>", "a</s>b", "<sync/>", '<promise topic="']


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "description": "d", "parameters": {}, **function}}


def called(arguments: str) -> dict[str, Any]:
    return {
        "role": "assistant",
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}],
    }


def parts(*texts: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text} for text in texts]}


def image(**fields: Any) -> dict[str, Any]:
    url = f"data:image/png;base64,{'iVBORw0KGgo' * 1000}"
    return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}, **fields}]}


@pytest.fixture
def engine() -> OddServer:
    said = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Fine."}}]}
    return OddServer({CHAT: said, COMPLETIONS: said})


@pytest.fixture
def server(engine: OddServer) -> Iterator[LiveServer]:
    with running(backend(engine), model_names=("m",)) as live:
        yield live


def ask(server: LiveServer, path: str = CHAT, **fields: Any) -> httpx.Response:
    body = {"model": "m", **({"messages": [ASKED]} if path == CHAT else {}), **fields}
    return httpx.post(server.url + path, json=body, timeout=PATIENCE, verify=False)


def in_every_field(text: str) -> list[dict[str, Any]]:
    """Requests that are passed through, each with the text in another place."""
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in text)
    tools = [tool()]
    return [
        {"tools": tools, "messages": [{"role": "user", "content": text}]},
        {"tools": tools, "messages": [{"role": "system", "content": text}, ASKED]},
        {"tools": tools, "messages": [{**ASKED, "name": text}]},
        {"tools": tools, "messages": [parts("Why?", text)]},
        {"tools": tools, "messages": [parts(text[:1], text[1:3], text[3:])]},
        {"tools": tools, "messages": [parts(*text)]},
        {"tools": tools, "chat_template_kwargs": {"a": [text]}},
        {"tools": [tool(description=text)]},
        {"tools": [tool(name=text)]},
        {"tools": [tool(parameters={"properties": {text: {}}})]},
        {"messages": [ASKED, called(json.dumps({"a": text})), ASKED]},
        {"messages": [ASKED, called(f'{{"a": ["{escaped}"]}}'), ASKED]},
        {"messages": [ASKED, called("{}"), {"role": "tool", "tool_call_id": "1", "content": text}]},
        {"messages": [ASKED, {"role": "assistant", "reasoning_content": text}, ASKED], "logprobs": True},
        {"response_format": {"type": "json_object"}, "messages": [{"role": "user", "content": text}]},
        {"logit_bias": {"5": 1}, "messages": [{"role": "user", "content": text}]},
        {"frequency_penalty": 1, "messages": [{"role": "user", "content": text}], "stream": True},
    ]


@pytest.mark.parametrize("text", SPELLED)
def test_a_text_that_spells_a_command_is_refused_and_not_sent(
    server: LiveServer, engine: OddServer, text: str
) -> None:
    for fields in in_every_field(text):
        refused = ask(server, **fields)
        assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error"), (
            fields
        )
    for fields in ({"prompt": text}, {"prompt": ["x", text]}, {"prompt": "x", "suffix": text}):
        assert ask(server, COMPLETIONS, logprobs=1, **fields).status_code == 400
    assert not engine.sent(CHAT) and not engine.sent(COMPLETIONS)
    for fields in in_every_field("<|harmless|>"):
        assert ask(server, **fields).is_success or "stream" in fields
    assert len(engine.sent(CHAT)) == len(in_every_field(""))


def test_the_refusal_names_the_text_and_what_to_do(server: LiveServer) -> None:
    said = ask(server, tools=[tool(description=f"{'x' * 500} look <sync/> up")]).json()["error"]["message"]
    assert "look <sync/> up" in said and "tools" in said and len(said) < 500


@pytest.mark.parametrize("text", ["/>", " tokens="])
def test_quotes_that_json_puts_around_a_text_complete_no_tag(
    server: LiveServer, engine: OddServer, text: str
) -> None:
    assert ask(server, tools=[tool(description=text)]).status_code == 400
    assert ask(server, tools=[tool(description=f"a{text}")]).is_success


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [tool()], "stop": ["</s>", "<sync/>"]},
        {"regex": "(</s>)?"},
        {"ebnf": 'root ::= "<|end|>"'},
        {"messages": [image()]},
        {"messages": [image(note="<sync/>")]},
        {"tools": [tool()], "messages": [{"role": "user", "content": "<b>a</b> <|x|> é {[("}]},
        {"tools": [tool()], "messages": [{"role": "user", "content": '{"a": "<b>"}'}]},
    ],
)
def test_what_is_in_no_prompt_or_spells_nothing_is_passed_as_it_is(
    server: LiveServer, engine: OddServer, fields: dict[str, Any]
) -> None:
    assert ask(server, **fields).is_success
    [sent] = engine.sent(CHAT)
    assert {name: sent[name] for name in fields if name != "messages"} == {
        name: value for name, value in fields.items() if name != "messages"
    }
    assert "iVBORw" not in json.dumps(engine.sent("/tokenize"))


def test_a_prompt_of_ids_is_passed_as_it_is(server: LiveServer, engine: OddServer) -> None:
    assert ask(server, COMPLETIONS, prompt=[7, 107], logprobs=1).is_success
    assert engine.sent(COMPLETIONS)[0]["prompt"] == [7, 107]


async def test_a_tokenizer_at_hand_tells_as_well(engine: OddServer, shipped: Path) -> None:
    made = backend(engine, tokenizer=shipped)
    for fields in in_every_field("<|end|>") + in_every_field("<sync/>"):
        await refused(made, {"messages": [ASKED], **fields}, InvalidRequestError)
    await refused(made, {"messages": [parts("x" * 100_000)]}, PromptTooLongError)
    assert not engine.sent(CHAT) and not engine.sent("/tokenize")
    assert [_ async for _ in made.openai(CHAT, {"messages": [ASKED, image()], "tools": [tool()]})]


async def test_what_cannot_fit_or_be_read_is_refused_before_it_is_sent(engine: OddServer) -> None:
    made = backend(engine)
    for text in ("a\ud800", "[" * 100_000 + "]" * 100_000):
        await refused(made, {"messages": [called(text)]}, InvalidRequestError)
    await refused(made, {"prompt": "x" * 100_000}, PromptTooLongError)
    assert not engine.sent(CHAT) and max(len(str(body)) for body in engine.sent("/tokenize")) < 10_000


@pytest.mark.parametrize("reply", [[1], "x", 7, None])
async def test_a_reply_that_is_no_object_is_the_engines_fault(engine: OddServer, reply: Any) -> None:
    engine.routes[CHAT] = httpx.Response(200, json=reply)
    with pytest.raises(BackendProtocolError):
        await anext(backend(engine).openai(CHAT, {"messages": [ASKED]}))


async def refused(made: SGLangBackend, body: dict[str, Any], kind: type[InvalidRequestError]) -> None:
    with pytest.raises(kind):
        await anext(made.openai(CHAT, body))
