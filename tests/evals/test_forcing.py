from __future__ import annotations

from collections.abc import Sequence

import pytest

from pasta_async import Backend, Client, Sampling
from pasta_async.backends.local import LocalBackend
from pasta_async.backends.vllm import VLLMBackend
from pasta_async.errors import InvalidRequestError, UnsupportedModelError
from pasta_async.evals.forcing import FORCED_LIMITS, FORCED_SAMPLING, ForcedBackend, force
from pasta_async.lang import parse
from pasta_async.protocol import DecodeRequest
from pasta_async.testing import ScriptedBackend

WRITTEN = (
    'Two wars. <promise topic="causes" tokens="10"/><async>Trade, and <\\sync/> of course pride.</async> and '
    '<promise topic="outcome" tokens="20"/><async>Nobody won; most people lost a great deal.</async><sync/> '
    'Both were long. <promise topic="end" tokens="10"/><async>That is all.</async>'
)
DOCUMENT = parse(WRITTEN)


def forced(backend: Backend) -> ForcedBackend:
    return ForcedBackend(backend, {"Well?": DOCUMENT})


async def test_the_engine_writes_the_given_document_whatever_its_weights(local: LocalBackend):
    async with Client(forced(local), limits=FORCED_LIMITS) as client:
        free = await client.generate("Well?", sampling=FORCED_SAMPLING)
        alone = await client.generate("Well?", sampling=FORCED_SAMPLING, parallel="never")
        baseline = await client.generate("Well?", sampling=FORCED_SAMPLING, baseline=True)

    assert free.document == alone.document == DOCUMENT
    assert free.finish_reason == baseline.finish_reason == "stop"
    assert not free.diagnostics
    assert {thread.closed_by for thread in free.threads[1:]} == {"writer"}
    assert free.text == baseline.text == DOCUMENT.text
    assert free.critical_path == alone.critical_path < free.usage.completion_tokens


@pytest.mark.parametrize(
    "written",
    [
        'Drinks: <promise topic="Tea: kinds" tokens="10"/><async>Green; black.</async><sync/> That is all.',
        'So.<sync/> <promise topic="one" tokens="10"/><async>a word.</async><sync/> Well.<sync/> The end.',
    ],
    ids=["a topic with a delimiter", "idle syncs"],
)
async def test_tags_stand_where_the_document_has_them(written: str, local: LocalBackend):
    document = parse(written)
    backend = ForcedBackend(local, {"Well?": document})
    async with Client(backend, limits=FORCED_LIMITS) as client:
        answer = await client.generate("Well?", sampling=FORCED_SAMPLING)
    assert (answer.document, answer.finish_reason) == (document, "stop")


async def test_the_kv_is_that_of_the_given_tokens(local: LocalBackend):
    """Behind the last given token the engine goes on as behind a prompt that ends with it."""
    tokenizer = (await local.connect()).tokenizer
    prompt = tuple(tokenizer.encode_chat([{"role": "user", "content": "Well?"}], {}))
    led_ids = tuple(tokenizer.encode("Anna has seven red apples and Ben has "))

    async def decode(ids: tuple[int, ...], forced: tuple[int, ...], count: int) -> Sequence[int]:
        request = force(local, DecodeRequest("a", 0, ids, count, Sampling()), forced)
        return [token async for piece in local.decode(request) for token in piece.ids]

    led = await decode(prompt, led_ids, len(led_ids) + 5)
    assert led[: len(led_ids)] == list(led_ids)
    free = await decode((*prompt, *led_ids), (), 5)
    assert led[len(led_ids) :] == free


async def test_a_context_that_is_not_the_documents_is_refused(local: LocalBackend):
    async with Client(forced(local), limits=FORCED_LIMITS) as client:
        with pytest.raises(InvalidRequestError, match="FORCED_LIMITS"):  # a cap cuts a chunk short
            await client.generate("Well?", limits=FORCED_LIMITS.model_copy(update={"chunk_tokens": 3}))


async def test_what_cannot_be_forced_is_refused(local: LocalBackend):
    with pytest.raises(InvalidRequestError):
        ForcedBackend(local, {"Well?": parse('<promise topic="a" tokens="10"/>')})
    with pytest.raises(InvalidRequestError):
        await forced(VLLMBackend("http://127.0.0.1:1")).connect()
    with pytest.raises(InvalidRequestError, match="leave it out"):
        await ForcedBackend(local, {"Well?": parse("word " * 10_000)}).connect()
    with pytest.raises(UnsupportedModelError, match="tag tokens"):
        await forced(ScriptedBackend("", trained=False)).connect()
    async with Client(forced(local)) as client:
        with pytest.raises(InvalidRequestError, match="Who"):
            await client.generate("Who?")
        with pytest.raises(InvalidRequestError, match="no document"):
            await client.generate([7, 8, 9])
