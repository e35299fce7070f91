"""pasta-smol as `pasta-async export` writes it: SGLang answers real prompts as the embedded engine does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from local_models import unconstrained
from pasta_smol import require_pasta_smol
from real_server import require_sglang, running_server
from written import pasta

from pasta_async import Backend, Client, Generation, Limits, Sampling
from pasta_async.backends.local import LocalBackend
from pasta_async.backends.sglang import SGLangBackend

PROMPTS = (
    "Compare tea and coffee: origin, taste, health.",
    "Give five tips for better sleep.",
    "What are the pros and cons of working from home?",
    "Describe the four seasons.",
    "What should I pack for a hike in the mountains?",
    "How do I plant tomatoes?",
    "Name three large cities in Europe and what each is known for.",
    "Who wrote Romeo and Juliet?",
    "Explain photosynthesis to a child.",
    "Plan a birthday party for ten children: food, games, decoration.",
    "What are the differences between cats and dogs as pets?",
    "Write a short poem about the sea.",
    "How does a refrigerator work?",
    "List the benefits of regular exercise.",
    "What is 12 plus 30?",
    "Give me ideas for a healthy breakfast, lunch and dinner.",
    "Why do people learn foreign languages?",
    "Tell me about the planets Mars, Venus and Jupiter.",
    "How can a small shop find more customers?",
    "Write an email that declines an invitation.",
)
SAMPLING = Sampling(max_tokens=64, repetition_penalty=1)  # which the two count in different ways
TOGETHER = 10
SMALL_CACHE = ("--max-total-tokens", "16384")


async def answered(backend: Backend) -> list[Generation]:
    """The greedy answers to all prompts, a few at a time."""
    places = asyncio.Semaphore(TOGETHER)

    async def ask(client: Client, prompt: str) -> Generation:
        async with places:
            return await client.generate(prompt, sampling=SAMPLING, parallel="always")

    async with Client(backend, limits=Limits(timeout=None)) as client:
        return await asyncio.gather(*(ask(client, prompt) for prompt in PROMPTS))


async def penalised(backend: Backend, count: int) -> list[str]:
    """Greedy plain answers under the model's own repetition penalty, all under way at the same time."""
    async with Client(backend, limits=Limits(timeout=None)) as client:
        ask = (client.generate(prompt, max_tokens=64, baseline=True) for prompt in PROMPTS[:count])
        return [answer.text for answer in await asyncio.gather(*ask)]


@pytest.mark.timeout(1200)
async def test_the_export_answers_on_sglang_as_the_adapter_does_here(tmp_path: Path) -> None:
    require_sglang()
    require_pasta_smol()
    out = tmp_path / "pasta-smol"
    exported = pasta("export", "pasta-smol", out)
    assert exported.code == 0, exported.err
    local = LocalBackend("pasta-smol", device="cpu", dtype="float32")
    try:
        expected = await answered(unconstrained(local))  # as SGLang is
    finally:
        await local.aclose()
    with running_server(out, tmp_path / "log", *SMALL_CACHE) as (url, _):
        served = SGLangBackend(url)
        try:
            found = await answered(served)
            alone, *_ = await penalised(served, 1)
            beside, *_ = await penalised(served, 4)
        finally:
            await served.aclose()
    for prompt, ours, theirs in zip(PROMPTS, expected, found, strict=True):
        assert theirs.document.format() == ours.document.format(), prompt
    assert beside == alone  # the penalty counts every token, whoever is prefilled meanwhile
    assert all(answer.text.strip() for answer in expected)
    assert any(len(answer.threads) > 1 for answer in expected)  # forks are compared, too
