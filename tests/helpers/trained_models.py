"""The trained models that ship, for tests that need one that answers real prompts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from pasta_async import Backend, Client, Generation, Limits, Sampling
from pasta_async.backends.local.pull import base_path, find_model
from pasta_async.errors import UnsupportedModelError
from tests.helpers.cli_program import pasta

PROMPTS = (
    "Compare tea and coffee: origin, taste, health.",
    "Give five tips for better sleep.",
    "Name three large cities in Europe and what each is known for.",
    "Who wrote Romeo and Juliet?",
    "Plan a birthday party for ten children: food, games, decoration.",
    "What is 12 plus 30?",
)
FEW = PROMPTS[:3]
"""For servers on a CPU, where a step of all six takes a large part of a second."""

SAMPLING = Sampling(max_tokens=64, repetition_penalty=1)  # which the two count in different ways


def require_model(name: str) -> Path:
    """Its folder; skip where its base is not on this machine, and fail where the suite must be complete."""
    folder = find_model(name)
    try:
        base_path(folder)
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


async def answered(backend: Backend, prompts: Sequence[str]) -> list[Generation]:
    """The greedy answers to some prompts, all under way at the same time."""
    async with Client(backend, limits=Limits(timeout=None)) as client:
        ask = (client.generate(prompt, sampling=SAMPLING, parallel="always") for prompt in prompts)
        return await asyncio.gather(*ask)
