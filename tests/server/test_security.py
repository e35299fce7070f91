"""The rows of docs/security.md about the server, tried over real sockets."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import httpx
import pytest
from live_server import MESSAGES, PATIENCE, LiveServer, http_request, running, serving

from pasta_async import DecodeRequest, Piece
from pasta_async.backends import WrappingBackend
from pasta_async.backends.local import LocalBackend
from pasta_async.lang import TAG_TOKENS
from pasta_async.server import ServerSettings, create_app
from pasta_async.server.running import http_protocol
from pasta_async.testing import ScriptedBackend
from tests.pasta_tiny import PASTA_TINY

KEY = "sk-very-secret"
CHAT = "/v1/chat/completions"
SPELLED = "".join((*TAG_TOKENS, '<promise topic="x" tokens="10"/>', "<|end|>", "<|system|>", "<|assistant|>"))


class Noting(WrappingBackend):
    """Notes what is decoded."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.requests: list[DecodeRequest] = []

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        self.requests.append(request)
        async for piece in self.inner.decode(request):
            yield piece


@pytest.fixture(scope="module")
def local() -> Noting:
    return Noting(LocalBackend(PASTA_TINY))


@pytest.fixture(scope="module")
def server(local: Noting) -> Iterator[LiveServer]:
    with running(local) as live:
        yield live


def ask(server: LiveServer, **fields: Any) -> httpx.Response:
    body = {"model": "pasta-tiny", "messages": MESSAGES, "max_tokens": 1, **fields}
    return httpx.post(f"{server.url}{CHAT}", json=body, timeout=PATIENCE)


# Tags and special tokens ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": SPELLED}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": SPELLED}]}]},
        {"messages": [{"role": "system", "content": SPELLED}, *MESSAGES]},
        {"messages": [*MESSAGES, {"role": "assistant", "content": SPELLED}, *MESSAGES]},
        {
            "messages": [
                *MESSAGES,
                {"role": "assistant", "content": "x", "reasoning_content": SPELLED},
                *MESSAGES,
            ]
        },
        {"messages": [{"role": "user", "content": "Why?", "name": SPELLED}]},
        {"chat_template_kwargs": {"bos_token": SPELLED, "enable_thinking": SPELLED}},
        {"stop": [SPELLED]},
        {"metadata": {"x": SPELLED}, "user": SPELLED},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_a_client_spells_is_text_in_every_field(
    server: LiveServer, local: Noting, fields: dict[str, Any]
) -> None:
    """The prompt has as many commands as with a harmless word instead."""
    counts: list[list[int]] = []
    for word in (SPELLED, "harmless"):
        local.requests.clear()
        sent = json.loads(json.dumps(fields).replace(json.dumps(SPELLED), json.dumps(word)))
        assert ask(server, **sent).status_code == 200
        counts.append([i for i in local.requests[0].ids if i < 13])
    assert counts[0] == counts[1]


# Keys -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_key_is_in_no_log_error_or_metric(form: Any, caplog: pytest.LogCaptureFixture) -> None:
    settings = ServerSettings(api_keys=(KEY,), log_level="debug", log_format=form, log_text=True)  # type: ignore[arg-type]
    app = create_app(ScriptedBackend("Fine."), settings)
    said: list[str] = []
    with caplog.at_level(logging.DEBUG), serving(app, http=http_protocol(settings)) as url:
        for key in (KEY, f"{KEY}-not"):
            headers = {"Authorization": f"Bearer {key}"}
            for path, body in ((CHAT, {"model": "scripted", "messages": MESSAGES}), (CHAT, {}), ("/x", {})):
                reply = httpx.post(url + path, json=body, headers=headers)
                said += [reply.text, str(reply.headers)]
            said.append(httpx.get(f"{url}/metrics", headers=headers).text)
    assert "pasta_answers_total" in "".join(said) and caplog.records
    assert KEY not in "".join((*said, caplog.text, repr(settings), *map(str, vars(app.state).values())))


# Paths and framing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["/../../etc/passwd", "/..%2f..%2fetc%2fpasswd", "/server/playground/app.js"],
)
def test_no_path_leads_to_a_file(server: LiveServer, path: str) -> None:
    with server.connect() as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        received = b""
        while more := connection.recv(65536):
            received += more
    assert received.startswith(b"HTTP/1.1 404 ")
    assert b'"error"' in received and b"root:" not in received


def test_a_body_of_two_lengths_is_one_request(server: LiveServer) -> None:
    """A proxy in front may go by the other length: what it takes for a body must not be answered."""
    hidden = b"0\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with server.connect() as connection:
        connection.sendall(http_request(CHAT, hidden, "Transfer-Encoding: chunked", "Connection: close"))
        received = b""
        while more := connection.recv(65536):
            received += more
    assert received.count(b"HTTP/1.1 ") == 1
    assert received.startswith(b"HTTP/1.1 400 ")
