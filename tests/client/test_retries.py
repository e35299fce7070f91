"""One layer sends again what failed: so often, after such a wait, and only what may pass."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest

from pasta_async import (
    BackendConnectError,
    BackendError,
    BackendProtocolError,
    BackendStatusError,
    BackendTimeoutError,
    Client,
    Generation,
    GenerationTimeoutError,
    Limits,
    Message,
    Model,
    PastaError,
    PromptTooLongError,
    ThreadFailedError,
)
from pasta_async.testing import Fault, ScriptedBackend, VirtualClock

pytestmark = pytest.mark.loop_matrix

BUSY = BackendStatusError("busy", status=429, retry_after=7.0)


class Flaky(ScriptedBackend):
    """Fails at one of its calls, so often, and never answers another."""

    def __init__(self, call: str = "", errors: Sequence[BaseException] = (), *, silent: bool = False) -> None:
        super().__init__("Because.", clock=VirtualClock())
        self._call, self._errors, self._silent = call, list(errors), silent
        self.calls = 0

    async def _try(self, call: str) -> None:
        if call == self._call:
            self.calls += 1
            if self._silent:
                await asyncio.Event().wait()
            if self._errors:
                raise self._errors.pop(0)

    async def connect(self) -> Model:
        await self._try("connect")
        return await super().connect()

    async def encode_chat(self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]) -> list[int]:
        await self._try("encode_chat")
        return await super().encode_chat(messages, template_kwargs)

    async def encode(self, text: str) -> list[int]:
        await self._try("encode")
        return await super().encode(text)

    async def detokenize(self, ids: Sequence[int]) -> str:
        await self._try("detokenize")
        return await super().detokenize(ids)


async def test_a_text_is_encoded_with_retries_and_limits() -> None:
    """`Client.encode` is what a server calls before an answer, so it is bounded as an answer is."""
    flaky = Flaky("encode", [BUSY])
    async with Client(flaky, clock=flaky.clock) as client:
        ids = await client.encode("Why not?")
        assert (await client.generate(ids)).usage.prompt_tokens == len(ids)
        assert flaky.calls == 2
    async with Client(flaky, limits=Limits(prompt_tokens=1)) as client:
        with pytest.raises(PromptTooLongError):
            await client.encode("Why not?")
    silent = Flaky("encode", silent=True)
    async with Client(silent, clock=silent.clock, limits=Limits(timeout=9)) as client:
        with pytest.raises(GenerationTimeoutError):
            await client.encode("Why not?")


async def ask(backend: ScriptedBackend, **limits: Any) -> str:
    async with Client(backend, clock=backend.clock, limits=Limits(**limits)) as client:
        return (await client.generate("Why?")).text


@pytest.mark.parametrize("call", ["connect", "encode_chat", "detokenize"])
async def test_connecting_and_encoding_are_tried_again(call: str) -> None:
    backend = Flaky(call, [BackendConnectError("reset"), BUSY])
    assert await ask(backend) == "Because."
    assert backend.calls == 3
    assert 7.125 <= backend.clock.time() <= 7.25  # half to all of 0.25 s, then what the server said


@pytest.mark.parametrize("call", ["connect", "encode_chat", "detokenize"])
@pytest.mark.parametrize("retries", [0, 1])
async def test_and_no_oftener_than_the_limit_says(call: str, retries: int) -> None:
    backend = Flaky(call, [BUSY] * 9)
    with pytest.raises(BackendStatusError):
        await ask(backend, retries=retries)
    assert backend.calls == retries + 1


@pytest.mark.parametrize("call", ["connect", "encode_chat", "detokenize"])
async def test_each_of_several_answers_has_its_own_limit(call: str) -> None:
    backend = Flaky(call, [BackendConnectError("reset")] * 2)
    async with Client(backend, clock=backend.clock, limits=Limits(retries=9)) as client:
        limits = [Limits(retries=retries) for retries in (0, 1, 2)]
        ended = await asyncio.gather(
            *(client.generate("Why?", limits=limit) for limit in limits), return_exceptions=True
        )
    assert isinstance(ended[0], BackendConnectError)
    assert isinstance(ended[2], Generation)


@pytest.mark.parametrize("error", [BackendTimeoutError("silent"), BackendStatusError("no", status=400)])
@pytest.mark.parametrize("call", ["connect", "encode_chat"])
async def test_a_time_out_and_a_refusal_are_final(call: str, error: BackendError) -> None:
    backend = Flaky(call, [error])
    with pytest.raises(type(error)):
        await ask(backend)
    assert backend.calls == 1
    assert backend.clock.time() == 0


async def test_requests_are_sent_again_with_growing_waits() -> None:
    error = BackendStatusError("overloaded", status=503)
    backend = ScriptedBackend("Because.", clock=VirtualClock(), faults=[Fault(0, 0, error=error, times=4)])
    assert await ask(backend, retries=4) == "Because."
    starts = [play.started for play in backend.played]
    waits = [after - before for before, after in pairwise(starts)]
    assert len(waits) == 4
    for wait, full in zip(waits, (0.25, 0.5, 1.0, 2.0), strict=True):
        assert full / 2 <= wait <= full


async def test_retry_after_is_followed_for_a_minute_at_most() -> None:
    error = BackendStatusError("come back tomorrow", status=429, retry_after=86_400.0)
    backend = ScriptedBackend("Because.", clock=VirtualClock(), faults=[Fault(0, 0, error=error)])
    assert await ask(backend) == "Because."
    assert backend.clock.time() == 60


async def test_a_silent_request_is_not_sent_again() -> None:
    error = BackendTimeoutError("nothing for too long")
    backend = ScriptedBackend("Because.", faults=[Fault(0, 0, error=error)])
    with pytest.raises(ThreadFailedError):
        await ask(backend)
    assert len(backend.requests) == 1


@pytest.mark.parametrize("call", ["connect", "encode_chat", "detokenize"])
async def test_the_time_limit_covers_all_that_comes_before_decoding(call: str) -> None:
    backend = Flaky(call, silent=True)
    async with Client(backend, clock=backend.clock, limits=Limits(timeout=5)) as client:
        ended = await asyncio.gather(*(client.generate("Why?") for _ in range(4)), return_exceptions=True)
    assert [type(error) for error in ended] == [GenerationTimeoutError] * 4
    assert backend.clock.time() == 5


async def test_there_is_a_time_limit_unless_it_is_taken_away() -> None:
    backend = Flaky("connect", silent=True)
    with pytest.raises(GenerationTimeoutError):
        await ask(backend)
    assert backend.clock.time() == 600


async def test_limits_of_one_answer_are_laid_over_the_client_s() -> None:
    backend = ScriptedBackend("Because.", latency=1.0, faults=[Fault(0, 1, "stall")])
    async with Client(backend, clock=backend.clock, limits=Limits(timeout=5, max_threads=4)) as client:
        with pytest.raises(GenerationTimeoutError):
            await client.generate("Why?", limits=Limits(max_threads=2))
    assert backend.clock.time() == 5


async def test_the_end_of_a_prompt_is_looked_at_once_while_it_is_remembered() -> None:
    backend = Flaky("detokenize")
    async with Client(backend, clock=backend.clock) as client:
        for _ in range(2):
            await client.generate("Why?")
        assert backend.calls == 1
        for number in range(64):  # what callers choose freely is not remembered for ever
            await client.generate(f"Why {number}?")
        await client.generate("Why?")
        assert backend.calls == 1 + 64 + 1


async def test_a_template_may_open_a_thinking_block_for_some_prompts_alone() -> None:
    class Thinking(ScriptedBackend):
        async def encode_chat(self, messages: Any, template_kwargs: Any) -> list[int]:
            ids = await super().encode_chat(messages, template_kwargs)
            asked = "/no_think" not in messages[-1]["content"]
            return [*ids, *self.tokenizer.encode("<think>\n")] if asked else ids

    backend = Thinking("Because.")
    async with Client(backend, clock=backend.clock) as client:
        for _ in range(2):
            assert (await client.generate("Why?")).reasoning == "Because."
            assert (await client.generate("Why? /no_think")).text == "Because."


async def test_the_end_of_a_prompt_of_ids_is_looked_at_once() -> None:
    backend = Flaky("detokenize")
    ids = backend.tokenizer.encode("Why is it so, and why is it not otherwise?")
    thinking = backend.tokenizer.encode("Why is it so, and why is it not otherwise? <think>")
    async with Client(backend, clock=backend.clock) as client:
        for prompt in (ids, ids, [*ids, *ids], ids):
            assert (await client.generate(prompt)).text == "Because."
        assert backend.calls == 1
        for _ in range(2):
            assert (await client.generate(thinking)).reasoning == "Because."
        assert backend.calls == 2


async def test_an_error_before_decoding_has_an_empty_partial_answer() -> None:
    for backend in (
        Flaky("encode_chat", silent=True),
        Flaky("connect", [BackendStatusError("no", status=400)]),
    ):
        with pytest.raises(PastaError) as caught:
            await ask(backend, timeout=5)
        assert caught.value.partial == Generation.empty()


@pytest.mark.parametrize("call", ["connect", "encode_chat", "detokenize"])
async def test_a_call_that_cancels_itself_is_an_error_of_the_backend(call: str) -> None:
    with pytest.raises(BackendProtocolError):
        await ask(Flaky(call, [asyncio.CancelledError()]))


async def test_a_cancellation_from_before_the_call_is_not_taken_for_the_backend_s() -> None:
    async def cancelled_first() -> None:
        task = asyncio.current_task()
        assert task
        task.cancel()
        async with Client(ScriptedBackend("Yes.")) as client:
            await client.generate("Well?")

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(cancelled_first())


async def test_an_answer_s_task_that_others_cancel_ends_the_stream_with_an_error() -> None:
    backend = ScriptedBackend("Because.", faults=[Fault(0, 1, "stall")])
    async with Client(backend) as client, client.stream("Why?") as stream:
        before = asyncio.all_tasks()
        await anext(stream)
        for task in before - {asyncio.current_task()}:
            task.cancel()
        with pytest.raises(PastaError) as caught:
            await stream.result()
        assert caught.value.partial is not None
