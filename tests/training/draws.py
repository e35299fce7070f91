"""Draws over scripted answers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from pasta_async import Client
from pasta_async.testing import ScriptedBackend
from pasta_async.training.data.corpus import Record
from pasta_async.training.jobs import Journal
from pasta_async.training.sample import Drawing, Recording, SampleSettings
from pasta_async.training.samples import SampledPrompt

WRITTEN = (
    'Both: <promise topic="causes" tokens="10"/><async>The causes were many.</async>'
    '<promise topic="outcome" tokens="20"/><async>The outcome was one.</async><sync/> So it was.'
)
PROMPTS = ("one", "two", "three")


def records(*prompts: str) -> list[Record]:
    """Prompts, to be answered."""
    return [
        Record(id=prompt, messages=({"role": "user", "content": prompt},)) for prompt in prompts or PROMPTS
    ]


def draw(
    backend: ScriptedBackend,
    journal: Path,
    prompts: list[Record] | None = None,
    *,
    plain: ScriptedBackend | None = None,
    **changes: Any,
) -> tuple[list[SampledPrompt], Drawing]:
    """Draw, in a loop of its own; `changes` are settings."""
    usual = {"prompts": (journal,), "out": journal, "n": 3, "together": 2, "seed": 7}
    settings = SampleSettings.model_validate({**usual, **changes})

    async def run() -> tuple[list[SampledPrompt], Drawing]:
        client = Client(Recording(backend))
        baseline = Client(plain) if plain else client
        with Journal(journal, {"made": "up"}, held=False) as opened:
            drawing = Drawing(settings, client, baseline, opened)
            wanted = prompts or records()
            await drawing.run(wanted, lambda steps=1, note=None: None)
            return [*drawing.prompts(wanted)], drawing

    return asyncio.run(run())
