"""The page that `pasta-async generate --html` writes, opened by a real Chromium."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

from pasta_async import Client, ThreadFailedError
from pasta_async.testing import Fault, ScriptedBackend
from pasta_async.trace import timeline_page
from tests.cli.written import CAUSES, TEXT, WRITTEN

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("context", [{"offline": True}], indirect=True)
async def test_it_draws_the_timeline_from_the_file_alone(page: Page, tmp_path: Path) -> None:
    backend = ScriptedBackend(WRITTEN, latency=1.0)
    async with Client(backend, clock=backend.clock) as client:
        answer = await client.generate("Why?")
        baseline = await client.generate("Why?", baseline=True)
    file = tmp_path / "answer.html"
    file.write_text(timeline_page(answer, baseline, prompt="Why?"), "utf-8")
    await page.goto(file.as_uri())
    await expect(page.locator(".timeline-name")).to_have_text(["main", "1 causes", "2 outcome", "baseline"])
    await expect(page.locator("#answer")).to_have_text(TEXT)
    await expect(page.locator("#answer [data-thread='1']")).to_have_text(CAUSES)
    await expect(page.locator("#numbers")).to_contain_text(f"{answer.theoretical_speedup(baseline):.2f}")
    await expect(page.locator("path.join")).to_have_count(2)
    await expect(page.locator(".timeline-wait")).to_have_count(1)
    row = page.get_by_role("listitem").filter(has_text="1 causes")
    record = answer.threads[1]
    assert record.started is not None and record.ended is not None
    await expect(row).to_contain_text(f"decoded from {record.started:.1f} s to {record.ended:.1f} s")


async def test_an_answer_is_not_faster_for_saying_less(page: Page) -> None:
    backend, long = ScriptedBackend(WRITTEN, latency=1.0), ScriptedBackend("word " * 400, latency=1.0)
    async with Client(backend, clock=backend.clock) as client, Client(long, clock=long.clock) as plain:
        answer = await client.generate("Why?")
        baseline = await plain.generate("Why?", baseline=True)
    await page.set_content(timeline_page(answer, baseline, prompt="Why?"))
    measured = answer.measured_speedup(baseline)
    assert measured < 2 < baseline.elapsed / answer.elapsed
    await expect(page.locator("#numbers dd").first).to_have_text(f"{measured:.2f}\u00d7")


@pytest.mark.parametrize("thread", range(3))
async def test_an_answer_that_failed_is_drawn_as_far_as_it_went(page: Page, thread: int) -> None:
    backend = ScriptedBackend(WRITTEN, latency=1.0, faults=[Fault(thread, 2)])
    async with Client(backend, clock=backend.clock) as client:
        with pytest.raises(ThreadFailedError) as caught:
            await client.generate("Why?")
    assert caught.value.partial is not None
    await page.set_content(timeline_page(caught.value.partial))
    await expect(page.locator(".timeline-name").first).to_have_text("main")
    await expect(page.locator("path.join")).to_have_count(0)
