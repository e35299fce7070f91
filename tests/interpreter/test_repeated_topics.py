"""A promise whose topic stands already in its round is taken back; main is asked anew, to promise no more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pasta_async.lang import parse
from pasta_async.testing import ScriptedBackend
from tests.helpers.answer_runs import INSTEAD, Obedient, answer, promise, read_by_events
from tests.helpers.vocabularies import tokenizer

REPEATED = promise("TEA", "Again.")
SOUND = f"1. {promise('Tea', 'Warm.')}\n2. {promise('milk', 'White.')}\n"
LIST = f"{SOUND}3. {REPEATED}\n4. {promise('rum', 'No.')}"
BEHIND_IT = f"<sync/> Then {promise('tea', 'Once more.')}"


async def test_main_writes_what_it_cannot_promise_again() -> None:
    backend = Obedient(LIST, tokenizer=tokenizer("bytes"))
    generation = await answer(backend)
    assert generation.text == "1. Warm.\n2. White.\n3. Water.\n"
    assert [thread.topic for thread in generation.threads[1:]] == ["Tea", "milk"]
    assert generation.document == parse(f"{SOUND}3. {INSTEAD}")
    # The new request begins in front of the promise, whose tokens were decoded in vain.
    main = backend.requests[0]
    assert backend.tokenizer.decode(backend.asked_anew.ids[len(main.ids) :]).endswith("\n3. ")
    assert generation.threads[0].discarded_tokens >= len(backend.tokenizer.encode("TEA")) + 2
    assert not backend.open


async def test_events_tell_what_the_document_says() -> None:
    generation, shown, threads = await read_by_events(Obedient(LIST, tokenizer=tokenizer("bytes")))
    assert generation.text == shown == "1. Warm.\n2. White.\n3. Water.\n"
    assert threads == {thread.thread: thread.text for thread in generation.threads}


async def test_the_next_round_may_have_the_topic_again() -> None:
    text = SOUND + BEHIND_IT
    generation = await answer(Obedient(text, tokenizer=tokenizer("bytes")))
    assert generation.document == parse(text)
    assert len(generation.threads[0].requests) == 2


@given(piece=st.sampled_from([1, 2, 7, 1000]), slow=st.integers(0, 4))
async def test_a_backend_that_promises_it_all_the_same_is_believed(piece: int, slow: int) -> None:
    backend = ScriptedBackend(
        LIST, tokenizer=tokenizer("bytes"), latency=1.0, thread_latency={slow: 9.0}, piece=piece
    )
    generation = await answer(backend)
    assert generation.document == parse(LIST)
    assert len(generation.threads[0].requests) == 2
