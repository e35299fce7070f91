"""Clients that go away or read slowly, and a server that is told to stop: real sockets, real engines."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx
import pytest

from pasta_async.server import ServerSettings, create_app
from pasta_async.server.running import http_protocol
from pasta_async.testing import ScriptedBackend
from tests.helpers.live_server import MESSAGES, PATIENCE, LiveServer, WatchedBackend, http_request, serving
from tests.pasta_tiny import LOCAL_TINY

CHAT = {"model": "pasta-tiny", "messages": MESSAGES, "temperature": 0}


def post(server: LiveServer, body: dict[str, Any], path: str = "/v1/chat/completions") -> socket.socket:
    connection = server.connect()
    connection.sendall(http_request(path, json.dumps(body).encode()))
    return connection


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_disconnects_ends_every_thread(
    server: LiveServer, engine: WatchedBackend, stream: bool
) -> None:
    with post(server, {**CHAT, "stream": stream, "n": 3}):
        engine.wait(lambda e: e.open >= 3)
    engine.wait(lambda e: e.open == 0)
    while httpx.get(f"{server.url}/health").json()["in_flight"]:  # a moment later its places are free
        pass


def test_a_reader_that_takes_nothing_is_cut_off() -> None:
    """Its answer would hold its place for ever, even once its time is up."""
    engine, settings = WatchedBackend(ScriptedBackend("word " * 1000)), ServerSettings(stall_timeout=0.1)
    app = create_app(engine, settings)
    fields = {"model": "scripted", "prompt": "Why?", "temperature": 0, "max_tokens": 1000, "stream": True}
    body = json.dumps({**fields, "pasta": {"events": True}}).encode()
    with serving(app, send_buffer=2**13, http=http_protocol(settings)) as url:
        server = LiveServer(url, app)
        with server.connect(receive_buffer=2**13) as connection:
            connection.sendall(http_request("/v1/completions", body))
            engine.wait(lambda e: e.open == 1)
            engine.wait(lambda e: e.open == 0)
            (pieces,) = engine.pieces.values()
            assert pieces < 1000
            while httpx.get(f"{server.url}/health").json()["in_flight"]:  # a moment later its place is free
                pass


# The program, and signals -----------------------------------------------------------------------------------

STALLING = """
import sys
import pasta_async.client
from pasta_async.cli import main
from pasta_async.clock import REAL_CLOCK
from pasta_async.testing import Fault, ScriptedBackend
backend = ScriptedBackend("Tea is old.", clock=REAL_CLOCK, faults=[Fault(0, 2, "stall", times=2)])
pasta_async.client.open_backend = lambda *_, **__: backend
main(["serve", "--port", "0", "--drain-seconds", sys.argv[1]])
"""
SERVE = ["-m", "pasta_async", "serve", "--port", "0", "--backend"]


@pytest.mark.parametrize("steps", range(0, 24, 2))
async def test_a_client_that_leaves_as_its_stream_begins_leaves_no_place_behind(steps: int) -> None:
    """The app alone, so that the client leaves at each step of the loop around the response's first bytes."""
    app = create_app(ScriptedBackend("Fine, thanks."), ServerSettings(model_names="m", parallel="never"))
    body = json.dumps({"model": "m", "messages": MESSAGES, "stream": True}).encode()
    headers = [(b"content-type", b"application/json")]
    scope: dict[str, Any] = {
        **{"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": headers},
        **{"query_string": b"", "root_path": ""},
    }
    messages = [{"type": "http.request", "body": body}]
    gone = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(_: Any) -> None:
        await asyncio.sleep(0)

    async with app.router.lifespan_context(app):
        answer = asyncio.ensure_future(app(scope, receive, send))
        for _ in range(steps):
            await asyncio.sleep(0)
        gone.set()
        await answer
        assert app.state.service.queue.in_flight == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


@contextmanager
def program(*arguments: str) -> Generator[subprocess.Popen[str]]:
    """A server in a process of its own, which does not outlive the test."""
    with subprocess.Popen([sys.executable, *arguments], stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def until(process: subprocess.Popen[str], wanted: str) -> str:
    """Read its log up to what is looked for."""
    assert process.stderr
    for line in process.stderr:
        if match := re.search(wanted, line):
            return match[0]
    raise AssertionError("it ended before that")


def test_sigterm_lets_open_answers_end() -> None:
    body = {**CHAT, "stream": True, "n": 4}
    with program(*SERVE, LOCAL_TINY) as process:
        url = until(process, r"http://[\d.:]+")
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body) as reply:
            lines = reply.iter_lines()
            first = next(lines)
            process.send_signal(signal.SIGTERM)
            rest = [first, *lines]
        assert rest[-2:] == ["data: [DONE]", ""]
        assert process.wait(PATIENCE) == -signal.SIGTERM


@pytest.mark.parametrize("signals", [1, 2])
def test_answers_that_do_not_end_in_time_are_told_so(signals: int) -> None:
    """Their time is that of draining, or ends with Ctrl-C."""
    with program("-c", STALLING, "1" if signals == 1 else "600") as process, ThreadPoolExecutor(2) as pool:
        url = until(process, r"http://[\d.:]+")
        post = partial(httpx.post, f"{url}/v1/chat/completions", timeout=PATIENCE)
        fields = {**CHAT, "model": "scripted"}
        whole, stream = (pool.submit(post, json={**fields, "stream": stream}) for stream in (False, True))
        while httpx.get(f"{url}/health").json()["in_flight"] < 2:
            pass
        process.send_signal(signal.SIGTERM)
        if signals == 2:
            until(process, "Shutting down")
            process.send_signal(signal.SIGINT)
        refused, cut = whole.result(), stream.result()
        _, log = process.communicate()
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
    assert refused.json()["error"]["code"] == "stopping"
    error = json.loads(cut.text.rstrip().rpartition("data: ")[2])["error"]
    assert error["code"] == "stopping" and "Tea is old.".startswith(error["partial"]) and error["partial"]
    assert process.returncode == -signal.SIGTERM
    assert "Traceback" not in log


def test_a_signal_ends_a_server_that_still_waits_for_its_backend() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE)
        with program(*SERVE, f"http://127.0.0.1:{silent.getsockname()[1]}") as process:
            connection, _ = silent.accept()  # it has asked, and gets no answer
            process.send_signal(signal.SIGINT)
            _, log = process.communicate(timeout=PATIENCE)
        connection.close()
    assert process.returncode == 130
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["local:/no/such"], 1, "/no/such"),
        ([LOCAL_TINY, "--host", "0.0.0.0"], 2, "PASTA_SERVER_API_KEYS"),  # others could reach it
    ],
)
def test_a_server_that_cannot_start_says_why_in_words(arguments: list[str], code: int, said: str) -> None:
    with program(*SERVE, *arguments) as process:
        _, log = process.communicate(timeout=PATIENCE)
    assert process.returncode == code
    assert said in log and "Traceback" not in log
