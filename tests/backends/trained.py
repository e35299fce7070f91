"""The trained models that ship, for tests that need one that answers real prompts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from written import pasta

from pasta_async import Backend, Client, Generation, Limits, Sampling
from pasta_async.backends.local.pull import base_found, find_model
from pasta_async.errors import UnsupportedModelError

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


def require_model(name: str) -> Path:
    """Its folder; skip where its base is not on this machine, and fail where the suite must be complete."""
    folder = find_model(name)
    try:
        base_found(folder)
    except UnsupportedModelError as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))
    return folder


def export_model(name: str, out: Path) -> Path:
    """Write a model as a folder for servers, in float32."""
    require_model(name)
    exported = pasta("export", name, out)
    assert exported.code == 0, exported.err
    return out


async def answered(backend: Backend, prompts: Sequence[str] = PROMPTS) -> list[Generation]:
    """The greedy answers to prompts, a few at a time."""
    places = asyncio.Semaphore(TOGETHER)

    async def ask(client: Client, prompt: str) -> Generation:
        async with places:
            return await client.generate(prompt, sampling=SAMPLING, parallel="always")

    async with Client(backend, limits=Limits(timeout=None)) as client:
        return await asyncio.gather(*(ask(client, prompt) for prompt in prompts))
