"""Draws the pictures of docs/ with the model that ships: live.svg, the live view of the demo and what it ends
with; playground-*.png, the playground in a real Chromium.

Needs the test environment (`make test` makes it) and Chromium (`apt-get install chromium`).
"""

from __future__ import annotations

import asyncio
import io
import re
import shutil
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image
from playground_server import serving
from playwright.async_api import async_playwright
from rich.console import Console
from rich.text import Text

from pasta_async import Client, Generation
from pasta_async.cli.display import summary
from pasta_async.cli.live import view

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PROMPT = "Give five tips for better sleep."
WIDTH = 96
DESK = {"viewport": {"width": 1280, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True}
COLOURS = 160


async def main() -> None:
    path = shutil.which("chromium")
    if path is None:
        sys.exit("draw_pictures: no Chromium here; on Debian: apt-get install chromium")
    async with Client("local:pasta-smol") as client:
        await client.generate(PROMPT, max_tokens=4)  # the first answer pays for what only the first one needs
        await draw_live(client)
        async with serving(client) as url, async_playwright() as playwright:
            browser = await playwright.chromium.launch(
                executable_path=path,
                args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
            )
            await draw_playground(browser, url)
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


async def draw_playground(browser: Browser, url: str) -> None:
    async with opened(browser, url, **DESK, color_scheme="light") as page:
        await picture_halfway(page, "playground-light")
    async with opened(browser, url, **DESK, color_scheme="dark") as page:
        await page.get_by_role("button", name="Answer").click()
        await done(page)
        await page.get_by_role("button", name="Compare with baseline").click()
        await done(page)
        await picture(page, "playground-dark", full_page=True)
    async with opened(browser, url, **PHONE, color_scheme="dark") as page:
        await picture_halfway(page, "playground-phone")


@asynccontextmanager
async def opened(browser: Browser, url: str, **options: Any) -> AsyncGenerator[Page]:
    """The page, with the prompt in it."""
    context = await browser.new_context(**options)
    page = await context.new_page()
    await page.goto(url)
    await page.locator(".engine.found").wait_for()
    await page.get_by_label("Prompt").fill(PROMPT)
    yield page
    await context.close()


async def done(page: Page) -> None:
    """Wait until nothing decodes."""
    await page.locator("#compare:enabled").wait_for(timeout=120_000)


async def picture_halfway(page: Page, name: str) -> None:
    """Ask, and draw when the third thread has begun."""
    await page.get_by_role("button", name="Answer").click()
    await page.locator(".lane[data-thread='3'] .said:not(:empty)").wait_for(timeout=120_000)
    await picture(page, name)
    await done(page)


async def picture(page: Page, name: str, **options: Any) -> None:
    """Draw what is on the page now, in few colours, which makes a third of the bytes."""
    drawn = await page.screenshot(animations="disabled", **options)
    Image.open(io.BytesIO(drawn)).convert("RGB").quantize(COLOURS).save(DOCS / f"{name}.png", optimize=True)


if __name__ == "__main__":
    asyncio.run(main())
