"""Draws over scripted answers, for tests and for the process that is killed in one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pasta_async import Client, Sampling
from pasta_async.jobs import Journal
from pasta_async.training.corpus import plain_record
from pasta_async.training.preference.drawing import Draw
from pasta_async.training.preference.recording import Recording

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pasta_async.testing import ScriptedBackend
    from pasta_async.training.corpus import Record
    from pasta_async.training.preference.samples import SampledPrompt

__all__ = ["PROMPTS", "WRITTEN", "draw", "records"]

WRITTEN = (
    'Both: <promise topic="causes" tokens="10"/><async>The causes were many.</async>'
    '<promise topic="outcome" tokens="20"/><async>The outcome was one.</async><sync/> So it was.'
)
PROMPTS = ("one", "two", "three")


def records(*prompts: str) -> list[Record]:
    """Prompts, to be answered."""
    return [
        plain_record([{"role": "user", "content": prompt}], "", id=prompt) for prompt in prompts or PROMPTS
    ]


def draw(
    backend: ScriptedBackend,
    journal: Path,
    prompts: list[Record] | None = None,
    *,
    n: int = 3,
    together: int = 2,
    plain: ScriptedBackend | None = None,
    after_each: Callable[[Draw], None] = lambda _: None,
    **options: Any,
) -> tuple[list[SampledPrompt], Draw]:
    """Draw, in a loop of its own."""

    async def run() -> tuple[list[SampledPrompt], Draw]:
        recording = Recording(backend)
        client = Client(recording, **options)
        baseline = Client(plain) if plain else client
        with Journal(journal, {"made": "up"}) as kept:
            it = Draw(client, recording, baseline, kept, n, Sampling(temperature=1.0), seed=7)
            it.on_progress = lambda: after_each(it)
            return await it.run(prompts or records(), together), it

    return asyncio.run(run())
