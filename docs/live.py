"""Draw docs/live.svg, the picture in the README: `python docs/live.py`."""

from __future__ import annotations

import asyncio
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.text import Text

import pasta_async
from pasta_async.cli.live import view
from pasta_async.cli.summary import summary

if TYPE_CHECKING:
    from pasta_async.results import Generation

HERE = Path(__file__).parent
WIDTH = 104
TOKENS = 62
"""How far the answer is in the picture."""


async def watch(prompt: str) -> tuple[Generation, Generation, Generation]:
    """The answer half-way, the answer, and the baseline."""
    halfway = None
    async with pasta_async.Client("local:") as client:
        async with client.stream(prompt) as stream:
            async for _ in stream:
                partial = stream.partial
                if halfway is None and partial and partial.usage.completion_tokens >= TOKENS:
                    halfway = partial
            answer = await stream.result()
        baseline = await client.generate(prompt, baseline=True)
    assert halfway is not None
    return halfway, answer, baseline


def main() -> None:
    """Decode, then draw."""
    halfway, answer, baseline = asyncio.run(watch((HERE.parent / "examples" / "prompt.txt").read_text()))
    console = Console(record=True, width=WIDTH, file=io.StringIO(), color_system="truecolor")
    command = Text('$ pasta-async generate --live --compare "How many fruits do ..."\n', style="bold")
    end = Text("\n" + "\n".join(summary(answer, baseline, width=48)))
    console.print(Group(command, view(halfway, width=WIDTH), end))
    picture = console.export_svg(title="pasta-async")
    own_fonts = re.sub(r"\s*@font-face \{.*?\}", "", picture, flags=re.DOTALL)  # nothing from outside
    (HERE / "live.svg").write_text(own_fonts)


if __name__ == "__main__":
    main()
