"""Observers of one's own."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest
from samples import DOCUMENT

from pasta_async import Client, DecodeRequest, Generation
from pasta_async.observers import AnswerObserver, AnswerStart
from pasta_async.testing import ScriptedBackend


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

    def turn(self, *arguments: object, **named: object) -> None:
        raise RuntimeError("broken")

    request = ended = turn  # pyright: ignore[reportAssignmentType]


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
