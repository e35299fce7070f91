"""A real Chromium; where there is none, the tests say how to get it."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    async_playwright,
    expect,
)

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",  # as root it starts no other way; it opens nothing but our own page
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

expect.set_options(timeout=20_000)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncGenerator[Browser]:
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        words = "no Chromium here; on Debian: apt-get install chromium"
        if os.environ.get("CI"):
            pytest.fail(words)
        pytest.skip(words)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="module")
async def context(browser: Browser, request: pytest.FixtureRequest) -> AsyncGenerator[BrowserContext]:
    """A fresh profile; a test's `@pytest.mark.parametrize("context", [{...}], indirect=True)` sets it up."""
    options: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}, **getattr(request, "param", {})}
    context = await browser.new_context(**options)
    yield context
    await context.close()


@pytest_asyncio.fixture(loop_scope="module")
async def page(context: BrowserContext) -> AsyncGenerator[Page]:
    """A page that must neither fail, nor break its policy, nor ask anybody but its own server."""
    complaints: list[str] = []
    page = await context.new_page()
    page.on("pageerror", lambda error: complaints.append(str(error)))

    def note_message(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            complaints.append(message.text)

    def note_request(request: Request) -> None:
        if not request.url.startswith(("http://127.0.0.1:", "data:", "file:")):
            complaints.append(request.url)

    page.on("console", note_message)
    page.on("request", note_request)
    yield page
    assert complaints == []
