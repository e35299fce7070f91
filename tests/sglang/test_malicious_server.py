"""A server that means harm: what it sends costs little, moves no key, and is never taken for an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from odd_server import END, STOP, OddServer, backend, event, pieces_of, sse, stream

from pasta_async.backends.sglang import SGLangBackend
from pasta_async.errors import BackendError, BackendProtocolError, BackendStatusError, InvalidRequestError

KEY = "sk-secret"
LIMIT = 10_000


class Endless(httpx.AsyncByteStream):
    """Sends the same for ever, and counts what was taken of it."""

    def __init__(self, chunk: bytes) -> None:
        self.chunk, self.taken = chunk, 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self.taken < 100 * LIMIT:
            self.taken += len(self.chunk)
            yield self.chunk


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pasta_async.backends.sglang.transport.MAX_REPLY", LIMIT)


async def refused(server: OddServer) -> None:
    server.decoding.append(httpx.ReadError("it breaks off"))
    with pytest.raises(BackendError):
        await pieces_of(backend(server))
    for _ in range(5):  # httpx leaves its generators to the loop's care
        await asyncio.sleep(0)


@pytest.mark.parametrize("path", ["/workers", "/server_info", "/v1/models", "/tokenize", "/generate"])
@pytest.mark.parametrize("status", [200, 500])
async def test_an_endless_reply_is_not_read(path: str, status: int) -> None:
    endless = Endless(b"[" * 1000)
    answer = httpx.Response(status, stream=endless)
    server = OddServer({path: answer})
    await refused(server)
    assert endless.taken <= 2 * LIMIT


async def test_an_endless_refusal_of_a_stream_is_not_read() -> None:
    endless, server = Endless(b"no " * 300), OddServer()
    server.decoding = [httpx.Response(500, stream=endless)]
    await refused(server)
    assert endless.taken <= 2 * LIMIT


@pytest.mark.parametrize("headers", [{}, {"content-type": "text/event-stream"}])
async def test_what_is_compressed_is_not_unpacked(headers: dict[str, str]) -> None:
    server = OddServer()
    packed = httpx.Response(200, headers={**headers, "content-encoding": "gzip"}, stream=Endless(b"x"))
    server.decoding = [packed]
    with pytest.raises(BackendProtocolError, match="gzip"):
        await pieces_of(backend(server))
    assert server.headers[0]["accept-encoding"] == "identity"


async def test_an_event_of_another_request_is_refused() -> None:
    other = event([107, END], 2, finish_reason=STOP)
    other["meta_info"]["id"] = "pasta-other-1"
    for answer in (stream([sse([other])]), other):
        server = OddServer()
        server.decoding = [answer]
        with pytest.raises(BackendProtocolError, match="another request"):
            await pieces_of(backend(server), stream=isinstance(answer, httpx.Response))


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(401, json={"error": {"message": f"{KEY} is no key"}}),
        httpx.Response(500, text=f"Authorization: Bearer {KEY}"),
        httpx.Response(200, json=[KEY]),
        stream([f"data: {KEY}\n\n".encode()]),
        stream([sse([{"error": {"message": KEY}}])]),
        stream([sse([{"text": KEY}])]),
    ],
)
async def test_a_key_that_a_server_repeats_is_in_no_message(answer: Any) -> None:
    server = OddServer()
    server.decoding = [answer]
    with pytest.raises(BackendError) as caught:
        await pieces_of(backend(server, api_key=KEY))
    assert KEY not in str(caught.value)


async def test_a_redirection_is_not_followed() -> None:
    server = OddServer({"/server_info": httpx.Response(302, headers={"location": "http://elsewhere/"})})
    with pytest.raises(BackendStatusError, match="302"):
        await backend(server, api_key=KEY).connect()
    assert {headers["host"] for headers in server.headers} == {"odd"}


def test_a_password_in_a_url_is_refused_and_not_shown() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SGLangBackend("http://me:secret@odd:30000")
    assert "secret" not in str(caught.value)


def test_a_key_of_the_wrong_type_is_not_shown() -> None:
    wrong: Any = KEY.encode()
    with pytest.raises(InvalidRequestError) as caught:
        SGLangBackend("http://odd", api_key=wrong)
    assert KEY not in str(caught.value)
