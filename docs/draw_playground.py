"""Draws docs/playground-*.png: the playground in a real Chromium, with the model that ships.

Needs the test environment (`make test` makes it) and Chromium (`apt-get install chromium`).
"""

from __future__ import annotations

import asyncio
import io
import shutil
import socket
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from PIL import Image
from playwright.async_api import async_playwright

from pasta_async.server import create_app

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from playwright.async_api import Browser, Page

HERE = Path(__file__).parent
PROMPT = (HERE.parent / "examples" / "prompt.txt").read_text("utf-8").strip()
DESK = {"viewport": {"width": 1280, "height": 900}}
COLOURS = 160
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True}


async def main() -> None:
    """Draw the pictures."""
    path = shutil.which("chromium")
    if path is None:
        sys.exit("draw_playground: no Chromium here; on Debian: apt-get install chromium")
    async with serving() as url, async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )
        async with opened(browser, url, **DESK, color_scheme="light") as page:
            await answer(page)  # the first answer pays for what only the first one needs
            await picture_halfway(page, "playground-light")
        async with opened(browser, url, **DESK, color_scheme="dark") as page:
            await answer(page)
            await page.get_by_role("button", name="Compare with baseline").click()
            await done(page)
            await picture(page, "playground-dark", full_page=True)
        async with opened(browser, url, **PHONE, color_scheme="dark") as page:
            await picture_halfway(page, "playground-phone")
        await browser.close()


@asynccontextmanager
async def serving() -> AsyncGenerator[str]:
    """The server with the embedded engine; its address."""
    server = uvicorn.Server(uvicorn.Config(create_app("local:"), log_level="warning"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        task = asyncio.create_task(server.serve([listening]))
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        server.should_exit = True
        await task


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


async def answer(page: Page) -> None:
    """Ask and wait for the end."""
    await page.get_by_role("button", name="Answer").click()
    await done(page)


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
    Image.open(io.BytesIO(drawn)).convert("RGB").quantize(COLOURS).save(HERE / f"{name}.png", optimize=True)


if __name__ == "__main__":
    asyncio.run(main())
