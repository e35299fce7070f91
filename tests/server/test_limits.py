"""Keys, limits and the log of a server with a scripted model."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from pasta_async import BackendStatusError, InvalidRequestError, Limits
from pasta_async.server import ServerSettings, create_app, uvicorn_server
from pasta_async.testing import Fault, ScriptedBackend
from tests.helpers.live_server import (
    PATIENCE,
    LiveServer,
    WatchedBackend,
    http_request,
    official,
    read,
    running,
    serving,
)

ANSWER = 'Both. <promise topic="tea" tokens="10"/><async>Tea is old.</async><sync/> Enough.'
SECRET = "the prompt that nobody may read"


def ask(server: LiveServer, key: str | None = None, **values: Any) -> httpx.Response:
    headers = {b"Authorization": f"Bearer {key}".encode()} if key is not None else {}
    body = {"model": "scripted", "messages": [{"role": "user", "content": SECRET}], **values}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=PATIENCE)


@pytest.mark.usefixtures("loggers")
@pytest.mark.parametrize(("keys", "status"), [("", 400), ("secret", 200)])
def test_without_a_key_only_local_names_are_answered(keys: str, status: int) -> None:
    """Or a page of the web whose name points here could ask in its reader's browser."""
    settings = ServerSettings(api_keys=keys)
    app = create_app(ScriptedBackend(ANSWER), settings)
    uvicorn_server(app, settings)
    with serving(app) as url:
        for host, expected in (
            ("localhost", 200),
            ("127.0.0.1:80", 200),
            ("[::1]:80", 200),
            ("evil.example", status),
        ):
            assert httpx.get(f"{url}/health", headers={"host": host}).status_code == expected


def stalling() -> WatchedBackend:
    """Writes some text, and then nothing any more."""
    return WatchedBackend(ScriptedBackend(ANSWER, faults=[Fault(0, 2, "stall", times=100)]))


def test_keys_from_a_file_and_from_settings(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# ours\n\nfirst\n second \n")
    with running(ScriptedBackend(ANSWER), api_keys_file=keys, api_keys="schlüssel,voilà") as server:
        keys_that_work = ("first", "second", "schlüssel", "voilà")
        assert [ask(server, key).status_code for key in keys_that_work] == [200] * 4
        for key in (None, "fourth", "# ours", "firs", "first2", "schluessel"):
            reply = ask(server, key)
            assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")
        assert httpx.get(f"{server.url}/v1/models").status_code == 401
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert httpx.get(server.url).status_code == 200


def test_an_app_that_is_mounted_in_another_one() -> None:
    app = create_app(ScriptedBackend(ANSWER), ServerSettings(api_keys=("good",)))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with app.router.lifespan_context(app):
            yield

    with serving(Starlette(routes=[Mount("/llm", app)], lifespan=lifespan)) as outer:
        server = LiveServer(f"{outer}/llm", app)
        assert httpx.get(f"{server.url}/health").json()["status"] == "ok"
        assert [ask(server, key).status_code for key in ("good", "bad")] == [200, 401]
        metrics = httpx.get(f"{server.url}/metrics", headers={"Authorization": "Bearer good"}).text
    assert 'path="/v1/chat/completions"' in metrics


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("status", "expected"), [(400, 400), (429, 503), (500, 502)])
def test_what_the_engine_answers_is_told_with_or_without_a_stream(
    stream: bool, status: int, expected: int
) -> None:
    error = BackendStatusError("no", status=status, retry_after=0.0)
    backend = ScriptedBackend(ANSWER, faults=[Fault(0, 0, error=error, times=100)])
    with running(backend, limits=Limits(retries=0)) as server:
        reply = ask(server, stream=stream)
    assert reply.status_code == expected
    assert ("retry-after" in reply.headers) == (expected == 503)


def test_a_file_without_keys_is_no_open_door(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    for text in (None, "# nothing\n"):
        if text is not None:
            keys.write_text(text)
        with pytest.raises(InvalidRequestError):
            create_app(ScriptedBackend(ANSWER), ServerSettings(api_keys_file=keys))


def test_a_body_that_does_not_come() -> None:
    with running(ScriptedBackend(ANSWER), body_timeout=0.5) as server, server.connect() as connection:
        connection.sendall(http_request("/v1/chat/completions", b"{}" * 50)[:-10])
        assert b" 408 " in connection.recv(100)


def test_a_client_that_leaves_within_its_body_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    with running(ScriptedBackend(ANSWER)) as server:
        with server.connect() as connection:
            connection.sendall(http_request("/v1/chat/completions", b"{}" * 50)[:-10])
        while 'status="499"' not in (metrics := httpx.get(f"{server.url}/metrics").text):
            assert 'status="500"' not in metrics
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_full_queue_is_told_with_429_and_when_to_come_again() -> None:
    engine = stalling()
    with (
        running(engine, max_answers=1, max_queue=1) as server,
        server.connect() as first,
        server.connect() as second,
    ):
        body = {"model": "scripted", "messages": [{"role": "user", "content": "x"}]}
        request = http_request("/v1/chat/completions", json.dumps(body).encode())
        first.sendall(request)
        engine.wait(lambda e: e.open > 0)
        second.sendall(request)
        health: dict[str, Any] = {}
        while health.get("queued") != 1:
            health = httpx.get(f"{server.url}/health").json()
        assert health["in_flight"] == 1
        reply = ask(server)
        assert (reply.status_code, reply.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(reply.headers["retry-after"]) >= 1
        check = httpx.post(f"{server.url}/v1/plans/check", json={"schema": {"properties": {"a": {}}}})
        assert check.status_code == 429
        second.close()  # leaves the queue
        while httpx.get(f"{server.url}/health").json()["queued"]:
            pass
        waited = ask(server, pasta={"limits": {"timeout": 0.1}})
        assert waited.status_code == 504  # its place in the queue became free


def test_the_time_limit_of_the_server_and_the_text_so_far() -> None:
    with running(stalling(), Limits(timeout=1.0)) as server:
        reply = ask(server)
        assert reply.status_code == 504
        assert reply.headers["x-should-retry"] == "false"
        assert reply.json()["error"]["partial"] == "Both."


async def test_an_error_in_the_middle_of_a_stream() -> None:
    backend = ScriptedBackend(ANSWER, faults=[Fault(1, 1, "fail", times=9)])
    with running(backend) as server:
        async with official(server.url) as client:
            creation = client.chat.completions.create(
                model="scripted", messages=[{"role": "user", "content": "x"}], stream=True
            )
            with pytest.raises(openai.APIError) as caught:
                await read(creation)
    assert "thread 1" in str(caught.value)
    body: Any = caught.value.body
    assert body["partial"].startswith("Both.")


def test_a_seed_that_the_engine_cannot_honour_is_refused() -> None:
    with running(ScriptedBackend(ANSWER, honours_seeds=False)) as server:
        assert ask(server, seed=1).json()["error"]["param"] == "seed"
        assert ask(server, seed=1, temperature=0).status_code == 200  # nothing is drawn


@pytest.mark.parametrize("log_text", [False, True])
def test_no_text_in_logs_unless_asked_for(caplog: pytest.LogCaptureFixture, log_text: bool) -> None:
    caplog.set_level(logging.INFO)
    error = ValueError(f"about {SECRET}")
    with running(ScriptedBackend(ANSWER, faults=[Fault(0, 1, error=error)]), log_text=log_text) as server:
        failed = ask(server)
        ask(server, messages=[{"role": "user", "content": SECRET}])
    assert failed.status_code == 500
    assert SECRET not in failed.text
    assert (SECRET in caplog.text) == log_text
    assert "ValueError" in caplog.text
