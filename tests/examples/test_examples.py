"""The examples, and the README's code, run with a tiny model; the first snippet is a real answer."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from examples.fastapi_app import Review, app
from tests.helpers.live_server import PROMPT, running, serving
from tests.helpers.project_files import ROOT
from tests.helpers.trained_models import require_model
from tests.pasta_tiny import LOCAL_TINY

pytestmark = pytest.mark.timeout(400)  # the first to run the int8 kernels compiles them

PROGRAMS = ["invoice", "report"]
SERVED = ["agent_frameworks", "fastapi_app"]
SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def run(code: list[str], cwd: Path, backend: str = LOCAL_TINY) -> str:
    """Run a program, warnings being errors, and return its output."""
    names = {key for key in os.environ if not key.startswith("PASTA_") or key == "PASTA_ASYNC_CACHE"}
    environment = {key: os.environ[key] for key in names}
    environment |= {"PYTHONPATH": str(ROOT), "PASTA_BACKEND": backend, "PYTHONFAULTHANDLER": "1"}
    # sentencepiece, which gguf imports, warns as it ends; as an error that makes Python crash then
    command = [sys.executable, "-W", "error", "-W", "ignore:builtin type:DeprecationWarning", *code]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_every_example_is_run() -> None:
    programs = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert programs == {*PROGRAMS, *SERVED, "test_with_scripted"}  # which pytest runs by itself


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_runs(name: str, tmp_path: Path) -> None:
    assert run([str(ROOT / "examples" / f"{name}.py")], tmp_path).strip()


def test_agent_frameworks_ask_the_server(tmp_path: Path) -> None:
    with running(LOCAL_TINY, model_names=("pasta-smol",)) as server:
        lines = run([str(ROOT / "examples" / "agent_frameworks.py"), server.url], tmp_path).splitlines()
    answers = {line.partition(": ")[2] for line in lines if line.startswith(("pydantic-ai", "LiteLLM"))}
    assert len(answers) == 1
    assert all(answers)
    objects = [json.loads(line.partition(": ")[2]) for line in lines if line.startswith("object_with_")]
    assert [[*value] for value in objects] == [["origin", "taste", "better"]] * 3


def test_a_web_backend_answers_with_events_and_over_a_websocket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASTA_BACKEND", LOCAL_TINY)
    with serving(app) as url:
        events = events_of(httpx.post(f"{url}/ask", params={"prompt": PROMPT}, timeout=60))
        with connect(f"{url.replace('http', 'ws')}/talk") as connection:
            connection.send(PROMPT)
            talked = [json.loads(connection.recv())]
            while talked[-1]["type"] != "answer.done":
                talked.append(json.loads(connection.recv()))
            connection.send("")
            assert json.loads(connection.recv())["type"] == "error"
        refused = httpx.post(f"{url}/ask", params={"prompt": ""}, timeout=60)
        assert refused.status_code == 400 or "event: error" in refused.text
    assert text_of(events) == text_of(talked) == events[-1]["generation"]["text"] != ""


def test_a_web_backend_fills_a_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASTA_BACKEND", LOCAL_TINY)
    with serving(app) as url:
        filled = httpx.post(f"{url}/review", params={"text": "Clean."}, timeout=60).json()
        events = events_of(httpx.post(f"{url}/review/stream", params={"text": "Clean."}, timeout=60))
    value = {event["path"]: event["value"] for event in events if event["type"] == "field.done"}
    # The second field begins when the first one has computed what both see, maybe after its first delta.
    before = events[: [event["type"] for event in events].index("field.done")]
    begun = {event["path"] for event in before if event["type"] == "field.started"}
    assert begun == {"strengths", "weaknesses"}
    assert events[-1]["type"] == "fill.done"
    assert value == events[-1]["filled"]["value"] == filled["value"]
    assert Review.model_validate(value).model_dump() == value


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "text.delta")


@pytest.mark.parametrize("code", SNIPPETS[1:], ids=range(1, len(SNIPPETS)))
def test_readme_snippet_runs(code: str, tmp_path: Path) -> None:
    (tmp_path / "snippet.py").write_text(code)
    if "async def test_" in code:
        options = ["-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"]
        run(["-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "snippet.py"], tmp_path)
    else:
        assert run(["snippet.py"], tmp_path).strip()


def test_the_first_snippet_is_about_its_prompt(tmp_path: Path) -> None:
    require_model("pasta-smol")
    printed = run(["-c", SNIPPETS[0]], tmp_path, backend="local:pasta-smol").lower()
    assert "sleep" in printed
    assert int(printed.split(" one after another")[0].split()[-1]) > 20
