"""Things that clients, frameworks and compose files really send: taken, or refused in OpenAI's form."""

from __future__ import annotations

import json
import logging
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from pasta_async import Limits, RealClock
from pasta_async.options import Settings
from pasta_async.server import ServerSettings, create_app, uvicorn_server
from pasta_async.testing import Fault, ScriptedBackend
from tests.helpers.live_server import (
    CHAT,
    COMPLETIONS,
    LiveServer,
    WatchedBackend,
    ask,
    http_request,
    running,
)
from tests.helpers.metric_samples import Samples

USER = {"role": "user", "content": "Why?"}
REPLAYED: dict[str, Any] = {
    **{"role": "assistant", "content": "Fine.", "refusal": None, "annotations": [], "audio": None},
    **{"tool_calls": None, "function_call": None, "provider_specific_fields": {"a": [1]}, "id": "msg-1"},
}
"""An assistant's message as clients keep it."""


@pytest.fixture(scope="module")
def server() -> Any:
    with running(ScriptedBackend("Fine."), model_names=("m",)) as live:
        yield live


def test_an_outline_is_asked_for_like_any_width() -> None:
    text = "1. **Tea**: mild.\n\n2. **Coffee**: strong."
    backend = ScriptedBackend(text, trained=False, clock=RealClock())
    with running(backend, model_names=("m",)) as live:
        plain, outlined = ask(live), ask(live, pasta={"parallel": "outline"})
    modes = [reply.headers["x-pasta-mode"] for reply in (plain, outlined)]
    assert modes == ["baseline", "parallel"]
    assert [reply.json()["choices"][0]["message"]["content"] for reply in (plain, outlined)] == [text, text]
    assert outlined.json()["pasta"]["choices"][0]["threads"] == 3


TAKEN: list[dict[str, Any]] = [
    {"messages": [USER, REPLAYED, {**USER, "vendor": 1, "name": None}]},
    {"messages": [USER, {"role": "assistant", "content": None, "refusal": "No."}, USER]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "Why?", "cache_control": {}}]}]},
    {"guided_json": None, "truncate_prompt_tokens": None, "temperature": None, "n": None, "pasta": None},
    {"pasta": {"parallel": None, "baseline": None, "limits": {"timeout": None}, "record": None}},
    {"max_tokens": 5, "max_completion_tokens": 5},
    {
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "logprobs": False,
        "top_logprobs": 0,
    },
    {
        "response_format": {"type": "text"},
        "logit_bias": {},
        "frequency_penalty": 0,
        "audio": None,
        "verbosity": "low",
    },
    {
        "user": "me",
        "metadata": {"a": "b"},
        "service_tier": "auto",
        "store": False,
        "modalities": ["text"],
    },
    {"messages": [{"role": "developer", "content": "Be kind."}, USER]},
    {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"top_p": 0, "top_k": -1, "seed": -5, "temperature": 2},
    {"stop": None},
    {"stop": []},
]


@pytest.mark.parametrize("fields", TAKEN, ids="-".join)
def test_what_is_taken(server: LiveServer, fields: dict[str, Any]) -> None:
    reply = ask(server, **fields)
    assert reply.status_code == 200, reply.text
    assert reply.headers["x-pasta-mode"] == "parallel"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"messages": [{"role": "poet", "content": "x"}]}, "messages.0.role"),
        (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        (CHAT, {"temperature": 11}, "temperature"),
        (CHAT, {"n": 0}, "n"),
        (CHAT, {"top_k": 0}, "top_k"),
        (CHAT, {"repetition_penalty": 1e-40}, "repetition_penalty"),
        (CHAT, {"stop": ""}, "stop"),
        (CHAT, {"foo": 1}, "foo"),
        (CHAT, {"functions": [{"name": "f"}]}, "functions"),
        (CHAT, {"top_p": False}, "top_p"),
        (CHAT, {"pasta": {"paralel": True}}, "pasta.paralel"),
        (CHAT, {"pasta": {"limits": {"max_threads": 999}}}, "pasta.limits.max_threads"),
        (CHAT, {"pasta": {"limits": {"max_threads": 10**400}}}, "pasta.limits.max_threads"),
        (CHAT, {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        (CHAT, {"response_format": {"type": "json_object"}}, "response_format"),
        (CHAT, {"logprobs": True}, "logprobs"),
        (CHAT, {"temperature": "0.5"}, "temperature"),
        (CHAT, {"seed": 1.5}, "seed"),
        (COMPLETIONS, {"prompt": ["1", 2]}, "prompt"),
        (CHAT, {"pasta": {"record": "yes"}}, "pasta.record"),
        (CHAT, {"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        (CHAT, {"guided_json": {}}, "guided_json"),
        (CHAT, {"messages": [{"role": "user", "content": [{"text": "no type"}]}]}, "messages.0.content"),
        (CHAT, {"stop": ["a", 5]}, "stop"),
        (CHAT, {"stop": [str(n) for n in range(2000)]}, "stop"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_refused_with_its_name(
    server: LiveServer, path: str, fields: dict[str, Any], param: str
) -> None:
    reply = ask(server, path, **fields)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param


def test_a_part_that_the_engine_does_not_support_is_named(server: LiveServer) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    content = [{"type": "text", "text": "Look:"}, image]
    error = ask(server, messages=[USER, {"role": "user", "content": content}]).json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", "messages.1.content.1")


def test_empty_variables_of_the_environment_are_as_if_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ServerSettings.model_fields:
        monkeypatch.setenv(f"PASTA_SERVER_{name.upper()}", "")
    for name in Settings.model_fields:
        monkeypatch.setenv(f"PASTA_{name.upper()}", "")
    assert ServerSettings() == ServerSettings(host="127.0.0.1")
    assert (Settings().backend, Settings().api_key) == ("local:", None)


# Errors -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("loggers")
def test_errors_have_openais_form_everywhere() -> None:
    settings = ServerSettings()
    app = create_app(ScriptedBackend("Fine."), settings)
    uvicorn_server(app, settings)
    with TestClient(app, base_url="http://localhost") as client:
        wrong_method = client.get(CHAT)
        assert (wrong_method.status_code, wrong_method.headers["allow"]) == (405, "POST")
        replies = {
            "method_not_allowed": wrong_method,
            "unknown_url": client.get("/v1/engines"),
            "invalid_value": client.post(CHAT, content="{", headers={"Content-Type": "application/json"}),
        }
        for code, reply in replies.items():
            error = reply.json()["error"]
            assert (error["code"], error["param"], error["type"][-6:]) == (code, None, "_error"), code
        assert client.post(CHAT, json=[]).json()["error"]["param"] is None


def test_a_prompt_that_is_refused_is_no_failed_answer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    limits = Limits(prompt_tokens=20)
    with running(ScriptedBackend("Fine."), limits, model_names=("m",)) as server:
        assert ask(server, messages=[{"role": "user", "content": "word " * 50}]).status_code == 400
        assert ask(server, messages=[{"role": "user", "content": " "}]).status_code == 400
        assert ask(server).status_code == 200
        samples = Samples(httpx.get(f"{server.url}/metrics").text)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert samples.value("pasta_answers_total", finish_reason="stop", model_name="scripted") == 1
    assert samples.value("pasta_answer_errors_total") == 0
    assert samples.value("pasta_answers_total", finish_reason="error") == 0


# Time and lives ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_an_answers_own_time_covers_the_queue(stream: bool) -> None:
    stalling = ScriptedBackend("One two three.", faults=[Fault(0, 2, "stall", times=9)])
    engine = WatchedBackend(stalling)
    with running(engine, model_names=("m",), max_answers=1) as server:
        with server.connect() as first:
            first.sendall(http_request(CHAT, json.dumps({"model": "m", "messages": [USER]}).encode()))
            engine.wait(lambda e: e.open == 1)
            reply = ask(server, stream=stream, pasta={"limits": {"timeout": 0.05}})
    assert (reply.status_code, reply.json()["error"]["code"]) == (504, "timeout")


def test_thinking_stands_beside_an_answer_and_in_the_text_of_a_completion() -> None:
    with running(ScriptedBackend("<think>Tea first.</think>Both are fine."), model_names=("m",)) as server:
        message = ask(server).json()["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("Tea first.", "Both are fine.")
        deltas = [choice["delta"] for choice in streamed(ask(server, stream=True))]
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Tea first."
        assert "".join(delta.get("content", "") for delta in deltas) == "Both are fine."
        whole = ask(server, COMPLETIONS, max_tokens=99).json()["choices"][0]["text"]
        parts = [choice["text"] for choice in streamed(ask(server, COMPLETIONS, max_tokens=99, stream=True))]
    assert whole == "".join(parts) == "Tea first.Both are fine."


def streamed(reply: httpx.Response) -> list[Any]:
    lines = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
    return [choice for line in lines for choice in line["choices"]]
