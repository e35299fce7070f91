"""Names that users import, events, a generation as JSON, copies of errors and results."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import typing
from typing import Literal, TypedDict

import pydantic
import pytest
from openai.types.chat import ChatCompletionMessageParam

import pasta_async
from pasta_async import events
from pasta_async.lang import parse
from pasta_async.testing import Fault, ScriptedBackend

TYPES = {
    "AnswerDone": "answer.done",
    "DiagnosticFound": "diagnostic.found",
    "PromiseOpened": "promise.opened",
    "ReasoningDelta": "reasoning.delta",
    "SyncJoined": "sync.joined",
    "ThreadReplaced": "thread.replaced",
    "SyncWaiting": "sync.waiting",
    "TextDelta": "text.delta",
    "ThreadDelta": "thread.delta",
    "ThreadDone": "thread.done",
    "ThreadFailed": "thread.failed",
    "ThreadStarted": "thread.started",
}


def test_the_events_are_one_union_told_apart_by_type() -> None:
    members = typing.get_args(typing.get_args(events.Event)[0])
    fields = {member.__name__: member.__dataclass_fields__["type"] for member in members}
    assert {name: field.default for name, field in fields.items()} == TYPES
    assert all(field.type == f"Literal[{field.default!r}]" for field in fields.values())
    assert set(TYPES) | {"Event", "ErrorInfo"} == set(events.__all__)
    assert all(name in pasta_async.__all__ for name in TYPES)


async def test_a_generation_is_json_and_comes_back() -> None:
    written = 'One. <promise topic="a" tokens="13"/><async>Two.</async><sync/><sync/> <\\sync/> Three.'
    generation = await pasta_async.generate("Why?", backend=ScriptedBackend(written))
    data = json.loads(generation.model_dump_json())
    assert data["text"] == "One. Two. <sync/> Three."
    assert data["document"] == written
    assert [found["code"] for found in data["diagnostics"]] == ["tokens-not-tens", "sync-idle"]
    assert data["threads"][1]["topic"] == "a"
    assert data["threads"][1]["estimate"] == 20
    assert data["usage"]["completion_tokens"] == generation.usage.completion_tokens
    # All but the sync, which main writes while the chunk's thread writes longer.
    assert data["critical_path"] == data["usage"]["completion_tokens"] - 1
    assert data["text_speedup"] == generation.text_speedup
    assert set(data) >= {"threads", "finish_reason", "elapsed", "notes", "width", "text_tokens"}
    for again in (
        pasta_async.Generation.model_validate_json(generation.model_dump_json()),
        pasta_async.Generation.model_validate(generation.model_dump()),
    ):
        assert (again, again.diagnostics) == (generation, generation.diagnostics)


@pytest.mark.parametrize(("plain", "tokens"), [("", 9), (" And six seven.", 10), ("One.", 3)])
async def test_the_speed_up_never_sells_brevity(plain: str, tokens: int) -> None:
    """Compared with a longer answer, the answer's own text counts; with a shorter one, that."""
    written = 'One. <promise topic="a" tokens="10"/><async>Two three four.</async><sync/> Five.'
    text = parse(written).text
    backend = ScriptedBackend(
        {"tagged": written, "plain": plain if plain == "One." else text + plain}, latency=1
    )
    async with pasta_async.Client(backend, clock=backend.clock) as client:
        generation = await client.generate("tagged")
        baseline = await client.generate("plain", baseline=True)
    assert generation.text_tokens == generation.usage.completion_tokens - 5 - 1 - 1 - 1 == 9  # tags, its end
    assert generation.theoretical_speedup(baseline) == tokens / generation.critical_path
    assert generation.measured_speedup(baseline) == pytest.approx(tokens / generation.elapsed)
    assert generation.text_speedup == generation.text_tokens / generation.critical_path


# Copies ---------------------------------------------------------------------------------------------------


def test_errors_can_be_pickled_and_copied() -> None:
    for error in (
        pasta_async.PromptTooLongError("what happened", limit=5),
        pasta_async.BackendStatusError("what happened", status=503, retry_after=2.0),
        pasta_async.ThreadFailedError("what happened", thread=2),
        pasta_async.ParseError(parse("<sync/>").diagnostics[0]),
    ):
        error.partial = pasta_async.Generation.empty()
        for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
            assert type(again) is type(error)
            assert (str(again), vars(again)) == (str(error), vars(error))


async def test_events_are_immutable_and_come_back_from_json() -> None:
    adapter: pydantic.TypeAdapter[pasta_async.Event] = pydantic.TypeAdapter(pasta_async.Event)
    written = 'One. <promise topic="a" tokens="13"/><async>Two.</async><sync/><sync/> Three.'
    passing = pasta_async.BackendTransportError("it broke off")
    backend = ScriptedBackend(written, faults=[Fault(1, 0, error=passing)])
    async with pasta_async.stream("Why?", backend=backend) as stream:
        seen = [event async for event in stream]
    assert {event.type for event in seen} >= set(TYPES.values()) - {"reasoning.delta", "thread.replaced"}
    for event in seen:
        assert adapter.validate_json(adapter.dump_json(event)) == event
        with pytest.raises(dataclasses.FrozenInstanceError):
            event.type = "other"  # pyright: ignore[reportAttributeAccessIssue]


# Types: type checkers, which read this file too, accept code that works -------------------------------------


class Turn(TypedDict):
    """A message of somebody's own."""

    role: Literal["user", "assistant"]
    content: str


async def test_typed_messages_are_prompts() -> None:
    typed: list[Turn] = [{"role": "user", "content": "Why?"}]
    of_openai: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Why?"}]
    untyped = [{"role": "user", "content": "Why?"}]
    async with pasta_async.Client(ScriptedBackend("Because.")) as client:
        for text in (
            (await client.generate(typed)).text,
            (await client.generate(of_openai)).text,
            (await client.generate(untyped)).text,
            (await client.generate((1, 2, 3))).text,
        ):
            assert text == "Because."
