"""Draws docs/live.svg: the live view of the demo in the middle of its answer, and what it ends with."""

from __future__ import annotations

import asyncio
import io
import re
from pathlib import Path

from rich.console import Console
from rich.text import Text

from pasta_async import Client, Generation, Sampling
from pasta_async.cli.display import summary, view

HERE = Path(__file__).parent
PROMPT = (HERE.parent / "examples" / "prompt.txt").read_text()
WIDTH = 96


async def main() -> None:
    """Decode the demo's prompt and save the picture."""
    async with Client("local:") as client:
        await client.generate("Hello.", sampling=Sampling(max_tokens=4))
        halfway: Generation | None = None
        async with client.stream(PROMPT) as stream:
            async for _ in stream:
                if (
                    halfway is None
                    and (partial := stream.partial)
                    and all(t.tokens > 16 for t in partial.threads)
                ):
                    halfway = partial if len(partial.threads) > 1 else None
            answer = await stream.result()
        baseline = await client.generate(PROMPT, baseline=True)
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(view(halfway or answer, width=WIDTH))
    console.print()
    for line in summary(answer, baseline, width=52):
        console.print(Text(line))
    picture = console.export_svg(title="pasta-async generate --live --compare")
    own_fonts = re.sub(r"\s*@font-face \{.*?\}", "", picture, flags=re.DOTALL)  # nothing from outside
    (HERE / "live.svg").write_text(own_fonts)


if __name__ == "__main__":
    asyncio.run(main())
