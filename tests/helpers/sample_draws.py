"""Draws over scripted answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

from pasta_async.testing import ScriptedBackend
from pasta_async.training.data.corpus import Record
from pasta_async.training.jobs import Journal
from pasta_async.training.sample import Drawing, SampleSettings
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
) -> tuple[list[SampledPrompt], Counter[str], list[str]]:
    """Draw, in a loop of its own; `changes` are settings. The prompts, totals and failures."""
    usual = {"prompts": (journal,), "out": journal, "n": 3, "together": 2, "seed": 7}
    settings = SampleSettings.model_validate({**usual, **changes})

    async def run() -> tuple[list[SampledPrompt], Counter[str], list[str]]:
        with Journal(journal, {"made": "up"}) as opened:
            drawing = Drawing(settings, backend, plain or backend, opened)
            wanted = prompts or records()
            failures = await drawing.run(wanted)
            return drawing.prompts(wanted), drawing.totals, failures

    return asyncio.run(run())
