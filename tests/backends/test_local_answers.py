"""Whole answers on the embedded engine with the model that ships."""

from __future__ import annotations

import asyncio

import pasta_async
from pasta_async.training.synthetic import FAMILIES, sample

PROMPTS = [sample(family, seed, "names").prompt for family in FAMILIES for seed in (1, 2)]


async def test_answers_decoded_at_once_are_those_decoded_one_by_one() -> None:
    """Steps mix prompts, forks and joins of several answers, each with threads of its own."""
    async with pasta_async.Client("local:") as client:
        alone = [(await client.generate(prompt)).document for prompt in PROMPTS]
    async with pasta_async.Client("local:") as client:
        together = await asyncio.gather(*map(client.generate, PROMPTS))
    assert [answer.document for answer in together] == alone


async def test_threads_find_what_their_parent_decoded_and_joins_what_the_threads_did() -> None:
    async with pasta_async.Client("local:") as client:
        answer = await client.generate(sample("totals", 3, "names").prompt)
    main, *threads = answer.threads
    before, joined = main.requests
    assert len(threads) >= 2
    for thread in threads:
        [request] = thread.requests
        assert request.cached_tokens is not None
        assert request.cached_tokens >= before.prompt_tokens, "at least the whole prompt"
        assert request.prompt_tokens - request.cached_tokens <= 3, "and nearly all that main had decoded"
    assert joined.cached_tokens is not None
    assert joined.cached_tokens >= threads[0].requests[0].prompt_tokens + threads[0].tokens - 1
