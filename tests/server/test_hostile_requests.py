"""Requests that are too long, too deep, too many or not what they say: refused early, and cheaply."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
from live_server import PATIENCE, LiveServer, http_request, serving

from pasta_async.server import ServerSettings, create_app
from pasta_async.server.requests import MAX_MESSAGES
from pasta_async.server.running import http_protocol
from pasta_async.testing import ScriptedBackend

MODEL = "pasta-tiny"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def post(server: LiveServer, path: str, body: object) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    return httpx.post(f"{server.url}{path}", content=content, headers=headers, timeout=PATIENCE)


def assert_refused(reply: httpx.Response, status: int = 400) -> None:
    assert reply.status_code == status, reply.text[:300]
    assert reply.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "prompt", [[-1], [2**40], [2**70], [1.5], [True], ["12", 5], [[1], [-1]], [[]], [], "", ["a", ""], None]
)
def test_bad_prompts(server: LiveServer, prompt: object) -> None:
    assert_refused(post(server, COMPLETIONS, {"model": MODEL, "prompt": prompt}))


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_lone_surrogate_is_no_text(server: LiveServer, path: str) -> None:
    body = {"model": MODEL, "prompt": "\ud800", "messages": [{"role": "user", "content": "a\udfff"}]}
    del body["messages" if path == COMPLETIONS else "prompt"]
    assert_refused(post(server, path, body))


@pytest.mark.parametrize("depth", [150, 1_000, 1_000_000])
def test_deep_nesting(server: LiveServer, depth: int) -> None:
    deep = "[" * depth + "]" * depth
    messages = '"messages": [{"role": "user", "content": "x"}]'
    for more in (f'"tools": [{{"x": {deep}}}]', f'"chat_template_kwargs": {{"x": {deep}}}', f'"x": {deep}'):
        reply = post(server, CHAT, f'{{"model": "{MODEL}", "max_tokens": 1, {messages}, {more}}}'.encode())
        assert reply.status_code in (200, 400)
    assert_refused(post(server, CHAT, deep.encode()))


def too_many() -> list[tuple[str, dict[str, Any]]]:
    message = {"role": "user", "content": "x"}
    parts = [{"type": "text", "text": "x"}] * (MAX_MESSAGES + 1)
    return [
        (CHAT, {"messages": [message] * (MAX_MESSAGES + 1)}),
        (CHAT, {"messages": [{"role": "user", "content": parts}]}),
        (CHAT, {"messages": [message], "stop": ["x"] * 300_000}),
        (CHAT, {"messages": [5] * 300_000}),
        (CHAT, {"messages": [message], "tools": [{}] * 300_000}),
        (COMPLETIONS, {"prompt": ["x"] * 300_000}),
        (COMPLETIONS, {"prompt": [[1]] * 300_000}),
        (COMPLETIONS, {"prompt": [1, "x"] * 150_000}),
    ]


@pytest.mark.parametrize(("path", "body"), too_many(), ids=range(len(too_many())))
def test_long_lists(server: LiveServer, path: str, body: dict[str, Any]) -> None:
    assert_refused(post(server, path, {"model": MODEL, **body}))


@pytest.fixture(scope="module")
def strict() -> Iterator[LiveServer]:
    """A server with small limits, run like `pasta-async serve`."""
    settings = ServerSettings(max_body_bytes=100_000)
    app = create_app(ScriptedBackend("Fine."), settings)
    with serving(app, http=http_protocol(settings)) as url:
        yield LiveServer(url, app)


@pytest.mark.parametrize(
    "sent", [b"nonsense", b"GET /" + b"x" * 100_000, b"GET / HTTP/1.1\r\nx:" + b"x" * 100_000]
)
def test_a_head_that_is_no_http_or_too_long_is_answered_400(strict: LiveServer, sent: bytes) -> None:
    with strict.connect() as connection:
        connection.sendall(sent + b"x" * 100_000 + b"\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nx-more:"])
def test_a_connection_on_which_no_request_comes_is_closed(sent: bytes) -> None:
    settings = ServerSettings(body_timeout=0.05)
    app = create_app(ScriptedBackend("Fine."), settings)
    with serving(app, http=http_protocol(settings)) as url, LiveServer(url, app).connect() as connection:
        connection.sendall(sent)
        with suppress(ConnectionResetError):
            assert connection.recv(100) == b""


@pytest.mark.parametrize("size", [100_001, 20_000_000])
def test_long_bodies_are_answered_before_the_connection_is_closed(strict: LiveServer, size: int) -> None:
    url = httpx.URL(strict.url)
    connection = http.client.HTTPConnection(url.host, url.port, timeout=PATIENCE)
    connection.request("POST", CHAT, body=b"x" * size, headers={"Content-Type": "application/json"})
    reply = connection.getresponse()
    assert reply.status == 413
    assert json.loads(reply.read())["error"]["code"] == "request_too_large"
    connection.close()


def test_a_body_that_goes_on_behind_its_answer_is_not_read_for_ever() -> None:
    settings = ServerSettings(api_keys=("secret",), body_timeout=0.05)
    app = create_app(ScriptedBackend("Fine."), settings)
    with serving(app, http=http_protocol(settings)) as url, LiveServer(url, app).connect() as connection:
        head, _, body = http_request("/v1/chat/completions", b"{" * 1000).partition(b"\r\n\r\n")
        connection.sendall(head.replace(b": 1000", b": 1000000000") + b"\r\n\r\n" + body)
        assert b" 401 " in connection.recv(4096)
        until = time.monotonic() + PATIENCE
        with pytest.raises(OSError):
            while time.monotonic() < until:
                connection.sendall(b"{" * 100)
