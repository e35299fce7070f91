"""Draws over scripted answers, for tests and for the process that is killed in one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pasta_async import Client
from pasta_async.jobs import Journal
from pasta_async.testing import ScriptedBackend
from pasta_async.training.corpus import Record, plain_record
from pasta_async.training.preference import SampledPrompt
from pasta_async.training.sample import Drawing, Recording, SampleSettings

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
    max_tokens: int = 2048,
    own_plain: bool = False,
    without_syncs: int = 0,
    temperatures: tuple[float, float] = (1.0, 0.0),
    after_each: Callable[[Drawing], None] = lambda _: None,
    **options: Any,
) -> tuple[list[SampledPrompt], Drawing]:
    """Draw, in a loop of its own."""
    settings = SampleSettings(
        prompts=(journal,),
        out=journal,
        n=n,
        together=together,
        seed=7,
        max_tokens=max_tokens,
        own_plain=own_plain,
        without_syncs=without_syncs,
        temperature=temperatures[0],
        plain_temperature=temperatures[1],
    )

    async def run() -> tuple[list[SampledPrompt], Drawing]:
        recording = Recording(backend)
        client = Client(recording, **options)
        baseline = Client(plain) if plain else client
        with Journal(journal, {"made": "up"}, held=False) as kept:
            drawing = Drawing(settings, client, recording, baseline, kept)
            wanted = prompts or records()
            await drawing.run(wanted, lambda steps=1, note=None: after_each(drawing))
            return [*drawing.prompts(wanted)], drawing

    return asyncio.run(run())
