"""Requests that only the engine's own endpoint can honour: a plain proxy, bytes in and bytes out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from pasta_async import Client, Limits
from pasta_async.backends import WrappingBackend
from pasta_async.backends.sglang import SGLangBackend
from pasta_async.server.proxy import EngineReply
from pasta_async.server.requests import ChatRequest
from pasta_async.server.service import RequestQueue, Service
from pasta_async.server.settings import ServerSettings
from pasta_async.testing import ScriptedBackend
from tests.helpers.live_server import CHAT, COMPLETIONS, PATIENCE, LiveServer, ask, running, serving

TOOLS: list[Any] = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


class Engine:
    """An engine with an OpenAI API of its own, on a real socket."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.left = asyncio.Event()
        self.reply: Response | None = None
        self.app = Starlette(
            routes=[Route(path, self.answer, methods=["POST"]) for path in (CHAT, COMPLETIONS)]
            + [Route("/", self.ready)]
        )

    async def ready(self, _: Request) -> Response:
        return PlainTextResponse("ready")

    async def answer(self, request: Request) -> Response:
        self.bodies.append(await request.json())
        self.keys.append(request.headers.get("authorization"))
        if self.reply is not None:
            return self.reply
        return StreamingResponse(self.silence(), media_type="text/event-stream")

    async def silence(self) -> AsyncGenerator[bytes]:
        """One event, and then nothing until the client has left."""
        try:
            yield b'data: {"choices": [], "odd":   "white space"}\n\n'
            await asyncio.Event().wait()
        finally:
            self.left.set()


class Proxied(WrappingBackend):
    """A scripted backend beside a server with an OpenAI API of its own."""

    def __init__(self, url: str) -> None:
        super().__init__(ScriptedBackend("Fine."))
        self._server = SGLangBackend(url, api_key="of-the-engine")

    def forward(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[bytes]:
        return self._server.forward(path, body)

    async def aclose(self) -> None:
        await self._server.aclose()
        await super().aclose()


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def server(engine: Engine) -> Iterator[LiveServer]:
    with serving(engine.app) as url, running(Proxied(url), model_names=("m",), max_tokens=99) as live:
        yield live


def test_a_reply_comes_byte_for_byte(server: LiveServer, engine: Engine) -> None:
    content = b'{"choices":   [1, 2], "odd" : 1e3}'
    engine.reply = Response(content, media_type="application/json")
    cases: list[tuple[str, dict[str, Any]]] = [
        (CHAT, {"tools": TOOLS}),
        (CHAT, {"response_format": {"type": "json_object"}}),
        (CHAT, {"logprobs": True}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}),
        (CHAT, {"messages": [{"role": "tool", "tool_call_id": "1", "content": "5"}]}),
        (COMPLETIONS, {"logprobs": 0}),
        (COMPLETIONS, {"echo": True}),
    ]
    for path, fields in cases:
        reply = ask(server, path, **fields)
        assert (reply.status_code, reply.content) == (200, content), reply.text
        assert reply.headers["x-pasta-mode"] == "passed-through"
    assert set(engine.keys) == {"Bearer of-the-engine"}


def test_the_engine_gets_what_was_asked_with_the_servers_defaults(server: LiveServer, engine: Engine) -> None:
    engine.reply = Response(b"{}")
    message = {"role": "user", "content": "Why?", "vendor": {"a": [1]}}
    pasta: dict[str, Any] = {"limits": {"timeout": 5}}
    nulls: dict[str, Any] = {"suffix": None, "guided_json": None}
    assert ask(server, messages=[message], tools=TOOLS, user="me", pasta=pasta, **nulls).status_code == 200
    assert engine.bodies == [
        {
            **{"model": "scripted", "messages": [message], "tools": TOOLS, "user": "me"},
            **{"temperature": 1.0, "max_tokens": 99, "chat_template_kwargs": {"pasta": False}},
        }
    ]
    assert ask(server, tools=TOOLS, max_completion_tokens=7, temperature=0.5).status_code == 200
    assert (engine.bodies[1]["max_completion_tokens"], engine.bodies[1]["temperature"]) == (7, 0.5)
    assert "max_tokens" not in engine.bodies[1]


def test_what_an_engine_would_refuse_or_lose_is_put_in_its_words(server: LiveServer, engine: Engine) -> None:
    engine.reply = Response(b"{}")
    messages = [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "Why?"}]
    assert ask(server, messages=messages, tools=TOOLS, top_p=0).status_code == 200
    (body,) = engine.bodies
    assert body["messages"] == [{**messages[0], "role": "system"}, messages[1]]
    assert 0 < body["top_p"] < 1e-6


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (COMPLETIONS, {"prompt": [4_000_000_000], "echo": True}),
        (COMPLETIONS, {"prompt": [[1], [-1]], "echo": True}),
        (COMPLETIONS, {"prompt": "x", "logprobs": 10**7}),
        (COMPLETIONS, {"prompt": "x", "logprobs": "10000000"}),
        (CHAT, {"logprobs": True, "top_logprobs": 10**7}),
    ],
    ids=str,
)
def test_what_an_engine_would_die_of_is_refused(
    server: LiveServer, engine: Engine, path: str, fields: dict[str, Any]
) -> None:
    assert ask(server, path, **fields).status_code == 400
    assert not engine.bodies


@pytest.mark.parametrize(
    "smuggled", ["rid", "lora_path", "custom_logit_processor", "input_ids", "stop_regex"]
)
def test_a_field_of_the_engine_is_not_smuggled_behind_tools(
    server: LiveServer, engine: Engine, smuggled: str
) -> None:
    reply = ask(server, tools=TOOLS, **{smuggled: "x"})
    assert reply.status_code == 400 and reply.json()["error"]["param"] == smuggled
    assert not engine.bodies


@pytest.mark.parametrize(
    "link", ["http://10.0.0.1/", "file:/etc/passwd", "/etc/passwd", "https://x.test/cat.png"]
)
def test_an_engine_opens_no_link(server: LiveServer, engine: Engine, link: str) -> None:
    engine.reply = Response(b"{}")
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": link}},
        {"type": "image_url", "image_url": link},
        {"type": "text", "text": "x", "video_url": {"url": link}},
    ]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    for part in parts:
        assert ask(server, messages=[{"role": "user", "content": [image, part]}]).status_code == 400
    assert not engine.bodies
    assert ask(server, messages=[{"role": "user", "content": [image]}]).status_code == 200


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({}, {"max_tokens": 50}), ({"max_tokens": 70}, {"max_tokens": 50}), ({"max_completion_tokens": 9}, {})],
)
def test_the_engine_is_asked_for_no_more_than_the_total(
    engine: Engine, fields: dict[str, Any], expected: dict[str, int]
) -> None:
    engine.reply = Response(b"{}")
    limits = Limits(total_tokens=50)
    with serving(engine.app) as url, running(Proxied(url), model_names=("m",), limits=limits) as server:
        assert ask(server, tools=TOOLS, **fields).status_code == 200
    [body] = engine.bodies
    asked = {name: body[name] for name in ("max_tokens", "max_completion_tokens") if name in body}
    assert asked == (expected or fields)


def test_a_stream_comes_as_it_is_and_a_client_that_leaves_ends_it(server: LiveServer, engine: Engine) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "Why?"}], "tools": TOOLS, "stream": True}
    with httpx.stream("POST", server.url + CHAT, json=body, timeout=PATIENCE) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = reply.iter_lines()
        assert next(lines) == 'data: {"choices": [], "odd":   "white space"}'
        assert httpx.get(f"{server.url}/health").json()["in_flight"] == 1
    while httpx.get(f"{server.url}/health").json()["in_flight"] or not engine.left.is_set():
        pass


class Talkative(WrappingBackend):
    """A backend whose engine has something to say at every step of the loop."""

    async def forward(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[bytes]:
        for _ in range(500):
            await asyncio.sleep(0)
            yield b" "


@pytest.mark.parametrize("steps", range(1, 13))
async def test_a_reply_that_keeps_coming_ends_when_it_is_cancelled(steps: int) -> None:
    settings = ServerSettings()
    async with Client(Talkative(ScriptedBackend("Fine."))) as client:
        service = Service(client, await client.connect(), settings, RequestQueue(settings))
        raw = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Why?"}], "tools": TOOLS})
        request = ChatRequest.model_validate_json(raw)
        task = asyncio.create_task(EngineReply(service, request, raw.encode()).whole())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not service.queue.in_flight


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "content", "expected", "message"),
    [
        (400, b'{"object": "error", "message": "no such tool"}', (400, "refused_by_engine"), "no such tool"),
        (429, b'{"error": {"message": "full"}}', (503, "engine_busy"), "full"),
        (500, b"oops", (502, "engine_failed"), "oops"),
        (401, b"[1]", (502, "engine_failed"), "401"),
    ],
)
def test_an_error_of_the_engine_has_openais_form(
    *,
    server: LiveServer,
    engine: Engine,
    status: int,
    content: bytes,
    expected: tuple[int, str],
    message: str,
    stream: bool,
) -> None:
    engine.reply = Response(content, status, {"Retry-After": "7"})
    reply = ask(server, tools=TOOLS, stream=stream)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == expected
    assert message in error["message"]
    assert "http" not in error["message"], "clients need not know where the engine is"
    assert reply.headers.get("retry-after") == ("7" if status == 429 else None)


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_takes_too_long(server: LiveServer, stream: bool) -> None:
    reply = ask(server, tools=TOOLS, stream=stream, pasta={"limits": {"timeout": 0.1}})
    error = json.loads(reply.text.rpartition("data: ")[2])["error"] if stream else reply.json()["error"]
    assert error["code"] == "timeout"


def test_an_engine_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    address = "http://127.0.0.1:1"
    with running(Proxied(address), model_names=("m",)) as server:
        reply = ask(server, tools=TOOLS)
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_unreachable")
    assert address not in reply.text and address in caplog.text


@pytest.mark.parametrize("number", ["NaN", "1e999"])
def test_a_number_that_json_cannot_hold_is_refused(server: LiveServer, engine: Engine, number: str) -> None:
    body = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "Why?"}], "tools": [{"x": 0.5}]}
    )
    raw = body.replace("0.5", number).encode()
    headers = {"Content-Type": "application/json"}
    reply = httpx.post(server.url + CHAT, content=raw, headers=headers, timeout=PATIENCE)
    assert (reply.status_code, reply.json()["error"]["type"]) == (400, "invalid_request_error")
    assert not engine.bodies
