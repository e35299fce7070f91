"""What the HTTP backend sends, and how often: no retries, aborts of what was begun, time-outs, closing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from odd_server import END, STOP, OddServer, backend, event, pieces_of, sse, stream

from pasta_async.errors import (
    BackendError,
    BackendStatusError,
    BackendTimeoutError,
)
from pasta_async.options import Sampling
from pasta_async.protocol import DecodeRequest

# One request for one decoding, and aborts only of what was begun -------------------------------------------


def good() -> httpx.Response:
    return stream([sse([event([107, END], 2, finish_reason=STOP)])])


REFUSED = [
    httpx.Response(503, headers={"retry-after": "0"}, text="busy"),
    httpx.Response(429, headers={"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}),
    httpx.Response(400, json={"error": {"message": "bad"}}),
    httpx.ConnectError("refused"),
    httpx.ConnectTimeout("silent"),
]
BROKEN = [
    httpx.ReadTimeout("silent"),
    httpx.ReadError("reset"),
    httpx.RemoteProtocolError("Server disconnected without sending a response."),
    stream([]),
    stream([b"data: {"]),
]


@pytest.mark.parametrize("failure", [*REFUSED, *BROKEN], ids=str)
async def test_a_request_is_sent_once_and_aborted_only_if_the_server_may_have_it(failure: Any) -> None:
    server = OddServer()
    server.decoding = [failure, good(), good()]
    with pytest.raises(BackendError):
        await pieces_of(backend(server))
    assert len(server.decoding) == 2
    [rid] = [body["rid"] for body in server.sent("/generate") if "rid" in body]
    assert server.sent("/abort_request") == ([] if failure in REFUSED else [{"rid": rid}])


async def test_a_retry_after_is_handed_on() -> None:
    server = OddServer()
    server.decoding = [httpx.Response(429, headers={"retry-after": "7"}), REFUSED[1]]
    for seconds in (7.0, None):
        with pytest.raises(BackendStatusError) as caught:
            await pieces_of(backend(server))
        assert (caught.value.status, caught.value.retry_after) == (429, seconds)
        assert caught.value.retryable


async def test_a_time_out_is_not_for_another_try() -> None:
    server = OddServer()
    server.decoding = [httpx.ReadTimeout("silent")]
    with pytest.raises(BackendTimeoutError) as caught:
        await pieces_of(backend(server))
    assert not caught.value.retryable


async def test_a_server_that_says_nothing_holds_nobody_for_long() -> None:
    """All that wait for the handshake share its end; only decoding may take minutes."""
    timeouts: dict[str, Any] = {}

    class Answer(OddServer):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            timeouts[request.url.path] = request.extensions["timeout"]["read"]
            return await super().handle_async_request(request)

    server = Answer({"/server_info": httpx.ReadTimeout("silent")})
    made = backend(server)
    errors = await asyncio.gather(*(made.connect() for _ in range(5)), return_exceptions=True)
    assert all(isinstance(error, BackendTimeoutError) for error in errors)
    assert len(set(map(id, errors))) == 5  # each may be given a partial answer of its own
    assert len(server.sent("/server_info")) == 1
    server.routes["/server_info"] = {"version": "0.5.23"}
    await made.encode("x")
    assert max(timeouts.values()) <= 30
    server.decoding = [good()]
    await pieces_of(made)
    assert timeouts["/generate"] == 300


# Ending early ---------------------------------------------------------------------------------------------


class Endless(httpx.AsyncByteStream):
    """An answer that goes on until it is aborted, or its connection is closed."""

    def __init__(self, first: bytes = b"") -> None:
        self.first = first
        self.reading = asyncio.Event()
        self.aborted = asyncio.Event()
        self.over = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            if self.first:
                yield self.first
            self.reading.set()
            await self.aborted.wait()
        finally:
            self.over = True

    def abort(self, body: Any) -> httpx.Response:
        self.aborted.set()
        return httpx.Response(200)


async def test_closing_early_aborts_the_request_and_reads_it_to_its_end() -> None:
    answer = Endless(sse([event([107], 1)], done=False))
    server = OddServer({"/abort_request": answer.abort})
    server.decoding = [stream(answer)]
    pieces = backend(server).decode(DecodeRequest("a", 0, (11,), 50, Sampling()))
    assert (await anext(pieces)).text == "a"
    await pieces.aclose()
    assert server.sent("/abort_request") == [{"rid": server.sent("/generate")[-1]["rid"]}]
    assert answer.over


@pytest.mark.parametrize("first", [b"", sse([event([107], 1)], done=False)])
@pytest.mark.parametrize(
    "abort",
    [httpx.Response(200), httpx.Response(403), httpx.ConnectError("gone")],
    ids=["200", "403", "gone"],
)
async def test_cancelling_aborts_the_request_and_stays_a_cancellation(first: bytes, abort: Any) -> None:
    answer = Endless(first)
    server = OddServer({"/abort_request": abort})
    server.decoding = [stream(answer)]
    made = backend(server)
    task = asyncio.create_task(pieces_of(made))
    await answer.reading.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() and answer.over
    assert server.sent("/abort_request") == [{"rid": server.sent("/generate")[-1]["rid"]}]
    await made.aclose()


async def test_a_second_cancellation_does_not_stop_the_abort() -> None:
    answer, asked, answered = Endless(), asyncio.Event(), asyncio.Event()
    server = OddServer()
    slow = server.handle_async_request

    async def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/abort_request":
            asked.set()
            await answered.wait()
        return await slow(request)

    server.handle_async_request = handle
    server.decoding = [stream(answer)]
    made = backend(server)
    task = asyncio.create_task(pieces_of(made))
    await answer.reading.wait()
    task.cancel()
    await asked.wait()
    task.cancel()
    await asyncio.wait([task], timeout=0)
    assert not task.done(), "nothing is left when it returns"
    answered.set()
    await asyncio.wait([task])
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await made.aclose()
    assert task.cancelled() and len(server.sent("/abort_request")) == 1 and answer.over


async def test_closing_ends_what_is_open_and_what_comes_after() -> None:
    answer, waiting = Endless(sse([event([107], 1)], done=False)), Endless()
    server = OddServer({"/abort_request": answer.abort})
    server.decoding = [stream(answer), stream(waiting)]
    made = backend(server)
    idle = made.decode(DecodeRequest("a", 0, (11,), 50, Sampling()))
    await anext(idle)
    task = asyncio.create_task(pieces_of(made))
    await waiting.reading.wait()
    await made.aclose()
    with pytest.raises(BackendError):
        await task
    with pytest.raises(BackendError):
        await anext(idle)
    assert len(server.sent("/abort_request")) == 2 and answer.over and waiting.over
    for work in (made.encode("x"), pieces_of(made), made.check()):
        with pytest.raises(BackendError):
            await work


async def test_closing_ends_a_connect_that_hangs() -> None:
    asked = asyncio.Event()

    class Silent(OddServer):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

    made = backend(Silent())
    task = asyncio.create_task(made.connect())
    await asked.wait()
    await made.aclose()
    with pytest.raises(BackendError):
        await task


async def test_a_finished_request_is_not_aborted() -> None:
    server = OddServer()
    server.decoding = [good()]
    pieces = backend(server).decode(DecodeRequest("a", 0, (11,), 50, Sampling()))
    assert (await anext(pieces)).finish_reason == "stop"
    await pieces.aclose()
    assert not server.sent("/abort_request")
