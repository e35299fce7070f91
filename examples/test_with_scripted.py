"""Test your own code against a scripted model: no model, no server, no waiting.

A `ScriptedBackend` plays an answer that you wrote, token by token. Its latencies pass on a virtual clock, so
a test of a minute takes a millisecond and always goes the same way. Run this file with

    pytest examples/test_with_scripted.py
"""

from __future__ import annotations

import pytest

import pasta_async
from pasta_async.testing import Fault, ScriptedBackend

pytestmark = pytest.mark.asyncio

ANSWER = (
    "Both wars reshaped Europe."
    '<promise topic="causes" tokens="20"/><async> The causes were many and old.</async>'
    '<promise topic="outcome" tokens="20"/><async> The outcome was a new map.</async><sync/>'
    " Neither was foreseen."
)


async def report(question: str, backend: pasta_async.Backend) -> str:
    """Stands for your own code."""
    answer = await pasta_async.generate(question, backend=backend)
    return f"# {question}\n{answer.text}"


async def test_your_code_gets_the_answer_that_you_wrote() -> None:
    """Tags are gone, chunks are in their places."""
    assert await report("The wars?", ScriptedBackend(ANSWER)) == (
        "# The wars?\nBoth wars reshaped Europe. The causes were many and old."
        " The outcome was a new map. Neither was foreseen."
    )


async def test_each_question_can_have_its_answer() -> None:
    """A mapping goes by the last user message; a function of it works as well."""
    backend = ScriptedBackend({"One?": "First.", "Two?": "Second."})
    assert await report("Two?", backend) == "# Two?\nSecond."
    assert await report("One?", backend) == "# One?\nFirst."


async def test_chunks_are_decoded_side_by_side() -> None:
    """The second chunk's tokens take less time, so it is ready first; the text keeps its order."""
    backend = ScriptedBackend(ANSWER, latency=1.0, thread_latency={2: 0.1})
    async with (
        pasta_async.Client(backend, clock=backend.clock) as client,
        client.stream("The wars?") as stream,
    ):
        events = [event async for event in stream]
        answer = await stream.result()
    assert [event.thread for event in events if isinstance(event, pasta_async.ThreadDone)] == [2, 1, 0]
    assert answer.text.index("causes") < answer.text.index("outcome")
    main, causes, outcome = answer.threads
    assert causes.started is not None
    assert outcome.ended is not None
    assert causes.started < outcome.ended, "they ran at the same time"
    assert answer.elapsed < answer.usage.completion_tokens, "sooner than one token after another"
    assert main.topic == ""


async def test_an_answer_that_stalls_times_out_with_what_there_is() -> None:
    """The client's time-out is measured on the backend's clock."""
    backend = ScriptedBackend(ANSWER, latency=1.0, faults=[Fault(thread=1, after_tokens=3, kind="stall")])
    limits = pasta_async.Limits(timeout=60)
    async with pasta_async.Client(backend, limits=limits, clock=backend.clock) as client:
        with pytest.raises(pasta_async.GenerationTimeoutError) as caught:
            await client.generate("The wars?")
    assert backend.clock.time() == 60
    assert caught.value.partial is not None
    assert caught.value.partial.text.startswith("Both wars reshaped Europe. The causes were")
    assert not backend.open, "nothing is left decoding"


async def test_a_request_that_fails_at_first_is_sent_again() -> None:
    """Every request is recorded."""
    broken = pasta_async.BackendTransportError("the connection broke off")
    backend = ScriptedBackend(ANSWER, faults=[Fault(thread=2, after_tokens=0, error=broken)])
    answer = await pasta_async.generate("The wars?", backend=backend)
    assert answer.finish_reason == "stop"
    assert [request.thread for request in backend.requests].count(2) == 2
