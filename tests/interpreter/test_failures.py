"""A thread that fails in a way that may pass goes on where it broke off, so often; then the answer fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from pasta_async import (
    BackendError,
    BackendProtocolError,
    BackendTransportError,
    Client,
    DecodeRequest,
    Event,
    Limits,
    PastaError,
    Piece,
    ThreadFailedError,
)
from pasta_async.lang import parse
from pasta_async.testing import Fault, ScriptedBackend
from tests.helpers.answer_runs import RICH, answer, events_of


def passing() -> BackendTransportError:
    """An error after which the same request may succeed."""
    return BackendTransportError("it broke off")


async def failing(
    backend: ScriptedBackend, limits: Limits | None = None, kind: type[Exception] = PastaError
) -> Exception:
    """The error that an answer ends with; nothing is left behind."""
    with pytest.raises(kind) as caught:
        await answer(backend, limits=limits)
    assert not backend.open
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return caught.value


async def test_it_is_sent_again_so_often_and_no_more() -> None:
    fault = Fault(1, 0, error=passing(), times=3)
    assert (
        await answer(ScriptedBackend(RICH, latency=1.0, faults=[fault]), limits=Limits(retries=3))
    ).finish_reason == "stop"
    for limits in (Limits(retries=2), Limits(retries=0)):
        backend = ScriptedBackend(RICH, latency=1.0, faults=[fault])
        assert isinstance(await failing(backend, limits), ThreadFailedError)
        sent = [request for request in backend.requests if request.thread == 1]
        assert len(sent) == limits.retries + 1


@pytest.mark.parametrize("thread", range(6))
async def test_else_the_answer_fails_with_the_partial_answer_on_the_error(thread: int) -> None:
    backend = ScriptedBackend(RICH, latency=1.0, faults=[Fault(thread, 0 if thread == 4 else 1)])
    error = await failing(backend)
    assert isinstance(error, ThreadFailedError)
    assert error.thread == thread
    assert isinstance(error.__cause__, BackendError)
    assert error.partial is not None
    assert error.partial.finish_reason == "error"
    assert error.partial.text == error.partial.document.text
    assert error.partial.usage.completion_tokens == sum(len(play.ids) for play in backend.played)
    assert error.partial.threads[thread].tokens >= (thread != 4)


@pytest.mark.parametrize(
    ("thread", "after", "skip"),
    [
        *((thread, after, 0) for thread in (0, 1, 2, 5) for after in range(4)),
        (0, 1, 1),  # behind a join
    ],
)
async def test_a_thread_goes_on_where_it_broke_off(thread: int, after: int, skip: int) -> None:
    backend = ScriptedBackend(RICH, latency=1.0, faults=[Fault(thread, after, skip=skip, error=passing())])
    generation = await answer(backend)
    assert generation.document == parse(RICH)
    assert generation.usage.completion_tokens == (await answer(ScriptedBackend(RICH))).usage.completion_tokens
    broken, again = [play for play in backend.played if play.request.thread == thread][skip : skip + 2]
    assert again.request.ids == (*broken.request.ids, *broken.ids)
    assert not backend.aborted


async def test_events_tell_what_is_done_about_a_failure() -> None:
    fault = Fault(1, 0, error=passing())
    events, _ = await events_of(ScriptedBackend(RICH, faults=[fault]))
    assert [(e.thread, e.action) for e in events if e.type == "thread.failed"] == [(1, "retry")]
    backend = ScriptedBackend(RICH, faults=[Fault(2, 0)])
    seen: list[Event] = []
    with pytest.raises(ThreadFailedError):
        async with Client(backend) as client, client.stream("Why?") as stream:
            async for event in stream:
                seen.append(event)  # noqa: PERF401 - it fails on the way
    assert [(e.thread, e.action) for e in seen if e.type == "thread.failed"] == [(2, "fail")]
    assert seen[-1].type != "answer.done"


@pytest.mark.parametrize("thread", [0, 1, 3])
@pytest.mark.parametrize(
    "error", [RuntimeError("a bug"), KeyError("a bug"), TimeoutError("of the backend's own")]
)
async def test_an_error_that_no_backend_should_raise_leaves_nothing_behind(
    thread: int, error: Exception
) -> None:
    backend = ScriptedBackend(RICH, latency=1.0, faults=[Fault(thread, 1, error=error)])
    assert await failing(backend, kind=type(error)) is error


class Silent(ScriptedBackend):
    """Gives no reason for the end of one thread's requests, as no backend should."""

    thread = 1

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        async for piece in super().decode(request):
            if request.thread != self.thread or piece.finish_reason is None:
                yield piece


@pytest.mark.parametrize("thread", [0, 1])
async def test_a_request_that_ends_without_a_reason_fails_its_thread(thread: int) -> None:
    backend = Silent(RICH, latency=1.0)
    backend.thread = thread
    error = await failing(backend)
    assert isinstance(error, ThreadFailedError)
    assert isinstance(error.__cause__, BackendProtocolError)
    assert error.thread == thread
