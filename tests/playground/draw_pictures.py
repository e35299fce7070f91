"""Draws the pictures of docs/ with the model that ships: live.svg, the live view of the demo and its summary;
playground-dark.png, the playground in a real Chromium.

Needs the test environment (`make test` makes it) and Chromium (`apt-get install chromium`).
"""

from __future__ import annotations

import asyncio
import io
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image
from playwright.async_api import async_playwright
from rich.console import Console
from rich.text import Text

from pasta_async import Client, Generation
from pasta_async.cli.display import summary
from pasta_async.cli.live import view
from tests.helpers.live_server import running_in_loop

if TYPE_CHECKING:
    from playwright.async_api import Page, ViewportSize

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PROMPT = "Give five tips for better sleep."
WIDTH = 96
DESK: ViewportSize = {"width": 1280, "height": 900}
COLOURS = 160


async def main() -> None:
    path = shutil.which("chromium")
    if path is None:
        sys.exit("draw_pictures: no Chromium here; on Debian: apt-get install chromium")
    async with Client("local:pasta-qwen") as client:
        await client.generate(PROMPT, max_tokens=4)  # the first answer pays for what only the first one needs
        await draw_live(client)
        async with running_in_loop(client.backend) as url, async_playwright() as playwright:
            browser = await playwright.chromium.launch(
                executable_path=path,
                args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
            )
            page = await browser.new_page(viewport=DESK, color_scheme="dark")
            await draw_playground(page, url)
            await browser.close()


async def draw_live(client: Client) -> None:
    """The live view in the middle of an answer, and what it ends with."""
    halfway: Generation | None = None
    async with client.stream(PROMPT) as stream:
        async for _ in stream:
            partial = None if halfway else stream.partial
            if partial and len(partial.threads) > 1 and all(t.tokens > 16 for t in partial.threads):
                halfway = partial
        answer = await stream.result()
    baseline = await client.generate(PROMPT, baseline=True)
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(view(halfway or answer, width=WIDTH))
    console.print()
    for line in summary(answer, baseline, width=52):
        console.print(Text(line))
    drawn = console.export_svg(title="pasta-async generate --live --compare")
    own_fonts = re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL)  # nothing from outside
    (DOCS / "live.svg").write_text(own_fonts)


async def draw_playground(page: Page, url: str) -> None:
    """The playground after an answer and its baseline, in few colours, which makes a third of the bytes."""
    await page.goto(url)
    await page.locator(".engine.found").wait_for()
    await page.get_by_label("Prompt").fill(PROMPT)
    for button in ("Answer", "Compare with baseline"):
        await page.get_by_role("button", name=button).click()
        await page.locator("#compare:enabled").wait_for(timeout=120_000)  # nothing decodes
    shot = await page.screenshot(animations="disabled", full_page=True)
    image = Image.open(io.BytesIO(shot)).convert("RGB").quantize(COLOURS)
    image.save(DOCS / "playground-dark.png", optimize=True)


if __name__ == "__main__":
    asyncio.run(main())
