"""Answers that the real server is made to write."""

from __future__ import annotations

import asyncio

from pasta_async import Backend, Sampling
from pasta_async.backends.local import LocalBackend
from pasta_async.backends.sglang import SGLangBackend
from pasta_async.evals.answers import Answer
from pasta_async.evals.forcing import force
from pasta_async.evals.methods import METHODS, Case, open_engine, play
from pasta_async.lang import parse
from pasta_async.protocol import DecodeRequest

WRITTEN = (
    'Two wars. <promise topic="causes" tokens="10"/><async>Trade, and of course pride.</async> and '
    '<promise topic="outcome" tokens="20"/><async>Nobody won.</async><sync/> Both were long.'
)
DOCUMENT = parse(WRITTEN)
LISTED = parse(
    "Two wars:\n\n"
    + "\n".join(
        f'{number}. <promise topic="{topic}" tokens="30"/><async>{topic}: {" and then" * 15}</async>'
        for number, topic in enumerate(("Causes", "Outcome"), 1)
    )
    + "<sync/>\n\nBoth were long."
)


async def decode(
    backend: Backend, ids: list[int], forced: list[int], count: int, temperature: float = 0.0
) -> list[int]:
    sampling = Sampling(temperature=temperature, seed=1)
    request = force(backend, DecodeRequest("a", 0, tuple(ids), count, sampling, seed=1), forced)
    return [token async for piece in backend.decode(request) for token in piece.ids]


async def test_free_and_given_requests_share_batches_and_the_kv_is_that_of_the_given_tokens(
    backend: SGLangBackend, local: LocalBackend
):
    tokenizer = (await backend.connect()).tokenizer
    prompt = tokenizer.encode_chat([{"role": "user", "content": "Well?"}], {})
    one, two = map(tokenizer.encode, ("Anna has seven red apples ", "Ben, and nobody else, "))
    free, first, second, warm = await asyncio.gather(
        decode(backend, prompt, [], 20),
        decode(backend, prompt, one, 20),
        decode(backend, prompt, two, 20),
        decode(backend, prompt, two, len(two), temperature=1.0),
    )
    assert free == await decode(local, prompt, [], 20)
    assert first == await decode(local, prompt, one, 20)
    assert second == await decode(local, prompt, two, 20)
    assert first[: len(one)] == one and warm == two
    # what follows is what follows a prompt that ends with the given tokens
    assert second[len(two) :] == await decode(backend, [*prompt, *two], [], 20 - len(two))


async def test_every_method_decodes_the_same_on_the_server_as_on_the_embedded_engine(
    backend: SGLangBackend, local: LocalBackend
):
    case = Case(0, "Well?", LISTED)
    found = list[list[Answer]]()
    for inner in (backend, local):
        async with open_engine(inner, {"Well?": LISTED}) as engine:
            found.append([await play(engine, METHODS[name], case) for name in METHODS if name != "auto"])
    real, embedded = ([(row.method, row.tokens, row.critical_path) for row in rows] for rows in found)
    assert real == embedded
    rows = {row.method: row for row in found[0]}
    assert rows["skeleton"].requests == 1 + 3
    assert rows["apar"].requests == 1 + 2
    assert all(row.tokens > row.critical_path for row in rows.values() if row.method != "sequential")
    assert all(row.tokens > rows["sequential"].tokens for name, row in rows.items() if name != "sequential")
