"""Log records, the lines that the server makes of them, and observers of one's own."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from pasta_async import Client, DecodeRequest, Generation, InvalidRequestError, ThreadFailedError
from pasta_async.observers import AnswerObserver, AnswerStart
from pasta_async.server import ServerSettings, create_app, uvicorn_server
from pasta_async.telemetry.logs import Logs
from pasta_async.testing import Fault, ScriptedBackend
from tests.helpers.metric_samples import DOCUMENT


class Lines:
    """The records of answers that were logged."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG, "pasta_async.answers")
        self._caplog = caplog

    @property
    def records(self) -> list[dict[str, Any]]:
        answers = [record for record in self._caplog.records if record.name == "pasta_async.answers"]
        return [{**vars(record), "text": record.getMessage()} for record in answers]

    def with_text(self, text: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record["text"] == text]


async def test_an_answer_in_figures_and_text_only_if_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    lines = Lines(caplog)
    client = Client(ScriptedBackend(DOCUMENT), observers=[Logs()])
    generation = await client.generate("a secret")
    [ended] = lines.with_text("answer ended")
    assert ended["levelno"] == logging.INFO
    assert (ended["finish_reason"], ended["threads"]) == ("stop", 3)
    assert ended["completion_tokens"] == generation.usage.completion_tokens
    assert {record["answer_id"] for record in lines.records} == {ended["answer_id"]}
    assert {record["thread_id"] for record in lines.with_text("thread decoding")} == {0, 1, 2}
    everything = repr(lines.records)
    assert "secret" not in everything and "chunks" not in everything and "'one'" not in everything
    await Client(ScriptedBackend(DOCUMENT), observers=[Logs(text=True)]).generate("a secret")
    assert lines.with_text("answer begins")[-1]["prompt"] == "a secret"


async def test_failures_are_warnings_and_refusals_are_none(caplog: pytest.LogCaptureFixture) -> None:
    lines = Lines(caplog)
    backend = ScriptedBackend(DOCUMENT, faults=[Fault(thread=2, after_tokens=1)])
    client = Client(backend, observers=[Logs()])
    with pytest.raises(ThreadFailedError):
        await client.generate("x")
    with pytest.raises(InvalidRequestError):
        await client.generate("")
    warnings = [record for record in lines.records if record["levelno"] == logging.WARNING]
    assert [record["text"] for record in warnings] == ["request failed", "answer failed"]
    assert [record["error_type"] for record in warnings] == ["BackendError"] * 2
    assert warnings[0]["thread_id"] == 2
    [refused] = lines.with_text("answer refused")
    assert (refused["levelno"], refused["error_type"]) == (logging.INFO, "InvalidRequestError")


@pytest.mark.usefixtures("loggers")
@pytest.mark.parametrize("form", ["json", "text"])
async def test_lines_of_the_server(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    backend = ScriptedBackend(DOCUMENT)
    settings = ServerSettings.model_validate({"log_format": form, "log_level": "info"})
    uvicorn_server(create_app(backend), settings)  # which configures the logs
    await Client(backend, observers=[Logs()]).generate("x")
    [line] = capsys.readouterr().err.splitlines()
    if form == "text":
        assert "answer ended answer_id=" in line and "threads=3" in line
        return
    fields = json.loads(line)
    assert (fields["level"], fields["message"], fields["threads"]) == ("INFO", "answer ended", 3)
    assert fields["answer_id"] and fields["time"]


@pytest.mark.usefixtures("loggers")
async def test_a_line_break_in_a_prompt_begins_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    """It could look like another record."""
    backend = ScriptedBackend(DOCUMENT)
    settings = ServerSettings(log_text=True, log_level="debug")
    uvicorn_server(create_app(backend), settings)  # which configures the logs
    await Client(backend, observers=[Logs(text=True)]).generate("first\nsecond")
    shown = capsys.readouterr().err
    assert r"prompt='first\nsecond'" in shown and "\nsecond" not in shown


# Observers of one's own -----------------------------------------------------------------------------------


class Heading(AnswerObserver):
    """Sends a header along, and keeps the answer that ended."""

    generation: Generation | None = None

    def answer(self, start: AnswerStart) -> AnswerObserver:
        assert start.model is not None and start.prompt == "x"
        return self

    def request(self, request: DecodeRequest) -> Mapping[str, str] | None:
        return {"x-thread": str(request.thread)}

    def ended(self, generation: Generation | None, error: BaseException | None) -> None:
        self.generation = generation


class Broken(AnswerObserver):
    """Fails at everything."""

    def answer(self, start: AnswerStart) -> AnswerObserver:
        return self

    def thread_state(self, *arguments: object, **named: object) -> None:
        raise RuntimeError("broken")

    request = ended = thread_state  # pyright: ignore[reportAssignmentType]


async def test_headers_reach_the_backend_and_the_answer_its_observer() -> None:
    backend, heading = ScriptedBackend(DOCUMENT), Heading()
    generation = await Client(backend, observers=[heading]).generate("x")
    assert heading.generation is generation
    for request in backend.requests:
        assert request.headers == {"x-thread": str(request.thread)}


async def test_a_broken_observer_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    heading = Heading()
    client = Client(ScriptedBackend(DOCUMENT), observers=[Broken(), heading])
    with caplog.at_level(logging.ERROR, "pasta_async.observers"):
        generation = await client.generate("x")
    assert generation.text == (await Client(ScriptedBackend(DOCUMENT)).generate("x")).text
    assert heading.generation is generation
    assert "Broken failed" in caplog.text
