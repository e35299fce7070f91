"""Answers spread over several scripted backends, some of which die."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from killable import answers_at, several

from pasta_async import Client, DecodeRequest, Limits, ModelInfo, TextDelta, ThreadFailed
from pasta_async.backends import backend_names, open_backend
from pasta_async.backends.placement import BLOCK, Prefixes
from pasta_async.backends.routed import RoutedBackend
from pasta_async.errors import (
    BackendConnectError,
    BackendLostError,
    BackendProtocolError,
    BackendStatusError,
    InvalidRequestError,
    PastaError,
    ThreadFailedError,
    UnsupportedModelError,
)
from pasta_async.load import EngineLoad
from pasta_async.protocol import Message
from pasta_async.testing import ScriptedBackend, VirtualClock, WordTokenizer

DOCUMENT = (
    'First this. <promise topic="causes" tokens="20"/><async>The causes are many and old.</async> '
    '<promise topic="outcome" tokens="20"/><async>The outcome is a new order.</async><sync/> And so on.'
)
TEXT = "First this. The causes are many and old. The outcome is a new order. And so on."
LONG = "word " * 200


async def after(clock: VirtualClock, seconds: float) -> None:
    await clock.sleep(seconds)


async def test_all_threads_of_an_answer_are_decoded_in_one_place() -> None:
    routed, members, clock = several(DOCUMENT, 3)
    async with Client(routed, clock=clock) as client:
        made = await asyncio.gather(*(client.generate(f"Question {k}?") for k in range(12)))
    assert {answer.text for answer in made} == {TEXT}
    assert [len(answers_at(member)) for member in members] == [4, 4, 4]
    assert [len(member.requests) for member in members] == [16, 16, 16]


async def test_the_next_turn_of_a_conversation_meets_its_history() -> None:
    routed, members, clock = several("An answer.", 3)
    async with Client(routed, clock=clock) as client:
        chats = [[{"role": "user", "content": f"{k} {LONG}"}] for k in range(6)]
        first = await asyncio.gather(*(client.generate(chat) for chat in chats))
        for chat, answer in zip(chats, first, strict=True):
            chat += [{"role": "assistant", "content": answer.text}, {"role": "user", "content": "More."}]
        second = await asyncio.gather(*(client.generate(chat) for chat in chats))
    assert [len(answers_at(member)) for member in members] == [4, 4, 4]
    for answer in second:
        assert answer.usage.cached_tokens >= 200


async def test_a_popular_prompt_overflows_to_others() -> None:
    routed, members, clock = several("An answer.", 2)
    async with Client(routed, clock=clock, limits=Limits(client_threads=200)) as client:
        await client.generate(LONG)
        [home] = [member for member in members if member.requests]
        await asyncio.gather(*(client.generate(LONG) for _ in range(100)))
    assert home.max_open > 40
    assert min(member.max_open for member in members) > 20


async def test_processes_that_do_not_talk_choose_alike() -> None:
    homes: set[str] = set()
    for _ in range(3):
        routed, members, clock = several("An answer.", 4)
        async with Client(routed, clock=clock) as client:
            await client.generate(LONG)
        homes |= {member.address for member in members if member.requests}
    assert len(homes) == 1


async def test_an_answer_that_is_not_watched_starts_again_elsewhere() -> None:
    routed, members, clock = several(DOCUMENT, 2)
    async with Client(routed, clock=clock) as client:
        asked = asyncio.create_task(client.generate("Question?"))
        await after(clock, 1.05)
        [home] = [member for member in members if member.open]
        home.alive = False
        answer = await asked
        [other] = [member for member in members if member is not home]
        assert answer.text == TEXT
        assert "started again elsewhere" in answer.notes[0]
        assert home.address in answer.notes[0]
        assert other.requests[0].ids == home.requests[0].ids
        assert len(other.requests) == 4
        assert not home.open
    await routed.aclose()


async def test_an_answer_that_was_shown_ends_with_its_text_so_far() -> None:
    routed, members, clock = several(DOCUMENT, 2)
    async with Client(routed, clock=clock) as client, client.stream("Question?") as stream:
        shown = ""
        with pytest.raises(ThreadFailedError, match=r"m[01]") as caught:
            async for event in stream:
                if isinstance(event, TextDelta):
                    shown += event.delta
                    for member in members:
                        member.alive = not member.open
    assert shown
    assert isinstance(caught.value.__cause__, BackendLostError)
    assert caught.value.partial is not None
    assert caught.value.partial.text == shown
    assert caught.value.partial.finish_reason == "error"
    assert sum(bool(member.requests) for member in members) == 1
    assert not any(member.open for member in members)
    await routed.aclose()


async def test_a_watched_answer_without_text_starts_again_unnoticed_but_for_an_event() -> None:
    """The first tokens are half a tag, which nobody sees."""
    routed, members, clock = several(DOCUMENT.partition(". ")[2], 2)
    async with Client(routed, clock=clock) as client, client.stream("Question?") as stream:
        await after(clock, 0.15)
        [home] = [member for member in members if member.open]
        home.alive = False
        events = [event async for event in stream]
        answer = await stream.result()
    assert answer.text == TEXT.partition(". ")[2].lstrip()
    assert "".join(event.delta for event in events if isinstance(event, TextDelta)) == answer.text
    kinds = [event.type for event in events]
    assert kinds[:2] == ["thread.started", "thread.failed"]
    assert [event.action for event in events if isinstance(event, ThreadFailed)] == ["restart"]
    assert kinds.count("thread.started") == 4
    assert kinds.count("thread.done") == 3
    assert kinds[-1] == "answer.done"
    await routed.aclose()


async def test_an_answer_starts_again_no_oftener_than_retries_say() -> None:
    """A prompt that kills its server must not kill them all."""
    routed, members, clock = several(DOCUMENT, 4)

    async def kill_what_decodes() -> None:
        while True:
            await clock.sleep(0.75)
            for member in members:
                member.alive = member.alive and not member.open

    async with Client(routed, clock=clock, limits=Limits(retries=2)) as client:
        killer = asyncio.create_task(kill_what_decodes())
        with pytest.raises(ThreadFailedError) as caught:
            await client.generate("Question?")
        killer.cancel()
        await asyncio.wait([killer])
    assert sum(member.alive for member in members) == 1
    assert caught.value.partial is not None
    assert sum("started again elsewhere" in note for note in caught.value.partial.notes) == 2
    await routed.aclose()


async def test_with_sequence_an_answer_goes_on_elsewhere() -> None:
    """What was decoded is sent along, so the other server takes it up where the first left it."""
    routed, members, clock = several(DOCUMENT, 2)
    limits = Limits(on_failure="sequence", retries=0)
    async with Client(routed, clock=clock, limits=limits) as client, client.stream("Question?") as stream:
        async for _ in stream.text_deltas():
            break
        [home] = [member for member in members if member.open]
        home.alive = False
        await stream.result()
    [other] = [member for member in members if member.alive]
    begun, taken_up = home.requests[0].ids, other.requests[0].ids
    assert len(taken_up) > len(begun)
    assert taken_up[: len(begun)] == begun
    await routed.aclose()


async def test_a_member_that_is_gone_is_passed_over_until_it_is_back() -> None:
    routed, members, clock = several("An answer.", 2)
    async with Client(routed, clock=clock) as client:
        await client.generate("Question?")
        [home] = [member for member in members if member.requests]
        home.alive = False
        for k in range(8):  # one of them finds it out, none is harmed
            await client.generate(f"Question {k}?")
        states = {state.name: state for state in routed.members}
        assert not states[home.address].live
        assert isinstance(states[home.address].error, BackendConnectError)
        checks = home.checks
        await clock.sleep(200)
        assert 5 <= home.checks - checks <= 12  # ever more seldom, up to 30 s
        home.alive = True
        await clock.sleep(31)
        assert [state.live for state in routed.members] == [True, True]
        before = len(home.requests)
        await asyncio.gather(*(client.generate(f"Question {k}?") for k in range(8)))
        assert len(home.requests) == before + 4
    await routed.aclose()


async def test_a_member_that_comes_back_with_another_model_stays_out() -> None:
    routed, members, clock = several("An answer.", 2)
    await routed.connect()
    members[0].alive = False
    assert await routed.encode("Question?") == await members[1].encode("Question?")
    assert [state.live for state in routed.members] == [False, True]
    members[0].alive = True
    members[0].vocab_size = 7
    await clock.sleep(10)
    [state, _] = routed.members
    assert not state.live
    assert isinstance(state.error, UnsupportedModelError)
    assert "vocab_size" in str(state.error)
    await routed.aclose()


async def test_with_no_member_left_the_error_names_them_all() -> None:
    routed, members, clock = several("An answer.", 2)
    async with Client(routed, clock=clock) as client:
        await client.connect()
        for member in members:
            member.alive = False
        with pytest.raises(BackendConnectError, match=r"m0: (?s:.*)m1: "):
            await client.generate("Question?")
    await routed.aclose()


async def test_a_member_that_is_missing_at_the_start_joins_later() -> None:
    routed, members, clock = several("An answer.", 2)
    members[0].alive = False
    await routed.connect()
    assert [state.live for state in routed.members] == [False, True]
    members[0].alive = True
    await clock.sleep(2)
    assert [state.live for state in routed.members] == [True, True]
    await routed.aclose()


async def test_all_missing_at_the_start_is_an_error_and_leaves_no_probe() -> None:
    routed, members, _ = several("An answer.", 2)
    for member in members:
        member.alive = False
    with pytest.raises(BackendConnectError):
        await routed.connect()
    for member in members:
        member.alive = True
    await routed.connect()
    await routed.aclose()


@pytest.mark.parametrize("other", [{"name": "another"}, {"context_length": 4096}])
async def test_what_they_serve_is_compared(other: dict[str, object]) -> None:
    pair = {"a": ScriptedBackend("An answer."), "b": ScriptedBackend("An answer.", **other)}  # pyright: ignore[reportArgumentType]
    routed = RoutedBackend(pair)
    if "name" in other:
        with pytest.raises(UnsupportedModelError, match="name"):
            await routed.connect()
    else:
        assert (await routed.connect()).context_length == 4096
    await routed.aclose()


class Locked(ScriptedBackend):
    async def connect(self) -> ModelInfo:
        raise BackendStatusError("http://b answered 401 (pass api_key=)", status=401)


async def test_a_member_that_refuses_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    routed = RoutedBackend({"a": ScriptedBackend("An answer."), "b": Locked("An answer.")})
    async with Client(routed) as client:
        assert (await client.generate("Question?")).text == "An answer."
        assert [member.live for member in routed.members] == [True, False]
    await routed.aclose()
    assert any("401" in record.getMessage() for record in caplog.records)


async def test_members_that_all_refuse_are_told_of_and_not_asked_again() -> None:
    routed = RoutedBackend({"a": Locked("An answer."), "b": Locked("An answer.")})
    with pytest.raises(BackendConnectError) as caught:
        await routed.connect()
    assert str(caught.value).count("401") == 2 and not caught.value.retryable
    await routed.aclose()


OF_THE_REQUEST = [
    BackendStatusError("out of memory", status=500),
    BackendStatusError("the queue is full", status=503),
    BackendStatusError("too many requests", status=429),
    BackendProtocolError("malformed"),
    InvalidRequestError("it cannot be encoded"),
]


@pytest.mark.parametrize("error", OF_THE_REQUEST, ids=str)
async def test_one_bad_prompt_takes_no_member_out(error: PastaError) -> None:
    class Moody(ScriptedBackend):
        async def encode_chat(self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]):
            if messages[0]["content"] == LONG and isinstance(error, InvalidRequestError):
                raise error
            return await super().encode_chat(messages, template_kwargs)

        async def decode(self, request: DecodeRequest):  # type: ignore[override]
            if len(request.ids) > 20:
                raise error
            async for piece in super().decode(request):
                yield piece

    clock, tokenizer = VirtualClock(), WordTokenizer()
    members = {name: Moody("An answer.", tokenizer=tokenizer) for name in "abc"}
    routed = RoutedBackend(members, clock=clock)
    async with Client(routed, clock=clock) as client:
        with pytest.raises(PastaError) as caught:
            await client.generate(LONG)
        assert error in (caught.value, caught.value.__cause__)
        assert [state.live for state in routed.members] == [True, True, True]
        assert (await client.generate("Hi")).text == "An answer."
    await routed.aclose()


@pytest.mark.parametrize("status", [502, 504])
async def test_a_proxy_that_cannot_reach_a_member_takes_it_out(status: int) -> None:
    class Proxied(ScriptedBackend):
        async def decode(self, request: DecodeRequest):  # type: ignore[override]
            raise BackendStatusError("no route", status=status)
            yield

    clock, tokenizer = VirtualClock(), WordTokenizer()
    good = ScriptedBackend("An answer.", tokenizer=tokenizer)
    routed = RoutedBackend({"bad": Proxied("", tokenizer=tokenizer), "good": good}, clock=clock)
    async with Client(routed, clock=clock) as client:
        made = await asyncio.gather(*(client.generate(f"Question {k}?") for k in range(8)))
    assert {answer.text for answer in made} == {"An answer."}
    assert [state.live for state in routed.members] == [False, True]
    await routed.aclose()


async def test_a_member_that_sends_garbage_to_everybody_is_taken_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(ScriptedBackend):
        async def decode(self, request: DecodeRequest):  # type: ignore[override]
            raise BackendProtocolError("malformed: what a model wrote")
            yield

    clock, tokenizer = VirtualClock(), WordTokenizer()
    good = ScriptedBackend("An answer.", tokenizer=tokenizer)
    routed = RoutedBackend({"bad": Broken("", tokenizer=tokenizer), "good": good}, clock=clock)
    async with Client(routed, clock=clock) as client:
        made = await asyncio.gather(
            *(client.generate(f"Question {k}?") for k in range(8)), return_exceptions=True
        )
        assert [state.live for state in routed.members] == [False, True]
        assert sum(isinstance(answer, ThreadFailedError) for answer in made) <= 2
    assert "BackendProtocolError" in caplog.text and "what a model wrote" not in caplog.text
    await routed.aclose()


async def test_a_silent_member_does_not_hold_up_the_start() -> None:
    routed, members, clock = several("An answer.", 3)
    released = asyncio.Event()

    async def wait() -> None:
        await released.wait()

    members[1].before_check = wait
    await routed.connect()
    assert clock.time() <= 10
    assert [state.live for state in routed.members] == [True, False, True]
    released.set()
    await clock.sleep(3)
    assert [state.live for state in routed.members] == [True, True, True]
    await routed.aclose()


async def test_with_all_members_silent_the_first_that_answers_is_waited_for() -> None:
    routed, members, clock = several("An answer.", 2)
    for member, seconds in zip(members, (50, 100), strict=True):
        member.before_check = partial(clock.sleep, seconds)
    await routed.connect()
    assert clock.time() == 50
    assert [state.live for state in routed.members] == [True, False]
    await routed.aclose()


async def test_an_unexpected_exception_ends_no_probe(caplog: pytest.LogCaptureFixture) -> None:
    routed, members, clock = several("An answer.", 2)
    await routed.connect()

    async def fail() -> None:
        raise RuntimeError("what nobody thought of")

    members[0].alive, members[0].before_check = False, fail
    await routed.encode("Question?")
    await clock.sleep(10)
    assert [state.live for state in routed.members] == [False, True]
    assert [record.exc_info for record in caplog.records if record.exc_info]
    members[0].alive, members[0].before_check = True, None
    await clock.sleep(31)
    assert [state.live for state in routed.members] == [True, True]
    await routed.aclose()


async def test_an_unexpected_exception_at_the_start_keeps_only_its_member_out() -> None:
    routed, members, clock = several("An answer.", 2)

    async def fail() -> None:
        raise RuntimeError("what nobody thought of")

    members[0].before_check = fail
    await routed.connect()
    assert [state.live for state in routed.members] == [False, True]
    members[0].before_check = None
    await clock.sleep(2)
    assert [state.live for state in routed.members] == [True, True]
    await routed.aclose()


def test_no_backend_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        RoutedBackend({})


async def test_leaving_early_aborts_on_the_member() -> None:
    routed, members, clock = several(DOCUMENT, 2)
    async with Client(routed, clock=clock) as client, client.stream("Question?") as stream:
        async for event in stream:
            if isinstance(event, TextDelta):
                break
    [home] = [member for member in members if member.requests]
    assert home.aborted
    assert not home.open
    assert all(state.live and not state.open_requests for state in routed.members)


def test_several_names_make_one_backend_and_a_name_given_twice_is_refused() -> None:
    made = open_backend(["http://a:1", "http://b:1/"])
    assert isinstance(made, RoutedBackend)
    assert [member.name for member in made.members] == ["http://a:1", "http://b:1"]
    assert not isinstance(open_backend(["http://a:1"]), RoutedBackend)
    with pytest.raises(InvalidRequestError, match="http://a:1"):
        open_backend(["http://a:1", "http://a:1/"])


def test_the_environment_names_several_with_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASTA_BACKEND", "http://a:1, http://b:1")
    backend = Client().backend
    assert isinstance(backend, RoutedBackend)
    assert [member.name for member in backend.members] == ["http://a:1", "http://b:1"]
    assert backend_names("local:/a,b") == ["local:/a,b"]


def test_what_was_not_used_for_longest_is_forgotten_from_its_end() -> None:
    known = Prefixes(capacity=3)
    first, second = [1] * 2 * BLOCK, [2] * 2 * BLOCK
    known.note(first, "a")
    known.note(second, "b")
    assert known.known(first) == {"a": 1}
    assert known.known([*second, 9]) == {"b": 2}
    assert known.known([*second[:-1], 9]) == {"b": 1}
    known.forget("b")
    assert known.known(second) == {}


async def test_the_load_is_that_of_the_member_that_has_the_answer() -> None:
    class Reporting(ScriptedBackend):
        async def load(self, answer: str) -> EngineLoad | None:
            return EngineLoad(capacity=64, running=len(self.open))

    clock, words = VirtualClock(), WordTokenizer()
    members = {name: Reporting(DOCUMENT, tokenizer=words, clock=clock, latency=1.0) for name in ("a", "b")}
    routed = RoutedBackend(members, clock=clock)
    async with Client(routed, clock=clock) as client:
        task = asyncio.create_task(client.generate("Why?"))
        while not any(member.open for member in members.values()):
            await clock.sleep(0.5)
        [home] = [name for name, member in members.items() if member.open]
        [answer] = {play.request.answer for play in members[home].open}
        assert await routed.load(answer) == EngineLoad(64, len(members[home].open), engine=home)
        assert await routed.load("new") == EngineLoad(64, 0, engine="b" if home == "a" else "a")
        await task
    await routed.aclose()
